"""`merge_call` with functions that speak of all replicas at once; traced and in Python the numbers are the same."""

import numpy as np
import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, replica_context, split_rows, values_of

SIZES = pytest.mark.parametrize("num_replicas", [1, 2, 4])
TRACED = pytest.mark.parametrize("traced", [True, False], ids=["traced", "python"])
Aggregation, Synchronization = tf.VariableAggregation, tf.VariableSynchronization


def numbers(strategy):
    """1.0 on replica 0, 2.0 on replica 1, and so on."""
    parts = [tf.constant(1.0 + index) for index in range(strategy.num_replicas_in_sync)]
    return parts[0] if len(parts) == 1 else lockstep.PerReplica(parts)


def merged(strategy, traced, merge_fn, *args):
    """What `merge_call(merge_fn, args)` gives in a step."""
    def step(*args):
        return replica_context().merge_call(merge_fn, args=args)

    return strategy.run(tf.function(step) if traced else step, args=args)


@TRACED
@SIZES
def test_local_results_are_everybodys_values_in_the_order_of_the_replicas(num_replicas, traced):
    strategy = mirrored(num_replicas)

    def merge(strategy, x):
        parts = strategy.experimental_local_results(x)
        assert isinstance(parts, tuple) and len(parts) == num_replicas
        return tf.stack([10.0 ** index * part for index, part in enumerate(parts)])

    if traced or num_replicas == 1:  # Elsewhere the replicas get what merge_fn returns, as on tf.distribute.
        result = merged(strategy, traced, merge, numbers(strategy))
        expected = [10.0 ** index * (1.0 + index) for index in range(num_replicas)]
        assert values_of(strategy, result) == [expected] * num_replicas


@SIZES
def test_local_results_of_a_nest_keep_unequal_shapes_dtypes_and_objects(num_replicas):
    strategy = mirrored(num_replicas)

    def merge(strategy, rows):
        parts = strategy.experimental_local_results({"rows": rows, "count": tf.size(rows), "name": "same"})
        assert all(part["name"] == "same" for part in parts)
        return tf.stack([tf.reduce_sum(part["rows"]) for part in parts]), tf.stack([part["count"] for part in parts])

    rows = np.arange(1.0, 2.0 * num_replicas)  # One row less than two for each replica.
    sums, counts = merged(strategy, True, merge, split_rows(strategy, rows))
    per_replica = np.array_split(rows, num_replicas)
    assert values_of(strategy, sums) == [[part.sum() for part in per_replica]] * num_replicas
    assert values_of(strategy, counts) == [[len(part) for part in per_replica]] * num_replicas


@TRACED
@SIZES
def test_local_results_of_a_mirrored_variable_can_be_read(num_replicas, traced):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        v = tf.Variable(3.0)
    result = merged(strategy, traced, lambda strategy, x: tf.add_n(
        [tf.identity(copy) for copy in strategy.experimental_local_results(v)]), numbers(strategy))
    assert values_of(strategy, result) == [3.0 * num_replicas] * num_replicas


@TRACED
@SIZES
@pytest.mark.parametrize("op, axis, expected", [
    ("MEAN", 0, [1.0, 1.5, 2.0, 2.5, 3.0]),
    ("SUM", 0, [1.0, 3.0, 6.0, 10.0, 15.0]),
    ("MAX", -1, [1.0, 2.0, 3.0, 4.0, 5.0]),
])
def test_reduce_along_an_axis_counts_the_rows_that_there_are(num_replicas, traced, op, axis, expected):
    strategy = mirrored(num_replicas)
    for count in range(num_replicas, 6):  # A maximum of no rows is another matter.
        rows = split_rows(strategy, np.arange(1.0, 1.0 + count))
        result = merged(strategy, traced, lambda strategy, x: strategy.reduce(op, x, axis=axis), rows)
        assert values_of(strategy, result) == [expected[count - 1]] * num_replicas


@TRACED
@SIZES
@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_assign_writes_the_value_whatever_the_aggregation(num_replicas, traced, aggregation):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        v = tf.Variable(1.0, aggregation=aggregation)

    def merge(strategy, x):
        v.assign(strategy.reduce("SUM", x, axis=None) if num_replicas > 1 else x)
        v.assign_add(100.0)
        return tf.identity(v)

    total = num_replicas * (num_replicas + 1) / 2
    assert values_of(strategy, merged(strategy, traced, merge, numbers(strategy))) == [total + 100.0] * num_replicas
    assert values_of(strategy, v) == [total + 100.0] * num_replicas


@TRACED
def test_assigning_each_replicas_own_value_is_refused_by_name(traced):
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(1.0, name="weight")
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="'weight:0'.*per-replica value"):
        merged(strategy, traced, lambda strategy, x: v.assign(x), numbers(strategy))
    assert values_of(strategy, v) == [1.0, 1.0]


@TRACED
@SIZES
@pytest.mark.parametrize("aggregation, start, expected", [
    (Aggregation.SUM, 8.0, lambda n: n * (n + 1) / 2 + 8.0),
    (Aggregation.MEAN, 8.0, lambda n: (n + 1) / 2 + 8.0),
    (Aggregation.ONLY_FIRST_REPLICA, 8.0, lambda n: 9.0),
])
def test_on_read_variable_is_read_and_written_for_all_replicas(num_replicas, traced, aggregation, start, expected):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        v = tf.Variable(0.0, synchronization=Synchronization.ON_READ, aggregation=aggregation)

    def step(x):
        context = replica_context()
        context.merge_call(lambda strategy: v.assign(start))
        v.assign_add(x)
        return context.merge_call(lambda strategy: v.read_value())

    result = strategy.run(tf.function(step) if traced else step, args=(numbers(strategy),))
    assert values_of(strategy, result) == [expected(num_replicas)] * num_replicas
    assert float(v.read_value()) == expected(num_replicas)


@TRACED
@SIZES
def test_integer_counter_assigned_for_all_replicas_is_exact(num_replicas, traced):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        v = tf.Variable(0, synchronization=Synchronization.ON_READ, aggregation=Aggregation.SUM)
    merged(strategy, traced, lambda strategy, x: v.assign(7), numbers(strategy))
    assert int(v.read_value()) == 7


@TRACED
def test_on_read_variable_without_aggregation_has_no_single_value_to_read_or_write(traced):
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(0.0, synchronization=Synchronization.ON_READ, name="own")
    with pytest.raises(ValueError, match="'own:0'.*no single value"):
        merged(strategy, traced, lambda strategy, x: v.read_value(), numbers(strategy))
    with pytest.raises(ValueError, match="'own:0'.*belong to the replicas"):
        merged(strategy, traced, lambda strategy, x: v.assign(1.0), numbers(strategy))


@TRACED
def test_values_of_an_argument_are_asked_for_through_the_strategy(traced):
    strategy = mirrored(2)
    if traced:
        with pytest.raises(AttributeError, match="`merge_call`: .*`strategy.experimental_local_results"):
            merged(strategy, traced, lambda strategy, x: x.values[0], numbers(strategy))
    else:
        first = merged(strategy, traced, lambda strategy, x: x.values[0], numbers(strategy))
        assert values_of(strategy, first) == [1.0, 1.0]
