"""The plan of a step names its collectives, in order, without running it."""

import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, replica_context, split_rows


def test_plan_lists_buckets_with_dtype_bytes_algorithm_and_names():
    strategy = mirrored(2, bucket_bytes=16)

    @tf.function
    def step(x):
        context = replica_context()
        reduced = context.all_reduce("SUM", [x, tf.zeros([3]), tf.zeros([2], tf.int64), tf.zeros([1])])
        gathered = context.all_gather(x, axis=0)
        return reduced, gathered

    plan = strategy.plan(step, args=(tf.zeros([1]),))
    assert [(e.kind, e.op, e.dtype, e.algorithm, e.num_bytes, len(e.tensors)) for e in plan.exchanges] == [
        ("all-reduce", "SUM", "float32", "local", 16, 2),
        ("all-reduce", "SUM", "int64", "local", 16, 1),
        ("all-reduce", "SUM", "float32", "local", 4, 1),
        ("all-gather", "axis 0", "float32", "local", 4, 1),
    ]
    assert plan.num_bytes == 40
    assert str(plan).startswith("step on 2 replicas: 4 exchanges, 40 bytes per replica")


def test_plan_runs_nothing():
    strategy = mirrored(2)
    with strategy.scope():
        weight = tf.Variable(0.0)
    plan = strategy.plan(lambda: weight.assign_add(replica_context().all_reduce("SUM", 1.0)))
    assert len(plan.exchanges) == 1
    assert float(weight) == 0.0


@pytest.mark.parametrize("times", [1, 2])
def test_plan_enters_nested_functions_and_branches_also_when_they_were_traced_before(times):
    strategy = mirrored(2)

    @tf.function
    def nested(x):
        return replica_context().all_reduce("MAX", x)

    def step(x, go):
        return tf.cond(go, lambda: nested(x), lambda: replica_context().all_reduce("MIN", x))

    for _ in range(times):
        plan = strategy.plan(step, args=(tf.zeros([2]), tf.constant(True)))
    assert sorted(exchange.op for exchange in plan.exchanges) == ["MAX", "MIN"]


def test_plan_of_unknown_sizes_says_so():
    strategy = mirrored(2)
    plan = strategy.plan(lambda x: replica_context().all_reduce("SUM", x), args=(split_rows(strategy, range(3)),))
    assert plan.num_bytes is None
    assert "not known before running" in str(plan)


def test_plan_of_one_replica_has_no_exchange():
    plan = mirrored(1).plan(lambda x: replica_context().all_reduce("SUM", x), args=(tf.zeros([2]),))
    assert plan.exchanges == ()


def test_a_plain_function_is_planned_as_a_function_of_tensorflow():
    def step(x):
        for _ in tf.range(2):
            if x[0] > 0.0:
                x = replica_context().all_reduce("SUM", x)
        return x

    plan = mirrored(2).plan(step, (tf.ones([3]),))
    assert [exchange.num_bytes for exchange in plan.exchanges] == [12]


@pytest.mark.parametrize("implementation", ["auto", "ring", "naive"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.int32])
def test_a_reduced_value_is_written_to_a_variable_without_another_exchange(implementation, dtype):
    strategy = mirrored(2, implementation=implementation)
    with strategy.scope():
        w = tf.Variable(tf.ones([3], dtype))

    def step(x):
        total = replica_context().all_reduce("SUM", x)
        w.assign_sub(2 * total)
        w.assign(tf.where(total > 0, w + total, w))

    x = lockstep.PerReplica([tf.ones([3], dtype), 2 * tf.ones([3], dtype)])
    assert [exchange.kind for exchange in strategy.plan(step, (x,)).exchanges] == ["all-reduce"]
