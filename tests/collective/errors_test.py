"""Errors: one base class to catch, and the classes that the caller's mistakes have."""

import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, replica_context, values_of


def test_mismatch_is_a_collective_error_and_that_a_runtime_error():
    assert issubclass(lockstep.CollectiveMismatchError, lockstep.CollectiveError)
    assert issubclass(lockstep.CollectiveError, RuntimeError)
    assert not issubclass(lockstep.CollectiveError, (ValueError, TypeError))


def test_replicas_that_meet_in_different_collectives_raise_with_both_and_the_variables_stay():
    strategy = mirrored(2)
    with strategy.scope():
        weight = tf.Variable(1.0)

    @tf.function
    def step(who):
        context = replica_context()
        value = tf.cast(context.replica_id_in_sync_group, tf.float32)
        if value < who:
            total = context.all_reduce("SUM", value)
        else:
            total = context.all_reduce("MAX", value)
        weight.assign(total)

    strategy.run(step, args=(tf.constant(2.0),))
    with pytest.raises(lockstep.CollectiveError, match="(?s)all-reduce SUM.*all-reduce MAX.*move the call"):
        strategy.run(step, args=(tf.constant(1.0),))
    assert values_of(strategy, weight) == [1.0, 1.0]
    strategy.run(step, args=(tf.constant(0.0),))
    assert values_of(strategy, weight) == [1.0, 1.0]
