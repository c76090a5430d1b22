"""N replicas give what one device gives on the global batch, for every split of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, replica_context, split_rows, values_of

SIZES = (1, 2, 4)


def sgd_step(strategy, weight, rate):
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss((weight * x) ** 2)
        gradient = replica_context().all_reduce("SUM", tape.gradient(loss, weight))
        weight.assign_sub(rate * gradient)
        return loss, gradient

    return step


def test_uneven_rows_on_two_replicas_give_the_mean_of_the_three():
    strategy = mirrored(2)
    with strategy.scope():
        weight = tf.Variable(1.0)
    loss, gradient = strategy.run(sgd_step(strategy, weight, 0.1), args=(split_rows(strategy, [1.0, 2.0, 3.0]),))
    assert float(strategy.reduce("SUM", loss)) == pytest.approx(4.6666667, abs=1e-6)
    assert values_of(strategy, gradient) == pytest.approx([9.3333333] * 2, abs=1e-6)
    assert values_of(strategy, weight) == pytest.approx([0.0666667] * 2, abs=1e-6)


@pytest.mark.parametrize("rows", range(1, 9))
def test_every_number_of_rows_on_four_replicas(rows):
    strategy = mirrored(4)
    with strategy.scope():
        weight = tf.Variable(1.0)
    batch = split_rows(strategy, np.arange(1.0, rows + 1))
    loss, _ = strategy.run(sgd_step(strategy, weight, 0.1), args=(batch,))
    expected = (rows + 1) * (2 * rows + 1) / 6
    assert float(strategy.reduce("SUM", loss)) == pytest.approx(expected, rel=1e-6)
    copies = values_of(strategy, weight)
    assert len(set(copies)) == 1
    assert copies[0] == pytest.approx(1 - 0.2 * expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("num_replicas", SIZES)
def test_regulariser_counts_once(num_replicas):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(2.0),
                                   kernel_regularizer=keras.regularizers.L2(0.1))
        layer.build([None, 1])
        optimizer = keras.optimizers.SGD(1.0)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss(0.0 * layer(x)[:, 0], regularization_losses=layer.losses)
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables))
        return loss, replica_context().all_reduce("SUM", gradients[0])

    loss, gradient = strategy.run(step, args=(split_rows(strategy, [[1.0]] * 4),))
    assert float(strategy.reduce("SUM", loss) if num_replicas > 1 else loss) == pytest.approx(0.4, abs=1e-6)
    assert values_of(strategy, gradient)[0][0][0] == pytest.approx(0.4, abs=1e-6)
    assert np.ravel(values_of(strategy, layer.kernel.value)) == pytest.approx([1.6] * num_replicas, abs=1e-6)


@pytest.mark.parametrize("ids, rows, expected", [
    (([0, 0, 1], [1, 3]), 5, [0.6, 0.6, 1.0, 0.8]),
    (([0, 0, 1], []), 3, [1 / 3, 2 / 3, 1.0, 1.0]),
])
@pytest.mark.parametrize("kind", ["sparse", "keras"])
def test_embedding_rows_add_up_over_replicas(ids, rows, expected, kind):
    strategy = mirrored(2)
    with strategy.scope():
        table = tf.Variable(tf.ones([4, 1]), aggregation=tf.VariableAggregation.SUM)
        optimizer = keras.optimizers.SGD(1.0)

    @tf.function
    def step(numbers):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, numbers)) / rows
        gradient = tape.gradient(loss, table)
        assert isinstance(gradient, tf.IndexedSlices)
        if kind == "keras":
            optimizer.apply_gradients([(gradient, table)])
        else:
            table.scatter_sub(gradient)

    strategy.run(step, args=(lockstep.PerReplica([tf.constant(part, tf.int32) for part in ids]),))
    for copy in values_of(strategy, table):
        assert np.ravel(copy) == pytest.approx(expected, abs=1e-6)


def train_network(strategy, batches):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.01)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss((model(x)[:, 0] - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    for x, y in batches:
        strategy.run(step, args=(split_rows(strategy, x), split_rows(strategy, y)))
    return model


@pytest.mark.parametrize("num_replicas", range(2, 9))
def test_adam_on_random_batch_sizes_gives_the_weights_of_one_device(num_replicas):
    numbers = np.random.default_rng(num_replicas)
    batches = []
    for _ in range(20):
        x = numbers.normal(size=(int(numbers.integers(1, 13)), 3)).astype(np.float32)
        batches.append((x, x.sum(1)))
    strategy = mirrored(num_replicas)
    model = train_network(strategy, batches)
    alone = train_network(mirrored(1), batches)
    for ours, theirs in zip(model.trainable_variables, alone.trainable_variables):
        copies = [copy.numpy() for copy in ours.value.values]
        assert all(np.array_equal(copy, copies[0]) for copy in copies)
        # Sums over rows are rounded in another order, about 1e-7 each; Adam divides by the root of the second moment,
        # which amplifies that where gradients are small, but a step moves a weight by at most about 0.01.
        np.testing.assert_allclose(copies[0], theirs.numpy(), rtol=0, atol=2e-4)
