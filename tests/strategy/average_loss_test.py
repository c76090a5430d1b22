"""The law of the loss: the replicas' shares add up to the mean over the rows that there really are."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, replica_context, split_rows, values_of

TRACED = pytest.mark.parametrize("traced", [True, False], ids=["traced", "python"])


def own(*values, dtype=tf.float32):
    return lockstep.PerReplica([tf.constant(value, dtype) for value in values])


def shares(strategy, traced, *args, function=lockstep.average_loss):
    return strategy.run(tf.function(function) if traced else function, args=args)


def mean(strategy, traced, *args, **kwargs):
    return float(strategy.reduce("SUM", shares(strategy, traced, *args, **kwargs), axis=None))


@TRACED
def test_weights_multiply_and_the_denominator_counts_elements(traced):
    strategy = mirrored(2)
    rows, weights = own([1.0, 2.0], [4.0]), own([1.0, 0.0], [1.0])
    assert mean(strategy, traced, rows, weights) == pytest.approx(1.6666667, abs=1e-6)
    assert values_of(strategy, shares(strategy, traced, rows, weights)) == pytest.approx([1 / 3, 4 / 3])


@TRACED
@pytest.mark.parametrize("num_replicas", [1, 2, 4])
@pytest.mark.parametrize("num_rows", [0, 1, 3, 8])
def test_shares_add_up_to_the_mean_of_every_split(num_replicas, num_rows, traced):
    strategy = mirrored(num_replicas)
    rows = np.arange(1.0, num_rows + 1.0, dtype=np.float32)
    loss = mean(strategy, traced, split_rows(strategy, rows))
    assert loss == (pytest.approx((num_rows + 1) / 2, abs=1e-6) if num_rows else 0.0)


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("num_rows", [0, 2])
def test_no_rows_give_no_gradient_and_no_nan(num_replicas, num_rows):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        w = tf.Variable(1.0)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss((w * x) ** 2)
        return replica_context().all_reduce("SUM", tape.gradient(loss, w))

    gradient = strategy.run(step, args=(split_rows(strategy, np.ones(num_rows)),))
    assert values_of(strategy, gradient) == [2.0 if num_rows else 0.0] * num_replicas


@TRACED
def test_elements_are_counted_not_rows(traced):
    strategy = mirrored(2)
    losses = own([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]])
    assert mean(strategy, traced, losses) == 3.5
    assert mean(strategy, traced, losses, own([1.0, 0.0], [1.0])) == pytest.approx(14.0 / 6, abs=1e-6)
    weights = own([[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0]])
    assert mean(strategy, traced, losses, weights) == pytest.approx(7.0 / 6, abs=1e-6)
    assert mean(strategy, traced, losses, tf.constant(2.0)) == 7.0


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_regularisation_counts_once(num_replicas):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(
            1, use_bias=False, kernel_initializer=keras.initializers.Constant(2.0),
            kernel_regularizer=keras.regularizers.L2(0.1))])
        optimizer = keras.optimizers.SGD(1.0)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss(0.0 * model(x)[:, 0], regularization_losses=model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss, replica_context().all_reduce("SUM", gradients[0])

    loss, gradient = strategy.run(step, args=(split_rows(strategy, np.ones([3, 1])),))
    assert float(strategy.reduce("SUM", loss, axis=None)) == pytest.approx(0.4, abs=1e-6)
    assert np.allclose(values_of(strategy, gradient), 0.4, atol=1e-6)
    assert np.allclose(values_of(strategy, model.layers[0].kernel.value), 1.6, atol=1e-6)


@pytest.mark.parametrize("losses", [None, [], 0.5, [0.25, tf.constant(0.25)], {"a": [tf.constant(0.5)]}])
def test_regularisation_losses_in_all_forms(losses):
    def share(x):
        return lockstep.average_loss(x, regularization_losses=losses)

    expected = 2.0 if losses is None or losses == [] else 2.5
    assert mean(mirrored(2), True, own([1.0, 2.0], [3.0]), function=share) == pytest.approx(expected, abs=1e-6)


@TRACED
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_precision_is_summed_in_float32(dtype, traced):
    strategy = mirrored(2)
    # In float16 the sums overflow (65504) and in bfloat16 256 + 1 is 256.
    result = shares(strategy, traced, own(*[np.full([4096], 100.0)] * 2, dtype=dtype))
    assert [part.dtype for part in result.values] == [dtype] * 2
    assert [float(part) for part in result.values] == [50.0, 50.0]


def test_float64_is_kept():
    result = shares(mirrored(2), True, own([0.1], [0.2], dtype=tf.float64))
    assert [part.dtype for part in result.values] == [tf.float64] * 2
    assert sum(float(part) for part in result.values) == pytest.approx(0.15, abs=1e-15)


@TRACED
@pytest.mark.parametrize("dtype", [tf.int32, tf.bool, tf.complex64])
def test_losses_that_are_no_floating_numbers_raise(dtype, traced):
    losses = own(*[tf.cast([1], dtype)] * 2, dtype=dtype)
    with pytest.raises(TypeError, match=f"`average_loss`: the losses have dtype {dtype.name}.*tf.cast"):
        shares(mirrored(2), traced, losses)
    with pytest.raises(TypeError, match=f"dtype {dtype.name}"):
        lockstep.average_loss(tf.cast([1], dtype))


@pytest.mark.parametrize("losses, weights", [
    ([1.0, 2.0], [1.0, 2.0, 3.0]), ([1.0, 2.0], [[1.0], [2.0]]), ([[1.0, 2.0]], [1.0, 2.0]), (1.0, [1.0]),
    ([[1.0, 2.0]], [[1.0, 2.0, 3.0]]), ([], [1.0, 2.0])])
def test_weights_that_do_not_broadcast_raise(losses, weights):
    with pytest.raises(ValueError, match="`average_loss`: weights of shape .* for losses of shape"):
        lockstep.average_loss(tf.constant(losses, tf.float32), weights)
    with pytest.raises(ValueError, match="`average_loss`: weights of shape .* for losses of shape"):
        shares(mirrored(2), False, own(losses, losses), own(weights, weights))


def test_weights_that_do_not_broadcast_raise_when_only_running_tells():
    spec = [tf.TensorSpec(None), tf.TensorSpec(None)]
    average = tf.function(lockstep.average_loss, input_signature=spec)
    assert float(average(tf.constant([[1.0, 3.0]]), tf.constant([[1.0, 1.0]]))) == 2.0
    assert float(average(tf.constant([[1.0, 1.0], [5.0, 5.0]]), tf.constant([0.0, 1.0]))) == 2.5
    for losses, weights in (([1.0, 2.0], [[1.0], [2.0]]), ([1.0, 2.0], [1.0, 2.0, 3.0])):
        with pytest.raises(tf.errors.InvalidArgumentError, match="BroadcastTo"):
            average(tf.constant(losses), tf.constant(weights))
    rows = tf.function(lockstep.average_loss, input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None])])
    assert float(rows(tf.constant([1.0, 3.0]), tf.constant([1.0]))) == 2.0
    with pytest.raises(tf.errors.InvalidArgumentError, match="BroadcastTo"):
        rows(tf.constant([1.0]), tf.constant([1.0, 1.0, 1.0]))


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "function"])
def test_outside_of_run_it_is_the_mean(in_graph):
    average = tf.function(lockstep.average_loss) if in_graph else lockstep.average_loss
    assert float(average(tf.constant([1.0, 2.0, 6.0]))) == 3.0
    assert float(average(tf.constant([1.0, 2.0]), tf.constant([1.0, 0.0]))) == 0.5
    assert float(average(tf.constant([]))) == 0.0
    assert float(average([2.0, 4.0], regularization_losses=[tf.constant(1.0)])) == 4.0
    with mirrored(2).scope():
        assert float(average(tf.constant([1.0, 2.0, 6.0]))) == 3.0


@TRACED
@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_gradients_of_the_shares_add_up_to_the_gradient_of_the_mean(num_replicas, traced):
    strategy = mirrored(num_replicas)
    rows, weights = np.float32([1.0, -2.0, 3.0, 0.5, 4.0]), np.float32([1.0, 0.0, 2.0, 1.0, 0.5])

    def step(x, weight):
        w = tf.constant(1.5)
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = lockstep.average_loss((w * x) ** 2, weight, [0.1 * w])
        return replica_context().all_reduce("SUM", tape.gradient(loss, w))

    gradient = shares(strategy, traced, split_rows(strategy, rows), split_rows(strategy, weights), function=step)
    expected = float((2 * 1.5 * rows ** 2 * weights).mean() + 0.1)
    assert values_of(strategy, gradient) == pytest.approx([expected] * num_replicas, rel=1e-6)
