"""The base of all strategies: scopes and contexts, the arguments of `run`, `reduce`, local results."""

import numpy as np
import pytest
import tensorflow as tf
from absl import logging

import lockstep
from lockstep.strategy import Mirrored, PerReplica
from testing.replicas import mirrored, own, replica_context, split_rows, values_of

SIZES = (1, 2, 4)
IN_GRAPH = pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "function"])


def called(in_graph, function, *args):
    return (tf.function(function) if in_graph else function)(*args)


# Scopes and contexts.


def test_scope_makes_the_strategy_current_and_leaves_it_again():
    strategy = mirrored(2)
    default = tf.distribute.get_strategy()
    assert not tf.distribute.has_strategy() and tf.distribute.get_replica_context() is not None
    with strategy.scope():
        assert tf.distribute.get_strategy() is strategy and tf.distribute.has_strategy()
        assert tf.distribute.in_cross_replica_context() and tf.distribute.get_replica_context() is None
    assert tf.distribute.get_strategy() is default and not tf.distribute.in_cross_replica_context()


def test_scope_may_be_entered_again_by_the_same_strategy_only():
    strategy, other = mirrored(2), mirrored(2)
    with strategy.scope():
        with strategy.scope():
            v = tf.Variable(1.0)
        assert tf.distribute.get_strategy() is strategy
        with pytest.raises(RuntimeError, match="Mixing different tf.distribute.Strategy objects"):
            with other.scope():
                pass
        assert tf.distribute.get_strategy() is strategy
        w = tf.Variable(1.0)
    assert strategy.extended.variable_created_in_scope(v) and strategy.extended.variable_created_in_scope(w)
    assert not strategy.extended.variable_created_in_scope(tf.Variable(1.0))
    with other.scope():
        assert tf.distribute.get_strategy() is other


@pytest.mark.parametrize("outer, inner", [(2, 4), (1, 2), (2, 1)])
def test_run_of_another_strategy_under_a_scope_raises(outer, inner):
    told = f"Mixing .* the scope of a MirroredStrategy of {inner} .* under that of a MirroredStrategy of {outer}"
    with mirrored(outer).scope(), pytest.raises(RuntimeError, match=told):
        mirrored(inner).run(tf.function(lambda: tf.constant(1.0)))


def test_scope_left_by_an_error_is_left():
    with pytest.raises(ZeroDivisionError):
        with mirrored(2).scope():
            1 / 0
    assert not tf.distribute.has_strategy()


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "python"])
@pytest.mark.parametrize("num_replicas", SIZES)
def test_contexts_in_run_and_in_merge_call(num_replicas, traced):
    strategy = mirrored(num_replicas)
    seen = []

    def look():
        context = tf.distribute.get_replica_context()
        seen.append((tf.distribute.get_strategy() is strategy, tf.distribute.has_strategy(),
                     tf.distribute.in_cross_replica_context(), context is not None))
        return context

    def merge(merged):
        assert merged is strategy
        look()

    def step():
        context = look()
        assert context.strategy is strategy and context.num_replicas_in_sync == num_replicas
        context.merge_call(merge)
        look()

    strategy.run(tf.function(step) if traced else step)
    replica, cross = (True, True, False, True), (True, True, True, False)
    assert set(seen) == {replica, cross}
    assert seen.count(cross) == 1
    assert not tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()


def test_experimental_set_strategy_is_a_scope_without_with():
    strategy = mirrored(2)
    tf.distribute.experimental_set_strategy(strategy)
    try:
        assert tf.distribute.get_strategy() is strategy
        assert strategy.extended.variable_created_in_scope(tf.Variable(1.0))
    finally:
        tf.distribute.experimental_set_strategy(None)
    assert not tf.distribute.has_strategy()


def test_scope_cannot_be_entered_inside_run():
    strategy, other = mirrored(2), mirrored(2)

    @tf.function
    def step():
        with pytest.raises(RuntimeError, match="Mixing different"):
            with other.scope():
                pass
        with pytest.raises(RuntimeError, match="requires being in cross-replica context"):
            with strategy.scope():
                pass
        return tf.constant(1.0)

    assert values_of(strategy, strategy.run(step)) == [1.0, 1.0]


# The arguments of `run`.


@pytest.mark.parametrize("args", [tf.constant(1.0), 1, {"x": 1}, None, "ab"])
def test_args_that_are_no_list_or_tuple_raise(args):
    with pytest.raises(ValueError, match=r"`strategy.run`: `args` is .*`args=\(value,\)`"):
        mirrored(2).run(lambda *a: 1, args=args)


def test_run_options_other_than_the_defaults_are_refused():
    strategy = mirrored(2)
    assert strategy.run(lambda: 5, options=tf.distribute.RunOptions()) == 5
    with pytest.raises(ValueError, match="They concern TPUs only"):
        strategy.run(lambda: 5, options=tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False))


@pytest.mark.parametrize("method, call", [
    ("reduce", lambda strategy: strategy.reduce("SUM", tf.constant(1.0), axis=None)),
    ("gather", lambda strategy: strategy.gather(tf.constant([1.0]), axis=0)),
])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_cross_replica_calls_inside_run_name_what_to_use(num_replicas, method, call):
    strategy = mirrored(num_replicas)
    with pytest.raises(RuntimeError, match=f"`{method}`: called inside `strategy.run`.*get_replica_context"):
        strategy.run(lambda: call(strategy))


def test_whole_batches_are_announced_once(monkeypatch):
    lines = []
    monkeypatch.setattr(logging, "log_first_n", lambda level, text, n, *args: lines.append((n, text % args)))
    strategy = mirrored(2)
    step = tf.function(lambda x: x)
    strategy.run(step, args=(split_rows(strategy, [1.0, 2.0]),))
    strategy.run(step, args=(tf.constant(1.0),))
    mirrored(1).run(step, args=(tf.constant([1.0]),))
    assert not lines
    assert values_of(strategy, strategy.run(step, args=(tf.constant([1.0, 2.0, 3.0]),))) == [[1.0, 2.0, 3.0]] * 2
    (count, line), = lines
    assert count == 1
    assert "each of the 2 replicas gets the whole batch (shape (3,))" in line
    assert "strategy.experimental_distribute_dataset(dataset)" in line


# Reduce: the values, on 1, 2 and 4 replicas.

ROWS = {1: [[1.0, 4.0, 9.0]], 2: [[1.0, 4.0], [9.0]], 4: [[1.0, 4.0], [9.0], [], []]}
SCALARS = {1: [5.75], 2: [2.5, 9.0], 4: [2.5, 9.0, 3.5, 8.0]}


@IN_GRAPH
@pytest.mark.parametrize("num_replicas", SIZES)
def test_reduce_along_the_rows(num_replicas, in_graph):
    strategy, rows = mirrored(num_replicas), own(*[np.float32(part) for part in ROWS[num_replicas]])
    expected = {"MEAN": 4.6666667, "SUM": 14.0, "MAX": 9.0, "MIN": 1.0}
    for op, value in expected.items():
        for axis in (0, -1, [0], (-1,)):
            reduced = called(in_graph, lambda x: strategy.reduce(op, x, axis=axis), rows)
            assert float(reduced) == pytest.approx(value, abs=1e-6)
    assert float(called(in_graph, lambda x: strategy.reduce("PROD", x, axis=0), rows)) == 36.0


@IN_GRAPH
@pytest.mark.parametrize("num_replicas", SIZES)
def test_reduce_of_scalars(num_replicas, in_graph):
    strategy, parts = mirrored(num_replicas), SCALARS[num_replicas]
    for op, expected in {"MEAN": 5.75, "SUM": sum(parts), "MIN": min(parts), "MAX": max(parts),
                         "PROD": np.prod(parts)}.items():
        assert float(called(in_graph, lambda x: strategy.reduce(op, x, axis=None), own(*parts))) == expected


@pytest.mark.parametrize("op", [lockstep.ReduceOp.SUM, tf.distribute.ReduceOp.SUM, "SUM", "sum", "Sum"])
def test_reduce_op_in_all_spellings(op):
    assert float(mirrored(2).reduce(op, own(1.0, 2.0), axis=None)) == 3.0


@pytest.mark.parametrize("axis, sum_, mean", [
    ((0, 1), 21.0, 3.5), ([0, -1], 21.0, 3.5), (1, None, None), (0, [9.0, 12.0], [3.0, 4.0])])
def test_reduce_over_several_axes(axis, sum_, mean):
    strategy = mirrored(2)
    value = own([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]])
    if sum_ is None:  # The rows that are left do not match.
        with pytest.raises(ValueError, match=r"after reducing along \[?1.*replica 1 has shape \(1,\).*\(2,\)"):
            strategy.reduce("SUM", value, axis=axis)
        return
    assert strategy.reduce("SUM", value, axis=axis).numpy().tolist() == sum_
    assert strategy.reduce("MEAN", value, axis=axis).numpy().tolist() == mean


@IN_GRAPH
def test_reduce_of_nests(in_graph):
    strategy = mirrored(2)
    nest = {"a": own(1.0, 2.0), "b": (own(3.0, 4.0), [own(5, 6)])}
    total = called(in_graph, lambda x: strategy.reduce("SUM", x, axis=None), nest)
    assert tf.nest.map_structure(lambda x: x.numpy().item(), total) == {"a": 3.0, "b": (7.0, [11])}
    rows = [own([1.0, 4.0], [9.0]), {"x": own([1.0], [2.0])}]
    mean = strategy.reduce("MEAN", rows, axis=0)
    assert [float(mean[0]), float(mean[1]["x"])] == pytest.approx([4.6666667, 1.5])


def test_reduce_of_plain_values():
    strategy = mirrored(2)
    for op in ("MEAN", "MIN", "MAX"):
        assert float(strategy.reduce(op, tf.constant(3.0), axis=None)) == 3.0
        assert float(strategy.reduce(op, 3.0, axis=None)) == 3.0
    assert float(strategy.reduce("MEAN", tf.constant([1.0, 3.0]), axis=0)) == 2.0
    for op in ("SUM", "PROD"):
        with pytest.raises(ValueError, match=f"`reduce`: {op} of the single value .* over 2 replicas"):
            strategy.reduce(op, tf.constant(3.0), axis=None)
    assert float(strategy.reduce("SUM", 0.0, axis=None)) == 0.0 == float(strategy.reduce("SUM", 0, axis=None))
    assert float(mirrored(1).reduce("SUM", tf.constant(3.0), axis=None)) == 3.0


def test_reduce_of_a_mirrored_value_and_of_a_variable():
    strategy = mirrored(2)
    value = Mirrored((tf.constant(3.0), tf.constant(3.0)))
    assert float(strategy.reduce("MEAN", value, axis=None)) == 3.0
    assert float(strategy.reduce("SUM", value, axis=None)) == 6.0
    with strategy.scope():
        v = tf.Variable([1.0, 2.0])
    assert strategy.reduce("SUM", v, axis=None).numpy().tolist() == [2.0, 4.0]
    assert strategy.reduce("MEAN", v, axis=None).numpy().tolist() == [1.0, 2.0]


# Local results.


@pytest.mark.parametrize("num_replicas", SIZES)
def test_local_results_of_values_nests_and_plain_values(num_replicas):
    strategy = mirrored(num_replicas)
    numbers = list(range(num_replicas))
    value = PerReplica(numbers)
    assert strategy.experimental_local_results(value) == tuple(numbers)
    nest = {"a": value, "b": [value, 7]}
    assert strategy.experimental_local_results(nest) == tuple({"a": n, "b": [n, 7]} for n in numbers)
    for plain in (5, None, "text"):
        assert strategy.experimental_local_results(plain) == (plain,)
    with strategy.scope():
        v = tf.Variable(1.0)
    assert strategy.experimental_local_results(v) == v.values and len(v.values) == num_replicas


@pytest.mark.parametrize("num_replicas", SIZES)
def test_values_from_a_function(num_replicas):
    strategy = mirrored(num_replicas)
    value = strategy.experimental_distribute_values_from_function(
        lambda context: (context.replica_id_in_sync_group, context.num_replicas_in_sync))
    assert isinstance(value, tf.distribute.DistributedValues)
    assert strategy.experimental_local_results(value) == tuple((n, num_replicas) for n in range(num_replicas))
    tensors = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(float(context.replica_id_in_sync_group)))
    result = strategy.run(tf.function(lambda x: replica_context().all_reduce("SUM", x)), args=(tensors,))
    assert values_of(strategy, result) == [float(sum(range(num_replicas)))] * num_replicas
