"""The arithmetic of `Strategy.reduce` and `Strategy.gather` on components that are all at hand."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep.strategy import Mirrored, PerReplica
from testing.replicas import mirrored, own

IN_GRAPH = pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "function"])


def slices(values, indices):
    return tf.IndexedSlices(tf.constant(values), tf.constant(indices, tf.int64), tf.constant([4, 1], tf.int64))


def called(in_graph, function, *args):
    return (tf.function(function) if in_graph else function)(*args)


# Reduce: dtypes.


@IN_GRAPH
@pytest.mark.parametrize("num_replicas", [1, 2, 4])
@pytest.mark.parametrize("axis", [None, 0])
def test_mean_of_integers_is_float64_on_any_number_of_replicas(num_replicas, axis, in_graph):
    strategy = mirrored(num_replicas)
    value = own(*[[number] for number in range(1, num_replicas + 1)])
    mean = called(in_graph, lambda x: strategy.reduce("MEAN", x, axis=axis), value)
    assert mean.dtype == tf.float64
    assert np.squeeze(mean.numpy()) == (1 + num_replicas) / 2


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64, tf.int64, tf.complex64])
@pytest.mark.parametrize("axis", [None, 0])
def test_sums_keep_the_dtype(dtype, axis):
    total = mirrored(2).reduce("SUM", own([1, 2], [3, 4], dtype=dtype), axis=axis)
    assert total.dtype == dtype
    assert np.sum(total.numpy()) == 10


@pytest.mark.parametrize("op, expected", [("MIN", [False, True]), ("MAX", [True, True])])
def test_booleans_have_and_and_or(op, expected):
    assert mirrored(2).reduce(op, own([True, True], [False, True]), axis=None).numpy().tolist() == expected


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("op, value, match", [
    ("SUM", [True], "SUM of bool"), ("MEAN", [True], "MEAN of bool"), ("SUM", ["a"], "SUM of string"),
    ("MIN", ["a"], "MIN of string"), ("MAX", [1j], "MAX of complex128")])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_ops_that_mean_nothing_for_a_dtype_raise(num_replicas, op, value, match, axis):
    with pytest.raises(TypeError, match=f"`reduce`: {match}"):
        mirrored(num_replicas).reduce(op, own(*[value] * num_replicas), axis=axis)


# Reduce: shapes and axes.


def test_unequal_shapes_without_an_axis_raise_and_say_what_to_do():
    with pytest.raises(ValueError, match=r"replica 1 has shape \(1,\), replica 0 has \(2,\).*such as `axis=0`"):
        mirrored(2).reduce("SUM", own([1.0, 4.0], [9.0]), axis=None)


def test_unequal_shapes_inside_a_nest_name_the_replica_too():
    with pytest.raises(ValueError, match="replica 3 has shape"):
        mirrored(4).reduce("MEAN", {"x": own([1.0], [1.0], [1.0], [1.0, 2.0])}, axis=None)


@pytest.mark.parametrize("axis, match", [(1, "`axis` is 1.*Expected -1 to 0"), (-2, "`axis` is -2"),
                                         ([0, 3], "`axis` is 3")])
def test_axes_that_are_not_there_raise(axis, match):
    with pytest.raises(ValueError, match=match):
        mirrored(2).reduce("SUM", own([1.0], [2.0]), axis=axis)


def test_scalars_have_no_axis():
    with pytest.raises(ValueError, match="A scalar has no axis: use `axis=None`"):
        mirrored(2).reduce("MEAN", own(1.0, 2.0), axis=0)


@pytest.mark.parametrize("axis", ["0", 0.0, True, {0}, [0, "1"], [], ()])
def test_axes_of_a_wrong_type_raise(axis):
    with pytest.raises(TypeError, match="Expected None, an integer, or a list or tuple of integers"):
        mirrored(2).reduce("SUM", own([1.0], [2.0]), axis=axis)


def test_an_axis_named_twice_raises():
    with pytest.raises(ValueError, match="twice"):
        mirrored(2).reduce("MEAN", own([1.0, 2.0], [3.0, 4.0]), axis=[0, -1])


@pytest.mark.parametrize("op", ["sub", "AVG", 3, None])
def test_unknown_ops_raise_and_say_which_there_are(op):
    with pytest.raises(ValueError, match="Expected one of SUM, MEAN, MIN, MAX, PROD"):
        mirrored(2).reduce(op, own(1.0, 2.0), axis=None)


def test_shapes_that_tracing_does_not_know():
    strategy = mirrored(2)
    spec = PerReplica([tf.zeros([0, 2])] * 2)._type_spec

    @tf.function(input_signature=[type(spec)(*[tf.TensorSpec([None, None])] * 2)])
    def mean(x):
        return strategy.reduce("MEAN", x, axis=0), strategy.reduce("SUM", x, axis=[0, 1]), strategy.gather(x, axis=0)

    rows, total, joined = mean(own([[1.0, 2.0], [3.0, 4.0]], [[5.0, 9.0]]))
    assert rows.numpy().tolist() == [3.0, 5.0] and float(total) == 24.0
    assert joined.numpy().tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]]


def test_mean_of_no_rows_at_all_is_no_number():
    assert np.isnan(mirrored(2).reduce("MEAN", own([], [], dtype=tf.float32), axis=0).numpy())


# Reduce: sparse and other values.


def test_sparse_rows_are_put_side_by_side():
    strategy = mirrored(2)
    value = PerReplica([slices([[1.0], [2.0]], [0, 3]), slices([[4.0]], [0])])
    total = strategy.reduce("SUM", value, axis=None)
    assert isinstance(total, tf.IndexedSlices)
    assert tf.convert_to_tensor(total).numpy().tolist() == [[5.0], [0.0], [0.0], [2.0]]
    mean = strategy.reduce("MEAN", value, axis=None)
    assert tf.convert_to_tensor(mean).numpy().tolist() == [[2.5], [0.0], [0.0], [1.0]]
    with pytest.raises(NotImplementedError, match="`reduce`: tf.IndexedSlices.*convert_to_tensor"):
        strategy.reduce("SUM", value, axis=0)


@pytest.mark.parametrize("part", [tf.ragged.constant([[1.0], [2.0, 3.0]]), tf.sparse.from_dense([[1.0]])])
def test_ragged_and_sparse_tensors_are_refused_by_name(part):
    for axis in (None, 0):
        with pytest.raises(TypeError, match=f"`reduce`: got a {type(part).__name__}"):
            mirrored(2).reduce("SUM", PerReplica([part, part]), axis=axis)


def test_values_of_the_peer_are_taken_too():
    peer = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    value = peer.experimental_distribute_values_from_function(
        lambda context: tf.constant(float(context.replica_id_in_sync_group + 1)))
    assert float(mirrored(2).reduce("SUM", value, axis=None)) == 3.0


# Gather.


@IN_GRAPH
@pytest.mark.parametrize("axis", [0, -2])
@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_gather_joins_unequal_parts_in_order(num_replicas, axis, in_graph):
    strategy = mirrored(num_replicas)
    parts = [np.full([size, 2], size) for size in range(num_replicas)]
    joined = called(in_graph, lambda x: strategy.gather(x, axis=axis), own(*parts, dtype=tf.int32))
    assert joined.dtype == tf.int32
    assert joined.numpy().tolist() == np.concatenate(parts).tolist()


@pytest.mark.parametrize("parts", [([True], [False]), (["a", "b"], ["c"]), ([1j], [2j])])
def test_gather_of_any_dtype(parts):
    joined = mirrored(2).gather(own(*parts), axis=0)
    assert joined.numpy().tolist() == [
        part.encode() if isinstance(part, str) else part for part in parts[0] + parts[1]]


def test_gather_of_nests_plain_values_and_mirrored_values():
    strategy = mirrored(2)
    nest = strategy.gather({"x": own([1], [2, 3]), "y": [own([4], [5])]}, axis=0)
    assert nest["x"].numpy().tolist() == [1, 2, 3] and nest["y"][0].numpy().tolist() == [4, 5]
    assert strategy.gather(tf.constant([1, 2]), axis=0).numpy().tolist() == [1, 2]
    assert strategy.gather(Mirrored([tf.constant([1])] * 2), axis=0).numpy().tolist() == [1, 1]


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("part, axis, error, match", [
    (1.0, 0, ValueError, "`gather`: got a scalar.*expand_dims"),
    ([1.0], 1, ValueError, "`gather`: `axis` is 1.*Expected -1 to 0"),
    (tf.IndexedSlices(tf.constant([1.0]), tf.constant([0])), 0, NotImplementedError, "`gather`: tf.IndexedSlices"),
])
def test_gather_of_what_has_no_rows_raises(num_replicas, part, axis, error, match):
    part = part if isinstance(part, tf.IndexedSlices) else tf.constant(part)
    with pytest.raises(error, match=match):
        mirrored(num_replicas).gather(PerReplica([part] * num_replicas), axis=axis)


def test_gather_of_parts_that_differ_elsewhere_names_the_replica_and_spoils_nothing():
    strategy = mirrored(2)
    with pytest.raises(ValueError, match=r"replica 1 has shape \(1, 3\), replica 0 has \(1, 2\).*along axis 0"):
        strategy.gather(own([[1.0, 2.0]], [[1.0, 2.0, 3.0]]), axis=0)
    with pytest.raises(ValueError, match="replica 1 has shape"):
        strategy.gather(own([[1.0]], [1.0]), axis=0)
    assert strategy.gather(own([1.0], [2.0]), axis=0).numpy().tolist() == [1.0, 2.0]
