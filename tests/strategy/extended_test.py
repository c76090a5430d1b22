"""`strategy.extended`: updates of copies, reductions to devices and variables, what belongs to the strategy."""

import pytest
import tensorflow as tf

from lockstep.strategy.values import Mirrored, PerReplica
from testing.replicas import mirrored, own, replica_context, values_of

SIZES = pytest.mark.parametrize("num_replicas", [1, 2, 4])
IN_GRAPH = pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "function"])
TRACED = pytest.mark.parametrize("traced", [True, False], ids=["traced", "python"])


def made(num_replicas, value=1.0, **kwargs):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        return strategy, tf.Variable(value, **kwargs)


def called(in_graph, function, *args):
    return (tf.function(function) if in_graph else function)(*args)


def device_of(tensor):
    return tensor.device[-5:]


# Update.


def add(copy, x, scale=1.0):
    return copy.assign_add(scale * x)


@IN_GRAPH
@SIZES
def test_update_changes_every_copy_alike(num_replicas, in_graph):
    strategy, v = made(num_replicas)

    def update(x):
        strategy.extended.update(v, add, args=(x,), kwargs={"scale": 10.0})

    called(in_graph, update, tf.constant(2.0))
    assert values_of(strategy, v) == [21.0] * num_replicas


@SIZES
def test_update_hands_each_copy_its_component_on_its_device(num_replicas):
    strategy, v = made(num_replicas)
    seen = []

    def look(copy, x):
        seen.append((copy is v.values[len(seen)], device_of(copy), device_of(x + 0.0), float(x)))

    value = Mirrored([tf.constant(3.0)] * num_replicas)
    strategy.extended.update(v, look, args=(value,))
    assert seen == [(True, f"CPU:{index}", f"CPU:{index}", 3.0) for index in range(num_replicas)]


@IN_GRAPH
@SIZES
def test_group_decides_the_form_of_the_result(num_replicas, in_graph):
    strategy, v = made(num_replicas)
    ungrouped = called(in_graph, lambda: strategy.extended.update(v, lambda copy: copy + 1.0, group=False))
    assert isinstance(ungrouped, tuple) and [float(part) for part in ungrouped] == [2.0] * num_replicas
    grouped = called(in_graph, lambda: strategy.extended.update(v, lambda copy: {"x": copy + 1.0}, group=True))
    assert values_of(strategy, grouped["x"]) == [2.0] * num_replicas
    if not in_graph:
        assert strategy.extended.update(v, lambda copy: copy) is (v if num_replicas > 1 else v.values[0])


@TRACED
@SIZES
@pytest.mark.parametrize("group", [True, False])
def test_update_in_merge_call(num_replicas, group, traced):
    strategy, v = made(num_replicas)

    def merge(merged, x):
        total = merged.extended.reduce_to("SUM", x, v)
        merged.extended.update(v, add, args=(total,), group=group)

    def step(x):
        replica_context().merge_call(merge, args=(x,))
        return v.read_value()

    result = strategy.run(tf.function(step) if traced else step, args=(own(*[2.0] * num_replicas),))
    assert values_of(strategy, result) == values_of(strategy, v) == [1.0 + 2.0 * num_replicas] * num_replicas


@TRACED
def test_trainable_variable_is_read_and_differentiated_in_merge_call(traced):
    strategy, v = made(2, 3.0)

    def merge(merged):
        with tf.GradientTape() as tape:
            loss = v * v
        return tape.gradient(loss, v)

    def step():
        return replica_context().merge_call(merge)

    assert values_of(strategy, strategy.run(tf.function(step) if traced else step)) == [6.0, 6.0]


def test_update_of_a_variable_made_elsewhere_raises():
    strategy, _ = made(2)
    for v in (tf.Variable(1.0), tf.constant(1.0)):
        with pytest.raises(ValueError, match="`extended.update`: .* is not a variable made under"):
            strategy.extended.update(v, add, args=(1.0,))
    _, other = made(2)
    with pytest.raises(ValueError, match="(?s)`extended.update`: .* this strategy's scope"):
        strategy.extended.update(other, add, args=(1.0,))


def test_update_that_would_make_the_copies_differ_is_refused():
    strategy, v = made(2)
    with pytest.raises(ValueError, match="`extended.update`.*per-replica value"):
        strategy.extended.update(v, add, args=(own(1.0, 2.0),))
    assert values_of(strategy, v) == [1.0, 1.0]


@pytest.mark.parametrize("in_merge", [False, True], ids=["replica", "merge"])
@TRACED
def test_update_in_a_replica_takes_equal_values_only(traced, in_merge):
    strategy, v = made(2)

    def update(merged, x):
        merged.extended.update(v, lambda copy, y: copy.assign(y), args=(x,))

    def step(x):
        if in_merge:
            replica_context().merge_call(update, args=(x,))
        else:
            update(strategy, x)

    step = tf.function(step) if traced else step
    strategy.run(step, args=(own(3.0, 3.0),))
    assert values_of(strategy, v) == [3.0, 3.0]
    refused = pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="'Variable:0': `extended.update` got")
    with refused:
        strategy.run(step, args=(own(1.0, 2.0),))
    assert values_of(strategy, v) == [3.0, 3.0]
    strategy.run(step, args=(tf.constant(5.0),))
    assert values_of(strategy, v) == [5.0, 5.0]


def test_update_in_a_function_refuses_different_values_when_it_runs():
    strategy, v = made(2)

    @tf.function
    def update(x):
        strategy.extended.update(v, add, args=(x,))

    update(own(1.0, 1.0))
    assert values_of(strategy, v) == [2.0, 2.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="components differ"):
        update(own(1.0, 2.0))
    assert values_of(strategy, v) == [2.0, 2.0]


def test_copies_of_the_replicas_own_may_be_updated_with_different_values():
    strategy, v = made(2, synchronization=tf.VariableSynchronization.ON_READ)
    strategy.extended.update(v, add, args=(own(1.0, 2.0),))
    assert values_of(strategy, v) == [2.0, 3.0]


# Reductions to destinations.


@IN_GRAPH
@SIZES
@pytest.mark.parametrize("op, factor", [("SUM", 1), ("MEAN", 0)])
def test_reduce_to_a_device_is_one_tensor_there(num_replicas, op, factor, in_graph):
    strategy = mirrored(num_replicas)
    value = own(*[2.0] * num_replicas)
    result = called(in_graph, lambda x: strategy.extended.reduce_to(op, x, "/device:CPU:3"), value)
    assert isinstance(result, tf.Tensor) and float(result) == 2.0 * (num_replicas if factor else 1)
    assert in_graph or device_of(result) == "CPU:3"


@IN_GRAPH
@pytest.mark.parametrize("destination", ["variable", "value", "mirrored"])
def test_reduce_to_a_variable_or_value_is_mirrored_over_its_devices(destination, in_graph):
    strategy, v = made(2)
    value = own(1.0, 3.0)
    where = {"variable": v, "value": value, "mirrored": Mirrored([tf.constant(0.0)] * 2)}[destination]
    result = called(in_graph, lambda x: strategy.extended.reduce_to("SUM", x, where), value)
    assert isinstance(result, Mirrored)
    assert values_of(strategy, result) == [4.0, 4.0]
    assert in_graph or [device_of(part) for part in result.values] == ["CPU:0", "CPU:1"]


def test_reduce_to_a_tensor_is_where_the_tensor_is():
    strategy = mirrored(2)
    with tf.device("CPU:5"):
        tensor = tf.identity(tf.constant(0.0))
    assert device_of(strategy.extended.reduce_to("SUM", own(1.0, 2.0), tensor)) == "CPU:5"


@IN_GRAPH
def test_batch_reduce_to(in_graph):
    strategy, v = made(2)
    pairs = [(own(1.0, 2.0), v), (own([3], [4]), "CPU:1")]
    results = called(in_graph, lambda: strategy.extended.batch_reduce_to("SUM", pairs))
    assert values_of(strategy, results[0]) == [3.0, 3.0] and results[1].numpy().tolist() == [7]
    assert strategy.extended.batch_reduce_to("SUM", []) == []


def test_reduce_to_of_sparse_rows_and_of_plain_values():
    strategy, v = made(2, tf.zeros([3, 1]))
    slices = PerReplica([tf.IndexedSlices([[float(n)]], [n], [3, 1]) for n in range(1, 3)])
    total = strategy.extended.reduce_to("SUM", slices, v)
    strategy.extended.update(v, lambda copy, rows: copy.scatter_add(rows), args=(total,))
    assert values_of(strategy, v) == [[[0.0], [1.0], [2.0]]] * 2
    assert float(strategy.extended.reduce_to("MEAN", tf.constant(3.0), "CPU:0")) == 3.0
    with pytest.raises(ValueError, match="`extended.reduce_to`: SUM of the single value"):
        strategy.extended.reduce_to("SUM", tf.constant(3.0), "CPU:0")


@pytest.mark.parametrize("destinations", [3, None, ["CPU:0", "CPU:1"]])
def test_destinations_of_a_wrong_type_raise(destinations):
    with pytest.raises(TypeError, match="`destinations` is .*Expected a device name"):
        mirrored(2).extended.reduce_to("SUM", own(1.0, 2.0), destinations)


@SIZES
def test_broadcast_to(num_replicas):
    strategy, v = made(num_replicas)
    result = strategy.extended.broadcast_to(tf.constant(5.0), v)
    assert values_of(strategy, result) == [5.0] * num_replicas
    assert isinstance(strategy.extended.broadcast_to(tf.constant(5.0), "CPU:2"), tf.Tensor)
    assert strategy.extended.broadcast_to(5, v) == 5


# What belongs to the strategy.


@SIZES
def test_variables_know_their_strategy(num_replicas):
    strategy, v = made(num_replicas)
    other, w = made(num_replicas)
    extended = strategy.extended
    assert extended.variable_created_in_scope(v) and not extended.variable_created_in_scope(w)
    assert not extended.variable_created_in_scope(tf.Variable(1.0))
    assert all(extended.variable_created_in_scope(copy) for copy in v.values)
    assert all(extended.value_container(copy) is v for copy in v.values) and extended.value_container(v) is v
    plain = tf.constant(1.0)
    assert extended.value_container(plain) is plain
    assert float(extended.read_var(v)) == 1.0 and other.extended.variable_created_in_scope(w)


def test_read_var_combines_what_replicas_keep_apart():
    strategy, v = made(2, 0.0, synchronization=tf.VariableSynchronization.ON_READ,
                       aggregation=tf.VariableAggregation.SUM)
    strategy.run(tf.function(lambda x: v.assign_add(x)), args=(own(1.0, 2.0),))
    assert float(strategy.extended.read_var(v)) == 3.0


@SIZES
def test_colocated_variables_are_replicated_like_the_first(num_replicas):
    strategy, v = made(num_replicas)
    with strategy.scope(), strategy.extended.colocate_vars_with(v):
        slot = tf.Variable(0.0)
    assert [device_of(copy) for copy in slot.values] == [device_of(copy) for copy in v.values]
    with strategy.scope(), pytest.raises(ValueError, match="`colocate_vars_with`.*was not made under"):
        with strategy.extended.colocate_vars_with(tf.constant(1.0)):
            pass


@SIZES
def test_call_for_each_replica_is_run(num_replicas):
    strategy = mirrored(num_replicas)
    result = strategy.extended.call_for_each_replica(
        lambda x, scale: replica_context().all_reduce("SUM", x) * scale,
        args=(own(*[1.0] * num_replicas),), kwargs={"scale": 2.0})
    assert values_of(strategy, result) == [2.0 * num_replicas] * num_replicas
