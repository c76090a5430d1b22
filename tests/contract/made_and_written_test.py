"""Variables made and written in a step: every copy is equal afterwards, or an error names the variable."""

import contextlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, own, replica_context, values_of


@pytest.mark.parametrize("write", [
    lambda v, x: v.assign(x),
    lambda v, x: v.assign(np.float32(x)),
    lambda v, x: v.assign_add(float(x)),
], ids=["a Python number", "a NumPy number", "what is added"])
@pytest.mark.parametrize("aggregation, expected", [
    (tf.VariableAggregation.NONE, None), (tf.VariableAggregation.MEAN, 1.5),
    (tf.VariableAggregation.ONLY_FIRST_REPLICA, 1.0)])
def test_numbers_of_python_that_differ_between_the_replicas_follow_the_aggregation(write, aggregation, expected):
    for traced in (False, True):
        strategy = mirrored(2)
        with strategy.scope():
            v = tf.Variable(0.0, aggregation=aggregation, name="v")

        def step(x):
            write(v, x)

        numbers = lockstep.PerReplica([1.0, 2.0])
        if expected is None:
            with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)'v:0.*values differ. By rank: 1, 2"):
                strategy.run(tf.function(step) if traced else step, args=(numbers,))
        else:
            strategy.run(tf.function(step) if traced else step, args=(numbers,))
        assert values_of(strategy, v) == [expected or 0.0] * 2


@pytest.mark.parametrize("made_by_keras", [False, True])
@pytest.mark.parametrize("given", [[[1.0, 1.0], [2.0, 2.0]], "tensors"])
def test_an_update_with_values_that_differ_is_refused_by_name(made_by_keras, given):
    strategy = mirrored(2)
    with strategy.scope():
        v = keras.Variable([1.0, 2.0], name="v").value if made_by_keras else tf.Variable([1.0, 2.0], name="v")
    values = own([1.0, 1.0], [2.0, 2.0]) if given == "tensors" else lockstep.PerReplica(given)
    with pytest.raises(ValueError, match="'v:0': `extended.update` got a per-replica value whose components differ"):
        strategy.extended.update(v, lambda copy, x: copy.assign(x), args=(values,))
    assert values_of(strategy, v) == [[1.0, 2.0]] * 2


def test_gradients_that_differ_are_not_applied_from_outside_of_the_replicas():
    strategy = mirrored(2)
    with strategy.scope():
        weights = keras.Variable([1.0, 2.0], name="weights")
        optimizer = keras.optimizers.SGD(0.5)
        with pytest.raises(ValueError, match="'weights:0': .* got a per-replica value whose components differ"):
            optimizer.apply([own([2.0, 0.0], [0.0, 2.0])], [weights])
    assert values_of(strategy, weights.value) == [[1.0, 2.0]] * 2


@pytest.mark.parametrize("make", [
    lambda x, w: tf.Variable(1.0, name="lost").assign_add(1.0) * x,
    lambda x, w: keras.optimizers.Adam(name="lost").apply([x], [w]),
    lambda x, w: keras.layers.Dense(1, name="lost")(tf.reshape(x, [1, 1])),
], ids=["variable", "optimizer", "layer"])
def test_what_a_step_makes_and_does_not_keep_is_refused_by_name(make):
    strategy = mirrored(2)
    with strategy.scope():
        weight = tf.Variable(1.0)

    @tf.function
    def step(x):
        make(x, weight)

    for _ in range(2):
        with pytest.raises(ValueError, match=r"'step' makes a variable in each call.*lost.*test.py:\d+"):
            strategy.run(step, args=(own(1.0, 2.0),))


def test_what_a_step_makes_and_keeps_is_made_once():
    strategy, kept = mirrored(2), []

    @tf.function
    def step(x):
        if not kept:
            kept.append(tf.Variable(1.0))
        return kept[0].assign_add(1.0) * x

    for expected in ([2.0, 4.0], [3.0, 6.0]):
        assert values_of(strategy, strategy.run(step, args=(own(1.0, 2.0),))) == expected


def test_replicas_that_make_different_variables_in_python_get_their_own():
    strategy = mirrored(2)

    def step(x):
        if replica_context().replica_id_in_sync_group == 0:
            tf.Variable(1.0)
        second = tf.Variable(2.0)
        return second * x

    assert values_of(strategy, strategy.run(step, args=(own(1.0, 2.0),))) == [2.0, 4.0]


def test_a_plain_function_that_waits_for_another_replica_in_its_own_way_is_told(caplog):
    strategy = mirrored(2, warn_seconds=0.1)
    both = threading.Barrier(2)

    def step(x):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.5)
        return x

    strategy.run(step, args=(own(1.0, 2.0),))
    assert "replica 0 has run for 0 s, and the others wait for their turn" in caplog.text
    assert "decorate it with @tf.function" in caplog.text


@pytest.mark.parametrize("traced", [False, True])
def test_a_value_of_another_dtype_is_refused_by_name(traced):
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN, name="v")

    def step(x):
        v.assign(x)

    with pytest.raises(ValueError, match=r"'v:0': `assign` in a replica got a value of dtype int32.*float32.*tf.cast"):
        strategy.run(tf.function(step) if traced else step, args=(own(1, 2),))


def test_a_sum_that_one_replica_alone_writes_names_the_variable():
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM, name="v")

    @tf.function
    def step(x):
        if replica_context().replica_id_in_sync_group == 0:
            v.assign_add(x)

    with pytest.raises(lockstep.CollectiveMismatchError, match="all-reduce SUM of float32 .*v:0.*replica 1: end of"):
        strategy.run(step, args=(own(1.0, 2.0),))


def test_an_exponential_moving_average_of_tensorflow_is_one_devices():
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(1.0)
        average = tf.train.ExponentialMovingAverage(0.5)
        average.apply([v])
        for value in (2.0, 4.0):
            v.assign(value)
            average.apply([v])
    assert float(average.average(v)) == 2.75


def test_rows_to_scatter_may_be_lists():
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable([1.0, 2.0])

    def step():
        v.scatter_add(tf.IndexedSlices([1.0], [1]))

    strategy.run(step)
    strategy.run(tf.function(step))
    assert values_of(strategy, v) == [[1.0, 4.0]] * 2
