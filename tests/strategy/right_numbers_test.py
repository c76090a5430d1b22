"""Right numbers: N replicas on a global batch give what one device gives on that batch, for every split."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, own, replica_context, split_rows, values_of


def squares_step(weight, rate):
    """One step of SGD on the mean of (w x)^2."""

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss((weight * x) ** 2)
        gradient = replica_context().all_reduce("SUM", tape.gradient(loss, weight))
        weight.assign_sub(rate * gradient)
        return loss, gradient

    return step


def run_squares(num_replicas, rows):
    """The loss, and all replicas' gradients and weights."""
    strategy = mirrored(num_replicas)
    with strategy.scope():
        weight = tf.Variable(1.0)
    loss, gradient = strategy.run(squares_step(weight, 0.1), args=(split_rows(strategy, rows),))
    total = float(strategy.reduce("SUM", loss, axis=None))
    return total, values_of(strategy, gradient), values_of(strategy, weight)


def test_three_rows_on_two_replicas():
    loss, gradients, weights = run_squares(2, [1.0, 2.0, 3.0])
    assert loss == pytest.approx(4.6666667, abs=1e-6)
    assert gradients == pytest.approx([9.3333333] * 2, abs=1e-6)
    assert weights == pytest.approx([0.0666667] * 2, abs=1e-6) and weights[0] == weights[1]


@pytest.mark.parametrize("num_rows", range(1, 9))
def test_every_number_of_rows_on_four_replicas(num_rows):
    loss, gradients, weights = run_squares(4, np.arange(1.0, num_rows + 1.0))
    expected = (num_rows + 1) * (2 * num_rows + 1) / 6
    assert loss == pytest.approx(expected, rel=1e-6)
    assert weights == pytest.approx([1 - 0.2 * expected] * 4, abs=1e-6)
    assert len(set(weights)) == 1 and len(set(gradients)) == 1 and np.isfinite(weights).all()


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4, 8])
def test_every_number_of_replicas_follows_one_device_over_batches_of_all_sizes(num_replicas):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        weight = tf.Variable(1.0)
    step = squares_step(weight, 0.01)
    expected = np.float64(1.0)
    for num_rows in (8, 3, 1, 5, 8, 2):
        rows = np.arange(1.0, num_rows + 1.0)
        strategy.run(step, args=(split_rows(strategy, rows),))
        expected -= 0.01 * np.mean(2 * expected * rows ** 2)
    weights = values_of(strategy, weight)
    assert weights == pytest.approx([expected] * num_replicas, abs=1e-6) and len(set(weights)) == 1


def lookup_step(table, denominator):
    """A step of SGD with rate 1 on the sum of the looked-up rows: its gradients are IndexedSlices."""

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, ids)) / denominator
        gradient = tape.gradient(loss, table)
        assert isinstance(gradient, tf.IndexedSlices)
        reduced = replica_context().all_reduce("SUM", gradient)
        table.scatter_sub(reduced)
        return tf.convert_to_tensor(reduced)

    return step


@pytest.mark.parametrize("ids, expected", [
    (([0, 0, 1], [1, 3]), [0.6, 0.6, 1.0, 0.8]), (([0, 0, 1], []), [1 / 3, 2 / 3, 1.0, 1.0]),
    (([], [2]), [1.0, 1.0, 0.0, 1.0])])
def test_embedding_with_sparse_gradients(ids, expected):
    strategy = mirrored(2)
    with strategy.scope():
        table = tf.Variable(tf.ones([4, 1]))
    count = float(len(ids[0]) + len(ids[1]))
    strategy.run(lookup_step(table, count), args=(own(*ids, dtype=tf.int32),))
    rows = np.array(values_of(strategy, table))
    assert np.allclose(rows[0][:, 0], expected, atol=1e-6) and np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize("ids, expected", [(([0, 0, 1], [1, 3]), [0.6, 0.6, 1.0, 0.8]),
                                           (([0, 0, 1], []), [1 / 3, 2 / 3, 1.0, 1.0])])
def test_keras_embedding_and_optimizer(ids, expected):
    strategy = mirrored(2)
    with strategy.scope():
        layer = keras.layers.Embedding(4, 1, embeddings_initializer="ones")
        layer.build()
        optimizer = keras.optimizers.SGD(1.0)

    @tf.function
    def step(rows):
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss(layer(rows)[:, 0])
        optimizer.apply_gradients(zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables))

    strategy.run(step, args=(own(*ids, dtype=tf.int32),))
    rows = np.array(values_of(strategy, layer.embeddings.value))
    assert np.allclose(rows[0][:, 0], expected, atol=1e-6) and np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_clipping_acts_on_the_reduced_gradient(num_replicas):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        weight = tf.Variable(1.0)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss(weight * x)
        gradients = replica_context().all_reduce("SUM", [tape.gradient(loss, weight)])
        clipped, norm = tf.clip_by_global_norm(gradients, 0.5)
        weight.assign_sub(clipped[0])
        return norm

    norm = strategy.run(step, args=(split_rows(strategy, [8.0, -4.0, 2.0, 2.0]),))
    assert values_of(strategy, norm) == [2.0] * num_replicas
    assert values_of(strategy, weight) == pytest.approx([0.5] * num_replicas)


# The property: any number of replicas and rows follows one device.

# Both runs add the same float32 numbers, in another order: over rows, then over replicas. That changes a gradient by
# a few rounding errors (6e-8) of the sum of its terms' sizes, and where the terms of different rows cancel each other
# by up to 1e-5 of itself. Adam divides a gradient by its own size, so an update of size 0.01 moves by up to 1e-7, and
# 20 of them by 2e-6. The weights are of size 1. The rest is for the differences that feed back into the gradients. A
# loss moves by its gradient, summed over all weights, times what they have moved by: 1.1e-5 was seen on TF 2.19.
TOLERANCE = 1e-5
LOSS_TOLERANCE = 5e-5
NUM_STEPS = 20


def network():
    model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(8, activation="tanh"),
                              keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
    random = np.random.RandomState(3)
    model.set_weights([random.normal(size=weight.shape).astype(np.float32) for weight in model.get_weights()])
    return model, keras.optimizers.Adam(0.01)


def make_step(model, optimizer):
    @tf.function
    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss(tf.reduce_mean((model(x, training=True) - y) ** 2, axis=-1))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return step


def random_batches(seed):
    random = np.random.RandomState(seed)
    for _ in range(NUM_STEPS):
        x = random.normal(size=(random.randint(1, 14), 5)).astype(np.float32)
        yield x, np.sin(x.sum(axis=1, keepdims=True))


@pytest.fixture(scope="module")
def alone():
    """By seed: losses and weights of the run on one device, without a strategy."""
    runs = {}

    def run(seed):
        if seed not in runs:
            model, optimizer = network()
            step = make_step(model, optimizer).python_function
            step = tf.function(step, reduce_retracing=True)
            losses = [float(step((tf.constant(x), tf.constant(y)))) for x, y in random_batches(seed)]
            runs[seed] = losses, model.get_weights()
        return runs[seed]

    return run


@pytest.mark.parametrize("num_replicas, seed", [(1, 1), (2, 1), (3, 2), (4, 1), (5, 3), (6, 2), (7, 1), (8, 3)])
def test_any_replicas_on_random_batches_follow_one_device(num_replicas, seed, alone):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        model, optimizer = network()
    step = make_step(model, optimizer)
    losses = []
    for x, y in random_batches(seed):
        share = strategy.run(step, args=((split_rows(strategy, x), split_rows(strategy, y)),))
        losses.append(float(strategy.reduce("SUM", share, axis=None)))
    expected_losses, expected_weights = alone(seed)
    assert losses == pytest.approx(expected_losses, abs=LOSS_TOLERANCE)
    for weight, expected in zip(model.weights, expected_weights, strict=True):
        assert np.allclose(weight.numpy(), expected, rtol=0, atol=TOLERANCE), weight.path
    for variable in model.variables + optimizer.variables:
        copies = values_of(strategy, variable.value)
        assert len(copies) == num_replicas and all(copy == copies[0] for copy in copies), variable.path
