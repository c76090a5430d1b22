"""Per-replica values: taking apart, joining, and how they pass through `tf.function`."""

import collections
import copy

import numpy as np
import pytest
import tensorflow as tf

import lockstep
from lockstep.strategy.values import Mirrored, PerReplica, components, is_distributed, map_structure, regroup, select
from testing.replicas import mirrored, own, values_of

Pair = collections.namedtuple("Pair", ["left", "right"])


def test_value_without_components_is_refused():
    with pytest.raises(ValueError, match="PerReplica: got no component"):
        PerReplica([])


def test_value_is_what_tensorflow_and_keras_look_for():
    value, equal = own(1, 2), Mirrored([tf.constant(1)] * 2)
    for one in (value, equal):
        assert isinstance(one, tf.distribute.DistributedValues) and is_distributed(one)
        assert isinstance(one, tf.types.experimental.distributed.PerReplica)
    assert isinstance(equal, tf.types.experimental.distributed.Mirrored)
    assert not isinstance(value, tf.types.experimental.distributed.Mirrored)
    assert "0: <tf.Tensor" in repr(value) and "1: <tf.Tensor" in str(value)


USES = {
    "convert": (tf.convert_to_tensor, ValueError), "op": (tf.reduce_sum, ValueError),
    "add": (lambda value: value + 1, TypeError), "radd": (lambda value: 1 + value, TypeError),
    "times a tensor": (lambda value: tf.constant(1) * value, ValueError), "neg": (lambda value: -value, TypeError),
    "less": (lambda value: value < 1, TypeError), "bool": (bool, TypeError), "float": (float, TypeError),
    "int": (int, TypeError), "len": (len, TypeError), "item": (lambda value: value[0], TypeError),
    "iterate": (list, TypeError), "unpack": (lambda value: (lambda x, y: x)(*value), TypeError),
    "array": (np.array, TypeError), "plus an array": (lambda value: np.ones(2) + value, TypeError),
    "format": (lambda value: f"{value:.3f}", TypeError), "numpy": (lambda value: value.numpy(), AttributeError),
    "shape": (lambda value: value.shape, AttributeError), "dtype": (lambda value: value.dtype, AttributeError),
}


@pytest.mark.parametrize("use", USES)
def test_use_as_one_tensor_raises_and_says_what_to_do(use):
    call, error = USES[use]
    with pytest.raises(error, match="a value with 2 components.*strategy.run.*strategy.reduce.*local_results"):
        call(own(1, 2))


def test_one_component_and_equal_components_are_one_tensor():
    for one in (own(3), Mirrored([tf.constant(3)] * 2)):
        assert int(tf.convert_to_tensor(one)) == int(one) == len(np.arange(3) + one) == 3
        assert [int(result) for result in (one + 1, 1 + one, tf.constant(1) + one, -one, 7 % one)] == [4, 4, 4, -3, 1]
        assert one > 2 and not one < 3 and f"{one:.1f}" == "3.0" and np.array(one, np.float32) == np.float32(3)
    assert len(own([1, 2, 3])) == 3 and int(own([1, 2])[1]) == 2


def test_value_has_no_attribute_of_a_tensor():
    for value in (own(1, 2), own(3), Mirrored([tf.constant(3)] * 2)):
        assert not any(hasattr(value, name) for name in ("shape", "dtype", "numpy", "nowhere"))
        with pytest.raises(AttributeError, match=f"'{type(value).__name__}' object has no attribute 'nowhere'"):
            value.nowhere
    first, second = copy.deepcopy(own(1, 2)).values
    assert int(first) == 1 and int(second) == 2 and f"{own(1, 2)}" == str(own(1, 2))


def test_select_walks_nests_and_leaves_the_rest():
    marker = object()
    nest = {"a": own(1, 2), "b": [Pair(own(3, 4), marker), (None, "text")]}
    part = select(1, nest)
    assert int(part["a"]) == 2 and int(part["b"][0].left) == 4
    assert isinstance(part["b"][0], Pair) and part["b"][0].right is marker and part["b"][1] == (None, "text")
    assert select(0, marker) is marker
    with mirrored(2).scope():
        v = tf.Variable(1.0)
    assert select(1, {"v": v})["v"] is v and not is_distributed(v)


def test_structures_that_cannot_be_ordered_pass_whole():
    mixed = {1: "a", "b": 2}
    assert select(0, mixed) is mixed
    assert map_structure(lambda leaf: (leaf,), mixed) == (mixed,)


def test_regroup_joins_leaf_by_leaf():
    marker = object()
    joined = regroup([{"x": Pair(tf.constant(n), marker), "y": [None, n, 5]} for n in range(2)])
    assert [int(part) for part in joined["x"].left.values] == [0, 1]
    assert isinstance(joined["x"], Pair) and joined["x"].right is marker
    assert joined["y"][0] is None and joined["y"][1].values == (0, 1) and joined["y"][2] == 5


def test_regroup_undoes_select():
    nest = {"a": own(1, 2), "b": (own(3.0, 4.0), "text")}
    again = regroup([select(index, nest) for index in range(2)])
    assert [part.numpy() for part in again["a"].values] == [1, 2]
    assert [part.numpy() for part in again["b"][0].values] == [3.0, 4.0] and again["b"][1] == "text"


def test_one_tensor_from_all_replicas_is_a_per_replica_value():
    tensor = tf.constant(1.0)
    assert regroup([tensor, tensor]).values == (tensor, tensor)
    assert regroup([tensor]) is tensor


def test_copies_of_one_variable_collapse_to_it():
    with mirrored(2).scope():
        v = tf.Variable(1.0)
        w = tf.Variable(2.0)
    assert regroup([[copy] for copy in v.values])[0] is v
    assert regroup([v, v]) is v
    mixed = regroup([v.values[0], w.values[1]])
    assert mixed.values[0] is v.values[0] and mixed.values[1] is w.values[1]


@pytest.mark.parametrize("first, other", [
    ({"a": 1}, {"b": 1}), ({"a": 1}, {"a": 1, "b": 2}), ([1, 2], [1]), ((1,), 1), ([1, [2]], [1, 2]), (None, [1])])
@pytest.mark.parametrize("odd", [1, 2])
def test_structures_that_differ_name_the_replica(first, other, odd):
    structures = [first] * 3
    structures[odd] = other
    with pytest.raises(ValueError, match=f"replica {odd} returned another structure than replica 0"):
        regroup(structures)


def test_results_that_differ_name_the_replica_through_run():
    strategy = mirrored(2)

    def step():
        number = int(tf.distribute.get_replica_context().replica_id_in_sync_group)
        return {"a": 1} if number == 0 else {"a": 1, "b": 2}

    with pytest.raises(ValueError, match="replica 1 returned another structure"):
        strategy.run(step)


# Through tf.function.


def test_value_passes_through_a_function_without_retracing():
    traces = []

    @tf.function
    def double(nest):
        traces.append(1)
        assert isinstance(nest["x"], PerReplica)
        return PerReplica([2 * part for part in nest["x"].values])

    for step in range(3):
        result = double({"x": own(float(step), 10.0 * step)})
        assert [float(part) for part in result.values] == [2.0 * step, 20.0 * step]
    assert len(traces) == 1
    double({"x": own([1.0], [2.0, 3.0])})
    assert len(traces) == 2


def test_mirrored_value_stays_mirrored_through_a_function():
    result = tf.function(lambda x: x)(Mirrored([tf.constant(1.0)] * 2))
    assert isinstance(result, Mirrored) and len(result.values) == 2


def test_spec_names_every_component():
    value = PerReplica([tf.zeros([2, 3]), tf.zeros([1, 3])])
    spec = tf.type_spec_from_value(value)
    assert spec.value_specs == (tf.TensorSpec([2, 3]), tf.TensorSpec([1, 3])) and spec.value_type is PerReplica
    assert spec == tf.type_spec_from_value(PerReplica([tf.ones([2, 3]), tf.ones([1, 3])]))
    assert spec != tf.type_spec_from_value(Mirrored([tf.zeros([2, 3]), tf.zeros([1, 3])]))
    relaxed = type(spec)(tf.TensorSpec([None, 3]), tf.TensorSpec([None, 3]))
    assert spec.is_subtype_of(relaxed) and not relaxed.is_subtype_of(spec)
    assert spec.is_compatible_with(value)


def test_signature_with_unknown_rows_is_traced_once():
    traces = []
    spec = type(tf.type_spec_from_value(own(1.0, 2.0)))(*[tf.TensorSpec([None])] * 2)

    @tf.function(input_signature=[spec])
    def total(value):
        traces.append(1)
        return tf.add_n([tf.reduce_sum(part) for part in value.values])

    for sizes in ((2, 1), (0, 3), (5, 5)):
        assert float(total(own(*[np.ones(size, np.float32) for size in sizes]))) == sum(sizes)
    assert len(traces) == 1


@pytest.mark.parametrize("make", [
    lambda n: tf.ragged.constant([[1.0] * n, [2.0]]), lambda n: tf.sparse.from_dense([[0.0, float(n)]]),
    lambda n: tf.IndexedSlices(tf.ones([n]), tf.range(n))], ids=["ragged", "sparse", "slices"])
def test_components_may_be_composite_tensors(make):
    strategy = mirrored(2)
    value = PerReplica([make(1), make(2)])
    flat = tf.nest.flatten(value, expand_composites=True)
    assert all(isinstance(part, tf.Tensor) for part in flat)
    again = tf.nest.pack_sequence_as(value, flat, expand_composites=True)
    assert [type(part) for part in again.values] == [type(part) for part in value.values]
    result = strategy.run(tf.function(lambda x: x), args=(value,))
    assert [type(part) for part in result.values] == [type(part) for part in value.values]


def test_loop_over_a_value_in_a_function():
    @tf.function
    def loop(value):
        for _ in tf.range(3):
            value = PerReplica([part + 1 for part in value.values])
        return value

    assert [int(part) for part in loop(own(1, 5)).values] == [4, 8]


def test_components_of_the_peers_values():
    peer = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    value = peer.experimental_distribute_values_from_function(lambda context: tf.constant(1.0))
    assert len(components(value)) == 2
    strategy = mirrored(2)
    result = strategy.run(tf.function(lambda x: x + 1.0), args=(value,))
    assert isinstance(result, lockstep.PerReplica) and values_of(strategy, result) == [2.0, 2.0]
