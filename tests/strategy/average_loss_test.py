"""The law of the loss: shares add up to the mean over the elements that the sync group has."""

import numpy as np
import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, split_rows


def total(strategy, function, *args):
    result = strategy.run(tf.function(function), args=args)
    return float(strategy.reduce("SUM", result))


def test_weights_multiply_and_the_denominator_counts_elements():
    strategy = mirrored(2)
    losses = lockstep.PerReplica((tf.constant([1.0, 2.0]), tf.constant([4.0])))
    weights = lockstep.PerReplica((tf.constant([1.0, 0.0]), tf.constant([1.0])))
    assert total(strategy, lockstep.average_loss, losses, weights) == pytest.approx(1.6666667, abs=1e-6)


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
@pytest.mark.parametrize("rows", [0, 1, 3, 8])
def test_shares_add_up_to_the_mean_of_one_device(num_replicas, rows):
    strategy = mirrored(num_replicas)
    share = total(strategy, lockstep.average_loss, split_rows(strategy, np.arange(1.0, rows + 1)))
    assert share == pytest.approx((rows + 1) / 2 if rows else 0.0, abs=1e-6)


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_regularisation_counts_once(num_replicas):
    strategy = mirrored(num_replicas)

    def loss(x):
        return lockstep.average_loss(x, regularization_losses=[tf.constant(0.25), tf.constant(0.5)])

    assert total(strategy, loss, split_rows(strategy, [1.0, 3.0, 5.0])) == pytest.approx(3.75, abs=1e-6)


def test_outside_of_run_it_is_the_mean():
    assert float(lockstep.average_loss([1.0, 2.0, 6.0])) == 3.0
    assert float(lockstep.average_loss([1.0, 2.0], sample_weight=[3.0, 0.5])) == 2.0


def test_weights_of_rows_extend_to_elements():
    losses = tf.constant([[1.0, 3.0], [5.0, 7.0]])
    assert float(lockstep.average_loss(losses, sample_weight=[1.0, 2.0])) == (1 + 3 + 10 + 14) / 4


def test_half_precision_adds_in_float32():
    losses = tf.cast(tf.fill([4096], 100.0), tf.float16)  # Their sum does not fit in float16.
    share = lockstep.average_loss(losses)
    assert share.dtype == tf.float16
    assert float(share) == 100.0


def test_integer_losses_are_refused():
    with pytest.raises(TypeError, match="int32.*tf.cast"):
        lockstep.average_loss([1, 2])


@pytest.mark.parametrize("weights", [[1.0, 2.0, 3.0], [[1.0], [2.0]]])
def test_weights_that_do_not_fit_are_refused(weights):
    with pytest.raises(ValueError, match="weights of shape"):
        lockstep.average_loss([1.0, 2.0], sample_weight=weights)
