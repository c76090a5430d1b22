"""Replicas that run one by one in Python: order, hand-over at synchronisation points, errors, the way back."""

import threading

import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, own, replica_context, split_rows, values_of

SIZES = pytest.mark.parametrize("num_replicas", [2, 4])


def number():
    return int(replica_context().replica_id_in_sync_group)


@SIZES
def test_replicas_take_turns_at_every_synchronisation_point(num_replicas):
    strategy = mirrored(num_replicas)
    order = []

    def step():
        for part in "abc":
            order.append((part, number()))
            replica_context().all_reduce("SUM", tf.constant(1.0))

    for _ in range(2):
        order.clear()
        strategy.run(step)
        assert order == [(part, replica) for part in "abc" for replica in range(num_replicas)]


def test_each_replica_is_on_its_device_and_its_thread():
    strategy = mirrored(3)
    threads = []

    def step():
        threads.append(threading.current_thread().name)
        return tf.constant(0.0).device[-5:]

    assert values_of(strategy, strategy.run(step)) == ["CPU:0", "CPU:1", "CPU:2"]
    assert threads == ["replica_0", "replica_1", "replica_2"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("replica_")]


@SIZES
def test_gradients_are_taken_as_in_any_python_code(num_replicas):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        w = tf.Variable(2.0)

    def step(x):
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss((w * x) ** 2)
        assert [watched is w for watched in tape.watched_variables()] == [True]
        gradient = replica_context().all_reduce("SUM", tape.gradient(loss, w))
        w.assign_sub(0.1 * gradient)
        return gradient

    gradient = strategy.run(step, args=(split_rows(strategy, [1.0, 2.0, 3.0]),))
    assert values_of(strategy, gradient) == pytest.approx([4.0 * 14 / 3] * num_replicas)
    assert values_of(strategy, w) == pytest.approx([2.0 - 0.4 * 14 / 3] * num_replicas)


@SIZES
def test_merge_call_is_called_once_with_everybodys_values(num_replicas):
    strategy = mirrored(num_replicas)
    calls = []

    def merge(merged, x, *, label):
        calls.append([float(part) for part in merged.experimental_local_results(x)])
        assert label == "same" and tf.distribute.in_cross_replica_context()
        return merged.experimental_distribute_values_from_function(
            lambda context: tf.constant(100.0 + context.replica_id_in_sync_group))

    def step():
        return replica_context().merge_call(merge, args=(tf.constant(float(number())),), kwargs={"label": "same"})

    assert values_of(strategy, strategy.run(step)) == [100.0 + replica for replica in range(num_replicas)]
    assert calls == [[float(replica) for replica in range(num_replicas)]]


def test_variable_made_inside_is_one_for_all():
    strategy = mirrored(2)
    made = []

    def step():
        v = tf.Variable(tf.random.normal([3]))
        made.append(v)
        return v.read_value()

    first, second = values_of(strategy, strategy.run(step))
    assert made[0] is made[1] and strategy.extended.variable_created_in_scope(made[0]) and first == second


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_error_of_a_replica_comes_out_with_its_name_and_the_next_run_is_right(odd, after):
    strategy = mirrored(3)

    def step(fails):
        total = replica_context().all_reduce("SUM", tf.constant(1.0)) if after else None
        if fails and number() == odd:
            raise KeyError("broken")
        return replica_context().all_reduce("SUM", tf.constant(1.0)) if total is None else total

    with pytest.raises(KeyError, match="broken") as caught:
        strategy.run(step, args=(True,))
    assert caught.value.__notes__ == [f"Raised by replica {odd} ({strategy.extended.worker_devices[odd]})."]
    assert values_of(strategy, strategy.run(step, args=(False,))) == [3.0] * 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("replica_")]


def test_error_in_merge_call_comes_out():
    def merge(merged):
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        mirrored(2).run(lambda: replica_context().merge_call(merge))


@pytest.mark.parametrize("odd_call, what", [
    (lambda: 1, "end of the step"),
    (lambda: replica_context().all_reduce("MEAN", tf.constant(1.0)), "all-reduce MEAN"),
    (lambda: replica_context().all_reduce("SUM", tf.constant(1)), "all-reduce SUM of 1 int32 tensor"),
    (lambda: replica_context().merge_call(lambda merged: 1), "merge_call"),
])
def test_replicas_that_reach_different_points_raise_and_say_who_is_where(odd_call, what):
    strategy = mirrored(2)

    def step():
        if number():
            return odd_call()
        return replica_context().all_reduce("SUM", tf.constant(1.0))

    with pytest.raises(lockstep.CollectiveMismatchError,
                       match=f"replica 0: all-reduce SUM of 1 float32 tensor; replica 1: {what}"):
        strategy.run(step)
    total = strategy.run(lambda: replica_context().all_reduce("SUM", tf.constant(1.0)))
    assert values_of(strategy, total) == [2.0, 2.0]


@pytest.mark.parametrize("shapes", [([2], [3]), ([2], [2, 1]), ([], [1])])
def test_all_reduce_of_unequal_shapes_raises_and_does_not_broadcast(shapes):
    strategy = mirrored(2)

    def step(x):
        return replica_context().all_reduce("MAX", x)

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError, lockstep.CollectiveError), match="(?i)shape"):
        strategy.run(step, args=(lockstep.PerReplica([tf.ones(shape) for shape in shapes]),))


def test_gradient_that_only_some_replicas_take_is_named():
    strategy = mirrored(2)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = replica_context().all_reduce("SUM", x)
        return tape.gradient(total, x) if number() == 0 else x

    with pytest.raises(lockstep.CollectiveMismatchError, match="replica 1: end of the step"):
        strategy.run(step, args=(own(1.0, 2.0),))


def test_collective_inside_a_function_says_how_to_run_the_step():
    @tf.function
    def inner(x):
        return replica_context().all_reduce("SUM", x)

    with pytest.raises(RuntimeError, match="`all-reduce` was called in a tf.function.*@tf.function"):
        mirrored(2).run(lambda: inner(tf.constant(1.0)) and 1)


def test_functions_without_collectives_are_called_inside():
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(1.0)

    @tf.function
    def inner(x):
        return x * v

    result = strategy.run(lambda x: replica_context().all_reduce("SUM", inner(x)), args=(own(1.0, 2.0),))
    assert values_of(strategy, result) == [3.0, 3.0]


def test_conditions_on_the_replica_are_plain_python():
    strategy = mirrored(2)

    def step(x):
        return x * 10.0 if number() else x

    assert values_of(strategy, strategy.run(step, args=(own(1.0, 2.0),))) == [1.0, 20.0]


def test_a_run_inside_a_run_raises():
    strategy = mirrored(2)

    def inner():
        return 1

    with pytest.raises(RuntimeError, match="'inner' inside another `strategy.run`"):
        strategy.run(lambda: strategy.run(inner))


# In a graph, for arguments that have no common trace.


def test_in_a_graph_each_replica_has_a_trace_of_its_own():
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM)
    objects = lockstep.PerReplica([{"scale": 2.0}, {"scale": 5.0, "more": 1.0}])
    traces = []

    def merge(merged, x):
        return merged.extended.reduce_to("MEAN", x, x)

    def step(settings, x):
        traces.append(number_of_keys := len(settings))
        v.assign(x)
        with tf.GradientTape() as tape:
            loss = v * v * settings["scale"] * number_of_keys
        gradient = tape.gradient(loss, v)
        return replica_context().all_reduce("SUM", gradient), replica_context().merge_call(merge, args=(x,))

    @tf.function
    def outer(x):
        return strategy.run(step, args=(objects, x))

    for _ in range(2):
        total, mean = outer(own(1.0, 2.0))
        assert values_of(strategy, v) == [3.0, 3.0]
        assert values_of(strategy, total) == [2 * 3.0 * 2.0 + 2 * 3.0 * 5.0 * 2] * 2
        assert values_of(strategy, mean) == [1.5, 1.5]
    assert traces == [1, 2]


def test_in_a_graph_different_points_raise_too():
    strategy = mirrored(2)
    objects = lockstep.PerReplica([[], [1]])

    def step(numbers):
        if numbers:
            return replica_context().all_reduce("SUM", tf.constant(1.0))
        return tf.constant(1.0)

    with pytest.raises(lockstep.CollectiveMismatchError, match="replica 0: end of the step"):
        tf.function(lambda: strategy.run(step, args=(objects,)), autograph=False)()
