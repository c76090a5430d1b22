"""Keras's numbers in a step of several replicas: right with the corrections, and Keras's own without."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import lockstep
from testing.keras_corrections import without
from testing.replicas import mirrored, own, replica_context, split_rows, values_of


def linear(strategy, loss="mse", **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.1, **options), loss)
    return model


def fitted(model, rows):
    """Loss and kernel after one batch of rows, with target 0."""
    x = np.array(rows, np.float32)[:, None]
    loss = model.fit(x, np.zeros_like(x), batch_size=len(rows), verbose=0).history["loss"][0]
    return loss, float(model.layers[0].kernel.numpy()[0, 0])


def test_a_loss_is_divided_by_the_rows_of_all_replicas():
    # Rows 1, 2 | 3: (1 + 4 + 9) / 3, and the gradient is twice that.
    loss, kernel = fitted(linear(mirrored(2)), [1, 2, 3])
    assert loss == pytest.approx(14 / 3) and kernel == pytest.approx(1 - 0.1 * 28 / 3)
    with without("loss mean"):
        loss, kernel = fitted(linear(mirrored(2)), [1, 2, 3])
        assert kernel == pytest.approx(1 - 0.1 * 2 * (2.5 + 9) / 2)  # A mean of the replicas' means.


def test_a_masked_loss_is_divided_by_the_valid_steps_of_all_replicas():
    def masked_mean():
        strategy = mirrored(2)
        loss = keras.losses.MeanSquaredError()

        @tf.function
        def step(values, mask):
            values._keras_mask = mask
            return loss(tf.zeros_like(values), values)

        # Squared errors 1, 4 | 9, 16, of which the first replica's second is masked.
        shares = strategy.run(step, args=(split_rows(strategy, [[[1.0], [2.0]], [[3.0], [4.0]]]),
                                          split_rows(strategy, [[True, False], [True, True]], tf.bool)))
        return float(strategy.reduce("SUM", shares, axis=None))

    assert masked_mean() == pytest.approx((1 + 9 + 16) / 3)
    with without("loss mean"):
        assert masked_mean() == pytest.approx((1 + 12.5) / 2)


def test_an_additional_loss_weighs_by_rows():
    def kernel():
        strategy = mirrored(2)
        with strategy.scope():
            model = keras.Sequential([keras.Input([1]), layers.Dense(
                1, use_bias=False, kernel_initializer="ones", activity_regularizer=keras.regularizers.L2(1.0))])
            model.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError())
        x = np.array([[1.0], [2.0], [3.0]], np.float32)
        model.fit(x, x, batch_size=3, verbose=0)  # No error: the activity's mean square is all that there is.
        return float(model.layers[0].kernel.numpy()[0, 0])

    assert kernel() == pytest.approx(1 - 0.1 * 28 / 3)
    with without("loss mean"):
        assert kernel() == pytest.approx(1 - 0.1 * 2 * (2.5 + 9) / 2)


@pytest.mark.parametrize("clipping, expected, keras_alone", [
    ({"clipnorm": 1.0}, [-0.6, -0.8], [-1.0, -1.0]),
    ({"global_clipnorm": 1.0}, [-0.6, -0.8], [-1.0, -1.0]),
    ({"clipvalue": 3.5}, [-3.0, -3.5], [-3.0, -3.5]),
])
def test_clipping_acts_on_the_reduced_gradient(clipping, expected, keras_alone):
    def step():
        strategy = mirrored(2)
        with strategy.scope():
            v = keras.Variable([0.0, 0.0])
            optimizer = keras.optimizers.SGD(1.0, **clipping)
            optimizer.build([v])
        gradient = lockstep.PerReplica([tf.constant([3.0, 0.0]), tf.constant([0.0, 4.0])])
        strategy.run(tf.function(lambda g: optimizer.apply([g], [v])), args=(gradient,))
        return v.numpy()

    np.testing.assert_allclose(step(), expected, rtol=1e-6)
    with without("clipping"):
        np.testing.assert_allclose(step(), keras_alone, rtol=1e-6)


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "python"])
def test_a_gradient_from_outside_is_not_summed_once_per_replica(traced):
    def step():
        strategy = mirrored(2)
        with strategy.scope():
            v = keras.Variable(1.0)
            optimizer = keras.optimizers.SGD(1.0)
            optimizer.build([v])

        def apply(gradient):
            optimizer.apply([gradient], [v])

        strategy.run(tf.function(apply) if traced else apply, args=(tf.constant(0.25),))
        return float(v.numpy())

    assert step() == 0.75
    with without("given gradients"):
        assert step() == 0.5


def test_a_gradient_that_is_not_finite_on_one_replica_skips_the_update_on_all():
    def step(gradients):
        strategy = mirrored(2)
        with strategy.scope():
            w = keras.Variable(1.0)
            optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
            optimizer.build([w])
        apply = tf.function(lambda gradient: optimizer.apply([gradient], [w]))
        results = []
        for gradient in gradients:
            strategy.run(apply, args=(own(*gradient),))
            results.append((float(w.numpy()), float(optimizer.dynamic_scale.numpy())))
        return results

    half = 16384.0 / 2
    assert step([(1.0, np.inf), (half, half)]) == [(1.0, 16384.0), (pytest.approx(0.9), 16384.0)]
    with without("loss scale"):
        with pytest.raises(lockstep.CollectiveMismatchError):  # One replica updates, the other does not.
            step([(1.0, np.inf)])


def test_dropout_masks_differ_between_replicas_and_repeat_under_a_seed():
    def masks():
        strategy = mirrored(2)
        with strategy.scope():
            dropout = layers.Dropout(0.5, seed=7)
        return [values_of(strategy, strategy.run(tf.function(lambda: dropout(tf.ones([64]), training=True))))
                for _ in range(2)]

    first, second = masks()
    assert first[0] != first[1] and second[0] != second[1] and first != second
    assert masks() == [first, second]
    with without("seeds"):
        first, _ = masks()
        assert first[0] == first[1]


def test_moving_statistics_are_the_mean_weighted_by_rows():
    def moving_mean(*rows):
        strategy = mirrored(2)
        with strategy.scope():
            norm = layers.BatchNormalization(momentum=0.0)
            norm.build([None, 1])
        parts = lockstep.PerReplica([tf.reshape(tf.constant(part, tf.float32), [-1, 1]) for part in rows])
        outputs = strategy.run(tf.function(lambda x: norm(x, training=True)), args=(parts,))
        for part, output in zip(rows, values_of(strategy, outputs)):  # Each replica's own statistics.
            spread = np.sqrt(np.var(part) + norm.epsilon) if len(part) else 1
            mean = np.mean(part) if len(part) else 0
            np.testing.assert_allclose(np.ravel(output), (np.array(part) - mean) / spread, rtol=1e-4, atol=1e-6)
        values = values_of(strategy, norm.moving_mean.value)
        assert values[0] == values[1]
        return values[0][0]

    assert moving_mean([1.0, 2.0, 3.0], [10.0]) == pytest.approx(4.0)
    assert moving_mean([1.0, 2.0, 3.0], []) == pytest.approx(2.0)
    with without("moving statistics"):
        assert moving_mean([1.0, 2.0, 3.0], [10.0]) == pytest.approx(6.0)


def test_a_replica_without_rows_leaves_the_gradients_of_batch_normalization_finite():
    def gradients():
        strategy = mirrored(2)
        with strategy.scope():
            norm = layers.BatchNormalization()
            norm.build([None, 1])

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(norm(x, training=True) ** 2)
            return replica_context().all_reduce("SUM", tape.gradient(loss, norm.trainable_variables))

        parts = lockstep.PerReplica([tf.constant([[1.0], [3.0]]), tf.zeros([0, 1])])
        return [number for gradient in strategy.run(tf.function(step), args=(parts,))
                for number in np.ravel(values_of(strategy, gradient))]

    assert np.isfinite(gradients()).all()
    with without("moving statistics"):
        assert not np.isfinite(gradients()).all()


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_optimizer_that_was_made_outside_of_the_scope_is_refused_by_name(is_built, momentum):
    strategy = mirrored(2)
    with strategy.scope():
        v = keras.Variable(1.0)
    optimizer = keras.optimizers.SGD(1.0, name="early", momentum=0.0 if is_built else momentum)
    if is_built:
        optimizer.build([v])
    with pytest.raises(ValueError, match="optimizer 'early': it was not made under the scope"):
        strategy.run(tf.function(lambda: optimizer.apply([v * 1.0], [v])))


def test_accumulated_gradients_are_reduced_once_for_all_their_steps():
    strategy = mirrored(2)
    with strategy.scope():
        v = keras.Variable(1.0)
        optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=3)
        optimizer.build([v])
    plan = strategy.plan(lambda g: optimizer.apply([2 * g], [v]), (own(1.0, 2.0),))
    assert [exchange.kind for exchange in plan.exchanges] == ["all-reduce"]  # In the branch of the third step.
