"""How often a step is traced, and what a launch sees."""

import numpy as np
import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, replica_context, split_rows, values_of

SIZES = (1, 2, 4, 8)


@pytest.mark.parametrize("num_replicas", SIZES)
def test_step_is_traced_once_for_any_number_of_replicas(num_replicas):
    strategy = mirrored(num_replicas)
    traces = []

    @tf.function
    def step(x):
        traces.append(1)
        return 2.0 * x

    for _ in range(3):
        result = strategy.run(step, args=(split_rows(strategy, np.arange(16)),))
    assert len(traces) == 1
    assert sum(values_of(strategy, result), []) == [2.0 * row for row in range(16)]


@pytest.mark.parametrize("num_replicas", SIZES)
def test_step_in_an_outer_function_is_traced_once(num_replicas):
    strategy = mirrored(num_replicas)
    traces = []

    def step(x):
        traces.append(1)
        return tf.reduce_sum(x)

    @tf.function
    def outer(batch):
        return strategy.reduce("SUM", strategy.run(step, args=(batch,)))

    assert [float(outer(split_rows(strategy, np.arange(8.0)))) for _ in range(3)] == [28.0] * 3
    assert len(traces) == 1


@pytest.mark.parametrize("num_replicas", SIZES)
def test_partial_batches_cost_one_more_trace_in_all(num_replicas):
    strategy = mirrored(num_replicas)
    traces = []

    @tf.function
    def step(x):
        traces.append(1)
        return tf.reduce_sum(x)

    for rows in (16, 16, 3, 16, 5, 1, 7):
        total = strategy.reduce("SUM", strategy.run(step, args=(split_rows(strategy, np.arange(rows)),)))
        assert float(total) == rows * (rows - 1) / 2
    assert len(traces) == 2


@pytest.mark.parametrize("num_replicas", SIZES)
def test_step_that_makes_variables_is_traced_at_most_once_more(num_replicas):
    strategy = mirrored(num_replicas)
    traces, made = [], []

    @tf.function
    def step(x):
        traces.append(1)
        if not made:
            made.append(tf.Variable(tf.ones([2]) * 3.0))
        return made[0] * x

    with strategy.scope():
        for _ in range(3):
            result = strategy.run(step, args=(tf.constant(2.0),))
    assert len(traces) <= 2
    assert values_of(strategy, result) == [[6.0, 6.0]] * num_replicas
    assert strategy.extended.variable_created_in_scope(made[0])


def test_initial_value_from_the_step_inputs_is_refused_by_name():
    strategy = mirrored(2)

    @tf.function
    def step(x):
        tf.Variable(x, name="bad")

    with pytest.raises(ValueError, match="'bad'.*inputs of the step"):
        strategy.run(step, args=(tf.constant(2.0),))


def test_changed_number_in_a_closure_is_seen():
    strategy = mirrored(2)
    with strategy.scope():
        weight = tf.Variable(1.0)

    def train(rate):
        @tf.function
        def step():
            weight.assign_sub(rate)
        strategy.run(step)

    train(0.25)
    train(0.5)
    assert values_of(strategy, weight) == [0.25, 0.25]


def test_number_changed_in_place_in_a_closure_is_seen():
    strategy = mirrored(2)
    rate = 0.25

    @tf.function
    def step():
        return tf.constant(1.0) * rate

    first = strategy.run(step)
    rate = 0.5
    second = strategy.run(step)
    assert values_of(strategy, first) == [0.25, 0.25]
    assert values_of(strategy, second) == [0.5, 0.5]


FACTOR = 2.0


def test_changed_number_at_module_level_is_seen():
    global FACTOR
    strategy = mirrored(2)

    def make():
        @tf.function
        def step(x):
            return FACTOR * x
        return step

    first = strategy.run(make(), args=(tf.constant(1.0),))
    FACTOR = 3.0
    second = strategy.run(make(), args=(tf.constant(1.0),))
    FACTOR = 2.0
    assert values_of(strategy, first) == [2.0, 2.0]
    assert values_of(strategy, second) == [3.0, 3.0]


def test_same_lambda_defined_in_each_step_is_traced_once():
    strategy = mirrored(2)
    traces = []
    for step in range(5):
        result = strategy.run(tf.function(lambda x: traces.append(1) or x + 1), args=(tf.constant(step),))
        assert values_of(strategy, result) == [step + 1] * 2
    assert len(traces) == 1


def test_tensors_and_per_replica_values_in_a_closure_are_passed_per_call():
    strategy = mirrored(2)
    traces = []
    for step in range(4):
        shared = tf.constant(float(step))
        own = lockstep.PerReplica((tf.constant(10.0 * step), tf.constant(20.0 * step)))
        result = strategy.run(tf.function(lambda: traces.append(1) or shared + own))
        assert values_of(strategy, result) == [11.0 * step, 21.0 * step]
    assert len(traces) == 1


def test_tensors_of_an_outer_graph_are_passed_per_call():
    strategy = mirrored(2)

    @tf.function
    def outer(x):
        y = x * 2.0
        return strategy.run(lambda: y + tf.cast(replica_context().replica_id_in_sync_group, tf.float32))

    assert values_of(strategy, outer(tf.constant(1.0))) == [2.0, 3.0]
    assert values_of(strategy, outer(tf.constant(5.0))) == [10.0, 11.0]


def test_nests_keywords_and_python_objects_pass_through():
    strategy = mirrored(2)
    own = lockstep.PerReplica((tf.constant(1), tf.constant(2)))

    @tf.function
    def step(nest, *, label, scale):
        return {"value": [nest["a"] * scale, nest["b"][0]], "label": label, "none": None}

    result = strategy.run(step, args=({"a": own, "b": (tf.constant(7), "text")},), kwargs={"label": "x", "scale": 3})
    assert result["label"] == "x" and result["none"] is None
    assert values_of(strategy, result["value"][0]) == [3, 6]
    assert values_of(strategy, result["value"][1]) == [7, 7]


def test_plain_function_called_eagerly_runs_once_per_replica_in_order():
    strategy = mirrored(4)
    calls = []

    def step(x):
        assert tf.executing_eagerly()
        calls.append(int(replica_context().replica_id_in_sync_group))
        return replica_context().all_reduce("SUM", x)

    result = strategy.run(step, args=(split_rows(strategy, [1.0, 2.0, 3.0, 4.0]),))
    assert calls == [0, 1, 2, 3]
    assert values_of(strategy, result) == [[10.0]] * 4


def test_functions_run_eagerly_take_the_python_path():
    strategy = mirrored(2)
    calls = []
    tf.config.run_functions_eagerly(True)
    try:
        result = strategy.run(tf.function(lambda x: calls.append(1) or replica_context().all_reduce("MEAN", x)),
                              args=(split_rows(strategy, [1.0, 3.0]),))
    finally:
        tf.config.run_functions_eagerly(False)
    assert len(calls) == 2
    assert values_of(strategy, result) == [[2.0], [2.0]]


def test_different_python_objects_fall_back_to_one_trace_per_replica():
    strategy = mirrored(2)
    objects = lockstep.PerReplica(({"scale": 2.0}["scale"], 5.0))
    traces = []

    @tf.function
    def outer():
        return strategy.run(lambda scale: traces.append(1) or replica_context().all_reduce(
            "SUM", tf.constant(1.0) * scale), args=(objects,))

    assert values_of(strategy, outer()) == [7.0, 7.0]
    assert len(traces) == 2


def test_nested_run_raises_by_name():
    strategy = mirrored(2)

    def inner():
        return 1

    @tf.function
    def step():
        return strategy.run(inner)

    with pytest.raises(RuntimeError, match="'inner' inside another `strategy.run`"):
        strategy.run(step)


def test_arguments_that_are_no_list_raise():
    with pytest.raises(ValueError, match=r"args=\(value,\)"):
        mirrored(2).run(tf.function(lambda x: x), args=tf.constant(1.0))


def test_per_replica_value_of_another_strategy_raises():
    with pytest.raises(ValueError, match="4 components for 2 replicas"):
        mirrored(2).run(tf.function(lambda x: x), args=(split_rows(mirrored(4), range(4)),))


def test_variable_of_another_strategy_is_refused_by_name():
    one, other = mirrored(2), mirrored(4)
    with one.scope():
        weight = tf.Variable(1.0, name="weight")
    with pytest.raises(ValueError, match="'weight:0'.*another strategy"):
        other.run(tf.function(lambda: weight + 1.0))


def test_strategies_of_all_sizes_live_side_by_side():
    strategies = [mirrored(size) for size in (1, 2, 4, 2, 8)]
    for _ in range(3):
        for strategy in strategies:
            total = strategy.run(tf.function(lambda: replica_context().all_reduce("SUM", tf.ones([3]))))
            size = float(strategy.num_replicas_in_sync)
            assert values_of(strategy, total) == [[size] * 3] * int(size)


def test_nested_function_shared_by_two_strategies_uses_each_ones_replicas():
    @tf.function
    def shared(x):
        return replica_context().all_reduce("SUM", x)

    for size in (4, 2, 1, 4):
        strategy = mirrored(size)
        result = strategy.run(tf.function(lambda: shared(tf.constant(1.0))))
        assert values_of(strategy, result) == [float(size)] * size


def test_with_one_replica_the_graph_has_the_ops_of_the_function_itself():
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = lockstep.average_loss(x * x)
        gradient = tape.gradient(loss, x)
        return replica_context().all_reduce("SUM", gradient) if tf.distribute.has_strategy() else gradient

    spec = tf.TensorSpec([4], tf.float32)
    strategy = mirrored(1)
    inside = tf.function(lambda x: strategy.run(step, args=(x,))).get_concrete_function(spec)
    alone = tf.function(step).get_concrete_function(spec)
    assert [op.type for op in inside.graph.get_operations()] == [op.type for op in alone.graph.get_operations()]


def test_number_of_registered_functions_stays_flat_over_epochs():
    from tensorflow.python.eager import context
    strategy = mirrored(2)
    with strategy.scope():
        weight = tf.Variable(0.0)
    step = tf.function(lambda x: weight.assign_add(replica_context().all_reduce("SUM", tf.reduce_sum(x))))
    counts = []
    for epoch in range(200):
        strategy.run(step, args=(split_rows(strategy, [1.0, 2.0, 3.0]),))
        strategy.reduce("MEAN", split_rows(strategy, [1.0, 2.0, 3.0]), axis=0)
        counts.append(len(context.context().list_function_names()))
    assert counts[1] == counts[-1]
    assert values_of(strategy, weight) == [1200.0, 1200.0]


def test_a_function_whose_arguments_are_different_objects_synchronises_in_an_eager_launch():
    strategy = mirrored(2)

    @tf.function
    def step(number, x):
        return replica_context().all_reduce("SUM", float(number) * x)

    arguments = (lockstep.PerReplica([1, 5]), lockstep.PerReplica([tf.constant(1.0), tf.constant(2.0)]))
    assert values_of(strategy, strategy.run(step, args=arguments)) == [11.0, 11.0]


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "python"])
def test_run_inside_merge_call_raises_by_name(traced):
    strategy = mirrored(2)

    def step():
        return replica_context().merge_call(lambda merged: merged.run(lambda: 1))

    with pytest.raises(RuntimeError, match="inside another `strategy.run`"):
        strategy.run(tf.function(step) if traced else step)
