"""Programs that users have reported against tf.distribute, each a small case with the right value or a clear error."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import lockstep
from testing.replicas import mirrored, own, replica_context, split_rows, values_of

Aggregation, Synchronization = tf.VariableAggregation, tf.VariableSynchronization


@pytest.mark.parametrize("aggregation, expected", [(Aggregation.SUM, 2.0), (Aggregation.MEAN, 1.0),
                                                   (Aggregation.ONLY_FIRST_REPLICA, 1.0)])
def test_adding_one_in_each_replica_follows_the_aggregation(aggregation, expected):
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(0.0, aggregation=aggregation)
    strategy.run(tf.function(lambda: v.assign_add(tf.constant(1.0))))
    assert values_of(strategy, v) == [expected] * 2


def test_without_an_aggregation_the_error_names_the_variable_and_the_choices():
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(0.0, name="counter")
    strategy.run(tf.function(lambda: v.assign_add(1.0)))  # The same on all: nothing to choose.
    assert values_of(strategy, v) == [1.0, 1.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)'counter:0'.*SUM.*MEAN.*ONLY_FIRST_REPLICA"):
        strategy.run(tf.function(lambda x: v.assign(x)), args=(own(1.0, 2.0),))


def test_data_dependent_initialisation_in_the_step_works_with_mean():
    strategy = mirrored(2)
    with strategy.scope():
        scale = tf.Variable(0.0, aggregation=Aggregation.MEAN)
        ready = tf.Variable(False, aggregation=Aggregation.ONLY_FIRST_REPLICA)

    @tf.function
    def step(x):
        if not ready:
            scale.assign(tf.reduce_mean(x))
            ready.assign(True)
        return scale * x

    for _ in range(2):
        strategy.run(step, args=(own([1.0, 2.0], [3.0, 4.0]),))
        assert values_of(strategy, scale) == [2.5, 2.5]


def test_a_value_that_is_the_same_on_all_replicas_costs_no_exchange():
    strategy = mirrored(2)
    with strategy.scope():
        u = tf.Variable([3.0, 4.0], aggregation=Aggregation.ONLY_FIRST_REPLICA)
        w = tf.Variable([[1.0, 0.0], [0.0, 2.0]])

    def power_iteration():
        product = tf.linalg.matvec(w, u)
        u.assign(product / tf.norm(product))

    assert strategy.plan(power_iteration).exchanges == ()
    strategy.run(tf.function(power_iteration))
    assert values_of(strategy, u)[0] == pytest.approx([3 / 73 ** 0.5, 8 / 73 ** 0.5])


def test_a_variable_of_each_replica_is_read_before_it_updates_another():
    strategy = mirrored(2)
    with strategy.scope():
        total = tf.Variable(0.0, name="total", synchronization=Synchronization.ON_READ, aggregation=Aggregation.SUM)
        v = tf.Variable(0.0, name="weight")
    strategy.run(tf.function(lambda x: total.assign_add(x)), args=(own(1.0, 2.0),))
    with pytest.raises(ValueError, match="'weight:0'.*'total:0'.*read_value"):
        strategy.extended.update(v, lambda copy, value: copy.assign(value), args=(total,))
    strategy.extended.update(v, lambda copy, value: copy.assign(value), args=(total.read_value(),))
    assert values_of(strategy, v) == [3.0, 3.0]


def test_a_loss_of_keras_in_a_step_of_ones_own_is_the_mean_over_all_rows():
    strategy = mirrored(2)
    with strategy.scope():
        w = tf.Variable(1.0)
    loss_fn = keras.losses.MeanSquaredError()

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_fn(tf.zeros_like(x), w * x)
        return loss, replica_context().all_reduce("SUM", tape.gradient(loss, w))

    loss, gradient = strategy.run(step, args=(split_rows(strategy, [[1.0], [2.0], [3.0]]),))
    assert float(strategy.reduce("SUM", loss, axis=None)) == pytest.approx(14 / 3)
    assert values_of(strategy, gradient) == pytest.approx([28 / 3] * 2)


def test_the_spec_of_a_distributed_dataset_is_an_input_signature():
    strategy = mirrored(2)
    batches = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices([1, 2, 3, 4, 5]).batch(3))
    traces = []

    @tf.function(input_signature=[batches.element_spec])
    def total(batch):
        traces.append(1)
        return strategy.reduce("SUM", strategy.run(lambda rows: tf.reduce_sum(rows), args=(batch,)), axis=None)

    assert [int(total(batch)) for batch in batches] == [6, 9] and len(traces) == 1


def test_an_optimizer_may_be_applied_outside_of_the_replicas():
    strategy = mirrored(2)
    with strategy.scope():
        v = keras.Variable([1.0, 2.0])
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build([v])
        optimizer.apply([tf.constant([2.0, 0.0])], [v])
    assert values_of(strategy, v.value) == [[0.0, 2.0]] * 2


def test_an_optimizer_and_a_second_model_made_in_the_step_are_made_once():
    strategy = mirrored(2)
    made = {}

    @tf.function
    def step(x):
        if not made:
            made["model"] = layers.Dense(1, use_bias=False, kernel_initializer="ones")
            made["optimizer"] = keras.optimizers.Adam(0.1)
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss(made["model"](x)[:, 0] ** 2)
        variables = made["model"].trainable_variables
        made["optimizer"].apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    losses = [float(strategy.reduce("SUM", strategy.run(step, args=(split_rows(strategy, [[1.0], [2.0], [3.0]]),)),
                                    axis=None)) for _ in range(3)]
    assert losses[0] == pytest.approx(14 / 3) and losses == sorted(losses, reverse=True)


def test_a_gradient_outside_of_the_replicas_is_one_devices():
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(3.0)
        with tf.GradientTape() as tape:
            loss = v ** 2
        assert float(tape.gradient(loss, v)) == 6.0


def test_a_layer_called_outside_of_the_replicas_is_one_devices():
    strategy = mirrored(2)
    x = np.array([[1.0], [3.0]], np.float32)
    with strategy.scope():
        norm = layers.BatchNormalization(momentum=0.0)
        y = norm(x, training=True)
    np.testing.assert_allclose(y, [[-1.0], [1.0]], atol=1e-3)
    assert values_of(strategy, norm.moving_mean.value) == [[2.0], [2.0]]


def test_batch_normalization_takes_a_partial_last_batch():
    strategy = mirrored(2)
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), layers.BatchNormalization(), layers.Dense(1)])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss(model(x, training=True)[:, 0] ** 2)
        return loss, tape.gradient(loss, model.trainable_variables)

    for rows in ([[1.0], [2.0], [3.0], [4.0]], [[1.0], [2.0], [3.0]], [[1.0]]):
        loss, gradients = strategy.run(step, args=(split_rows(strategy, rows),))
        numbers = [number for part in (loss, *gradients) for value in values_of(strategy, part)
                   for number in np.ravel(value)]
        assert np.isfinite(numbers).all()


def test_many_small_reductions_in_one_step_never_mix():
    strategy = mirrored(4)
    count = 100

    @tf.function
    def step():
        context = replica_context()
        rank = tf.cast(context.replica_id_in_sync_group, tf.float32)
        return tf.stack([context.all_reduce("SUM", rank + index) for index in range(count)])

    for _ in range(3):
        expected = [4.0 * index + 6.0 for index in range(count)]
        assert values_of(strategy, strategy.run(step)) == [expected] * 4


def test_a_gradient_is_clipped_after_the_sum():
    strategy = mirrored(2)
    with strategy.scope():
        v = keras.Variable([0.0, 0.0])
        optimizer = keras.optimizers.SGD(1.0, clipnorm=5.0)
        optimizer.build([v])
    strategy.run(tf.function(lambda g: optimizer.apply([g], [v])), args=(own([6.0, 0.0], [0.0, 8.0]),))
    np.testing.assert_allclose(v.numpy(), [-3.0, -4.0], rtol=1e-6)


class Inverse(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 1.0 / (1.0 + tf.cast(step, tf.float32))


def test_a_schedule_of_ones_own_is_called_in_each_step():
    strategy = mirrored(2)
    with strategy.scope():
        v = keras.Variable(0.0)
        optimizer = keras.optimizers.SGD(Inverse())
        optimizer.build([v])
    step = tf.function(lambda g: optimizer.apply([g], [v]))
    reached = []
    for _ in range(3):
        strategy.run(step, args=(own(0.5, 0.5),))
        reached.append(float(v.numpy()))
    assert reached == pytest.approx([-1.0, -1.5, -1.5 - 1 / 3])


@pytest.mark.parametrize("ids", [([0, 1, 2], [1, 3]), ([0, 0], []), ([], [])])
def test_embeddings_with_unequal_and_no_rows_beside_an_integer_counter(ids):
    strategy = mirrored(2)
    with strategy.scope():
        table = tf.Variable(tf.ones([4, 2]))
        counter = tf.Variable(0, dtype=tf.int64, aggregation=Aggregation.SUM)
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([table])

    @tf.function
    def step(ids):
        counter.assign_add(tf.size(ids, tf.int64))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    strategy.run(step, args=(lockstep.PerReplica([tf.constant(part, tf.int32) for part in ids]),))
    counts = np.bincount([*ids[0], *ids[1]], minlength=4) if ids[0] or ids[1] else np.zeros(4)
    np.testing.assert_allclose(values_of(strategy, table)[1], np.ones([4, 2]) - counts[:, None])
    assert values_of(strategy, counter) == [len(ids[0]) + len(ids[1])] * 2


def test_a_model_is_loaded_in_any_scope(tmp_path):
    strategy = mirrored(2)
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
    x = np.ones([4, 1], np.float32)
    model.fit(x, x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    loaded.fit(x, x, verbose=0)
    with mirrored(4).scope():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    loaded.fit(x, x, verbose=0)
    model.fit(x, x, verbose=0)
    np.testing.assert_allclose(loaded.get_weights()[0], model.get_weights()[0], rtol=1e-5)
