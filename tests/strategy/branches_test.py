"""Writes under conditions: copies never drift apart, and conditions that are equal cost nothing."""

import keras
import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, own, replica_context, values_of

Aggregation = tf.VariableAggregation
AGGREGATIONS = (Aggregation.NONE, Aggregation.MEAN, Aggregation.ONLY_FIRST_REPLICA)


def made(aggregation=Aggregation.NONE):
    strategy = mirrored(2)
    with strategy.scope():
        return strategy, tf.Variable(0.0, aggregation=aggregation, name="v")


def exchanges(strategy, step, *args):
    return [str(exchange) for exchange in strategy.plan(step, args).exchanges]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_write_that_not_all_replicas_come_to_is_refused_by_name_and_the_next_step_is_right(aggregation):
    strategy, v = made(aggregation)

    @tf.function
    def step(x):
        if x > 1.5:
            v.assign(7.0)

    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="'v:0': written under a condition.*By rank: 0, 1"):
            strategy.run(step, args=(own(1.0, 2.0),))
        assert values_of(strategy, v) == [0.0, 0.0]
    strategy.run(step, args=(own(1.0, 1.5),))
    assert values_of(strategy, v) == [0.0, 0.0]
    strategy.run(step, args=(own(2.0, 3.0),))
    assert values_of(strategy, v) == [7.0, 7.0]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_plain_function_whose_replicas_part_before_a_write_is_refused_by_name(aggregation):
    strategy, v = made(aggregation)

    def step(x):
        if x > 1.5:
            v.assign(7.0)

    with pytest.raises(lockstep.CollectiveMismatchError, match="replica 0: end of the step; replica 1: "):
        strategy.run(step, args=(own(1.0, 2.0),))
    assert values_of(strategy, v) == [0.0, 0.0]
    strategy.run(step, args=(own(2.0, 3.0),))
    assert values_of(strategy, v) == [7.0, 7.0]


def test_a_condition_inside_a_loop_is_compared_in_each_round():
    strategy, v = made()

    @tf.function
    def step(x):
        for index in tf.range(3):
            if x > tf.cast(index, tf.float32):
                v.assign_add(1.0)

    strategy.run(step, args=(own(1.5, 1.7),))
    assert values_of(strategy, v) == [2.0, 2.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="written under a condition"):
        strategy.run(step, args=(own(1.5, 2.5),))


def test_a_case_is_compared_as_a_branch_is():
    strategy, v = made()

    @tf.function
    def step(which):
        tf.switch_case(which, [lambda: v.assign(1.0), lambda: v.assign(2.0)])

    strategy.run(step, args=(own(1, 1),))
    assert values_of(strategy, v) == [2.0, 2.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="written under a condition.*By rank: 0, 1"):
        strategy.run(step, args=(own(0, 1),))


def counts_to(v, number):
    for _ in tf.range(tf.cast(number, tf.int32)):
        v.assign_add(1.0)


def doubles_up_to_ten(v, number):
    while number < 10.0:
        number *= 2.0
        v.assign_add(1.0)


@pytest.mark.parametrize("loop", [counts_to, doubles_up_to_ten])
def test_a_loop_whose_number_of_rounds_may_differ_is_refused_when_it_is_traced(loop):
    strategy, v = made()

    with pytest.raises(RuntimeError, match="'v:0': written in a loop whose number of rounds may differ"):
        strategy.run(tf.function(loop), args=(v, own(1.0, 2.0)))


def test_conditions_and_loops_that_are_equal_by_construction_exchange_nothing():
    strategy, v = made()
    with strategy.scope():
        limit = tf.Variable(2.0)

    def step(x, flag):
        total = 0.0
        for _ in tf.range(3):
            total += x
            if v < limit + 1.0:
                v.assign_add(1.0)
        if flag and v > 1.0:
            limit.assign(3.0)
        while v < 10.0:
            v.assign_add(limit)
        return total

    assert exchanges(strategy, step, own(1.0, 2.0), tf.constant(True)) == []
    result = strategy.run(tf.function(step), args=(own(1.0, 2.0), tf.constant(True)))
    assert values_of(strategy, result) == [3.0, 6.0]
    assert values_of(strategy, v) == [12.0, 12.0]


def test_a_condition_that_was_reduced_is_equal():
    strategy, v = made()

    def step(x):
        if replica_context().all_reduce("SUM", x) > 2.5:
            v.assign(7.0)

    assert len(exchanges(strategy, step, own(1.0, 2.0))) == 1
    strategy.run(tf.function(step), args=(own(1.0, 2.0),))
    assert values_of(strategy, v) == [7.0, 7.0]


def test_a_variable_of_keras_is_watched_too():
    strategy = mirrored(2)
    with strategy.scope():
        weights = keras.Variable([1.0, 2.0], name="weights")

    @tf.function
    def step(x):
        if x > 1.5:
            weights.assign([7.0, 7.0])

    with pytest.raises(tf.errors.InvalidArgumentError, match="'weights:0': written under a condition"):
        strategy.run(step, args=(own(1.0, 2.0),))
    assert values_of(strategy, weights.value) == [[1.0, 2.0]] * 2


def test_a_variable_of_each_replicas_own_may_be_written_anywhere():
    strategy = mirrored(2)
    with strategy.scope():
        count = tf.Variable(0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=Aggregation.SUM)

    def step(x):
        if x > 1.5:
            count.assign_add(1.0)
        for _ in tf.range(tf.cast(x, tf.int32)):
            count.assign_add(1.0)

    assert exchanges(strategy, step, own(1.0, 2.0)) == []
    strategy.run(tf.function(step), args=(own(1.0, 2.0),))
    assert values_of(strategy, count) == [1.0, 3.0]
