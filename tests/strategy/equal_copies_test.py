"""Copies after a step that failed on some replicas: equal again, and told."""

import pytest
import tensorflow as tf

from lockstep.training import Trainer
from testing.replicas import mirrored, own, replica_context, values_of


def made(aggregation=tf.VariableAggregation.NONE):
    strategy = mirrored(3)
    with strategy.scope():
        return strategy, tf.Variable([1.0, 2.0], name="w", aggregation=aggregation)


def writes_then_fails(w):
    """A step that writes on all replicas at its own pace, and fails on those whose number is odd before they write."""
    def step(x):
        total = replica_context().all_reduce("SUM", x)
        fine = tf.debugging.Assert(tf.not_equal(x, 1.0), ["odd"])
        with tf.control_dependencies([fine] if fine is not None else []):
            w.assign_add([total, total])

    return step


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "python"])
def test_copies_are_equal_after_a_step_that_failed_on_one_replica(traced, caplog):
    strategy, w = made()
    step = writes_then_fails(w)
    step = tf.function(step) if traced else step
    for _ in range(5):
        with pytest.raises(tf.errors.InvalidArgumentError, match="odd"):
            strategy.run(step, args=(own(0.0, 1.0, 2.0),))
        first, *others = values_of(strategy, w)
        assert others == [first] * 2
        assert first[1] - first[0] == 1.0 and (first[0] - 1.0) % 3.0 == 0.0  # What replica 0 has added, or not.
    before = values_of(strategy, w)[0]
    strategy.run(step, args=(own(0.0, 2.0, 2.0),))
    assert values_of(strategy, w) == [[before[0] + 4.0, before[1] + 4.0]] * 3


def test_copies_that_were_pulled_apart_take_the_first_ones_value_and_are_named(caplog):
    strategy, w = made()
    with strategy.scope():
        same = tf.Variable(float("nan"), name="same")
    w.values[1].assign([7.0, 8.0])

    @tf.function
    def fails(x):
        tf.debugging.assert_less(x, 0.0, "always")

    with pytest.raises(tf.errors.InvalidArgumentError, match="always"):
        strategy.run(fails, args=(own(1.0, 2.0, 3.0),))
    assert values_of(strategy, w) == [[1.0, 2.0]] * 3
    assert "some replicas had written 'w:0' and others had not" in caplog.text
    assert "same" not in caplog.text
    assert values_of(strategy, same) != [1.0] * 3


def test_a_variable_of_each_replicas_own_keeps_what_it_has():
    strategy = mirrored(2)
    with strategy.scope():
        count = tf.Variable(0.0, synchronization=tf.VariableSynchronization.ON_READ,
                            aggregation=tf.VariableAggregation.SUM)

    @tf.function
    def step(x, limit):
        count.assign(x)
        with tf.control_dependencies([tf.debugging.assert_less(x, limit, "too large")]):
            return tf.identity(x)

    strategy.run(step, args=(own(1.0, 2.0), tf.constant(3.0)))
    with pytest.raises(tf.errors.InvalidArgumentError):
        strategy.run(step, args=(own(1.0, 2.0), tf.constant(0.0)))
    assert values_of(strategy, count) == [1.0, 2.0]


def test_a_trainer_counts_the_same_step_on_all_replicas_after_a_failure():
    strategy = mirrored(2)

    def step(x):
        tf.debugging.assert_less(x, 7.0, "too large")
        return {"x": x}

    data = tf.data.Dataset.range(8).map(lambda row: tf.cast(row, tf.float32)).batch(2)
    trainer = Trainer(strategy, step, data, progress="none", steps_per_loop=4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        trainer.train(epochs=1)
    assert len(set(values_of(strategy, trainer.step_variable))) == 1
