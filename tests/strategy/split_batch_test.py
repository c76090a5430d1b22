"""How a global batch is split: B = q·n + e rows over n replicas, e parts of q + 1 rows, then n - e parts of q."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from lockstep.strategy.split_batch import check_batch_spec, relaxed_rows, slice_rows, split_batch, without_rows

REPLICAS = (1, 2, 3, 4, 7)
ROWS = (0, 1, 2, 3, 4, 7, 8, 12)

Pair = collections.namedtuple("Pair", ["left", "right"])


def expected_parts(rows, num_replicas):
    whole, extra = divmod(len(rows), num_replicas)
    starts = [replica * whole + min(replica, extra) for replica in range(num_replicas + 1)]
    return [rows[start:limit] for start, limit in zip(starts, starts[1:])]


def ragged_rows(count):
    """Row i holds i % 3 values, all of them i."""
    return tf.ragged.constant([[i] * (i % 3) for i in range(count)], dtype=tf.int64, ragged_rank=1)


def sparse_rows(count):
    """Row i of 3 columns holds i + 1 in column i % 3."""
    dense = np.zeros([count, 3], np.int64)
    for i in range(count):
        dense[i, i % 3] = i + 1
    return tf.sparse.from_dense(dense)


@pytest.mark.parametrize("num_replicas", REPLICAS)
@pytest.mark.parametrize("rows", ROWS)
def test_sizes_differ_by_at_most_one_larger_first_rows_in_order(rows, num_replicas):
    parts = split_batch(tf.range(rows), num_replicas)
    assert [part.numpy().tolist() for part in parts] == expected_parts(list(range(rows)), num_replicas)


def test_seven_rows_over_four_replicas_give_two_two_two_one():
    assert [part.shape[0] for part in split_batch(tf.range(7), 4)] == [2, 2, 2, 1]


def test_two_rows_over_four_replicas_give_one_one_none_none():
    assert [part.shape[0] for part in split_batch(tf.range(2), 4)] == [1, 1, 0, 0]


@pytest.mark.parametrize("num_replicas", REPLICAS)
@pytest.mark.parametrize("rows", ROWS)
def test_unknown_row_counts_are_split_alike(rows, num_replicas):
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int32)])
    def split(batch):
        return split_batch(batch, num_replicas)

    batch = np.arange(2 * rows, dtype=np.int32).reshape([rows, 2])
    assert [part.numpy().tolist() for part in split(batch)] == expected_parts(batch.tolist(), num_replicas)


@pytest.mark.parametrize("dtype", [
    tf.bool, tf.uint8, tf.int8, tf.uint16, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64,
    tf.complex64, tf.string])
def test_every_dtype_keeps_its_values(dtype):
    batch = tf.as_string(tf.range(5)) if dtype == tf.string else tf.cast(tf.range(5), dtype)
    parts = split_batch(batch, 3)
    assert {part.dtype for part in parts} == {dtype}
    assert tf.concat(parts, axis=0).numpy().tolist() == batch.numpy().tolist()


@pytest.mark.parametrize("num_replicas", REPLICAS)
@pytest.mark.parametrize("rows", ROWS)
def test_ragged_rows_stay_whole(rows, num_replicas):
    parts = split_batch(ragged_rows(rows), num_replicas)
    assert [part.to_list() for part in parts] == expected_parts(ragged_rows(rows).to_list(), num_replicas)


def test_ragged_tensors_of_more_ragged_dimensions_are_split_along_the_first():
    rows = [[[1], [2, 3]], [], [[4]], [[], [5]]]
    parts = split_batch(tf.ragged.constant(rows), 3)
    assert [part.to_list() for part in parts] == expected_parts(rows, 3)


@pytest.mark.parametrize("num_replicas", REPLICAS)
@pytest.mark.parametrize("rows", ROWS)
def test_sparse_parts_hold_the_rows_they_stand_for(rows, num_replicas):
    parts = split_batch(sparse_rows(rows), num_replicas)
    dense = tf.sparse.to_dense(sparse_rows(rows)).numpy().tolist()
    assert [tf.sparse.to_dense(part).numpy().tolist() for part in parts] == expected_parts(dense, num_replicas)
    assert [part.dense_shape.numpy().tolist() for part in parts] == [
        [len(part), 3] for part in expected_parts(dense, num_replicas)]


def test_a_nest_keeps_its_structure_and_none():
    batch = {"x": Pair(tf.range(5), (tf.as_string(tf.range(5)),)), "ragged": ragged_rows(5), "none": None}
    parts = split_batch(batch, 2)
    for part, rows in zip(parts, ([0, 1, 2], [3, 4])):
        assert isinstance(part["x"], Pair)
        assert part["x"].left.numpy().tolist() == rows
        assert part["x"].right[0].numpy().tolist() == [str(row).encode() for row in rows]
        assert part["ragged"].to_list() == [[row] * (row % 3) for row in rows]
        assert part["none"] is None


def traced_parts(spec, num_replicas):
    traced = tf.function(lambda batch: split_batch(batch, num_replicas)).get_concrete_function(spec)
    return [tf.type_spec_from_value(part).shape.as_list() for part in traced.structured_outputs]


@pytest.mark.parametrize("spec", [
    tf.TensorSpec([8, 3]), tf.RaggedTensorSpec([8, None], ragged_rank=1), tf.SparseTensorSpec([8, 3])])
def test_static_rows_stay_static_where_they_divide(spec):
    assert traced_parts(spec, 4) == [[2, *spec.shape[1:]]] * 4


@pytest.mark.parametrize("rows", [7, None])
def test_parts_have_one_spec_where_rows_do_not_divide_or_are_unknown(rows):
    assert traced_parts(tf.TensorSpec([rows, 3]), 4) == [[None, 3]] * 4


def test_one_part_is_the_batch_itself():
    batch = (tf.range(3), tf.range(3))
    assert split_batch(batch, 1)[0] is batch


@pytest.mark.parametrize("num_replicas", [1, 4])
def test_a_scalar_is_refused_with_the_fix(num_replicas):
    with pytest.raises(ValueError, match=r"holds a scalar.*\.batch\(global_batch_size\)"):
        split_batch({"x": tf.range(4), "y": tf.constant(1)}, num_replicas)


def test_static_row_counts_that_differ_are_refused_with_both():
    with pytest.raises(ValueError, match=r"have \[3, 4\] rows"):
        split_batch((tf.range(4), tf.range(3)), 2)


def test_row_counts_that_only_running_tells_are_compared_when_it_runs():
    @tf.function(input_signature=[tf.TensorSpec([None]), tf.RaggedTensorSpec([None, None], ragged_rank=1)])
    def split(dense, ragged):
        return split_batch((dense, ragged), 2)

    split(tf.zeros([2]), tf.ragged.constant([[1.0], [2.0]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="different numbers of rows"):
        split(tf.zeros([3]), tf.ragged.constant([[1.0], [2.0]]))


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_unknown_rank_is_split_and_a_scalar_refused_when_it_runs(num_replicas):
    @tf.function(input_signature=[tf.TensorSpec(None, tf.int32)])
    def split(batch):
        return split_batch(batch, num_replicas)

    assert [part.numpy().tolist() for part in split(tf.range(3))] == expected_parts([0, 1, 2], num_replicas)
    with pytest.raises(tf.errors.InvalidArgumentError, match="an element holds a scalar"):
        split(tf.constant(1))


def test_what_has_no_rows_is_refused_by_its_type():
    with pytest.raises(TypeError, match=r"DatasetSpec.*Only dense, ragged and sparse tensors"):
        check_batch_spec(tf.data.Dataset.range(4).window(2).element_spec, "`here`")


@pytest.mark.parametrize("spec", [(), {"x": tf.type_spec_from_value(None)}])
def test_an_element_without_a_tensor_is_refused(spec):
    with pytest.raises(ValueError, match="`here`: .*hold no tensor"):
        check_batch_spec(spec, "`here`")


def test_without_rows_keeps_dtypes_and_other_dimensions():
    element = without_rows((tf.zeros([2, 3], tf.float16), ragged_rows(4), sparse_rows(4), None))
    assert element[0].shape == [0, 3] and element[0].dtype == tf.float16
    assert element[1].to_list() == []
    assert element[2].dense_shape.numpy().tolist() == [0, 3]
    assert element[3] is None


def test_a_scalar_without_rows_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="ended in the middle of a step"):
        without_rows(tf.constant(1))


def test_relaxed_rows_forgets_the_first_dimension_only():
    specs = (tf.TensorSpec([2, 3], tf.string), tf.RaggedTensorSpec([2, None], ragged_rank=1),
             tf.SparseTensorSpec([2, 3]), tf.TensorSpec([]), tf.TensorSpec(None), tf.type_spec_from_value(None))
    assert [spec.shape.as_list() for spec in relaxed_rows(specs)[:4]] == [[None, 3], [None, None], [None, 3], []]
    assert relaxed_rows(specs)[4:] == specs[4:]


def test_slice_rows_past_the_last_row_gives_no_rows():
    assert slice_rows(tf.range(3), 3, 3).shape == [0]
    assert slice_rows(sparse_rows(3), 3, 3).dense_shape.numpy().tolist() == [0, 3]
