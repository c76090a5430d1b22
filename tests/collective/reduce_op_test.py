"""Reduce ops: their names, the dtypes they mean something for, and the reference arithmetic."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep.collective import ReduceOp
from lockstep.collective.reduce_op import combine, combine_slices, mean_of_total

NUMBERS = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int32, tf.int64, tf.uint8, tf.complex64)


def parts(dtype, num_parts=3):
    """Element j of part r is 1 + r + num_parts * j."""
    return [tf.cast([1 + r + num_parts * j for j in range(4)], dtype) for r in range(num_parts)]


@pytest.mark.parametrize("op", list(ReduceOp))
def test_op_is_found_by_name_in_any_case_and_by_itself(op):
    assert ReduceOp.of(op) is ReduceOp.of(op.name) is ReduceOp.of(op.name.lower()) is op


@pytest.mark.parametrize("peer", list(tf.distribute.ReduceOp))
def test_op_of_tf_distribute_is_taken(peer):
    assert ReduceOp.of(peer).name == peer.name


@pytest.mark.parametrize("value", ["AVERAGE", "", None, 1, 2.5, object()])
def test_unknown_op_raises_with_the_value_and_the_names(value):
    with pytest.raises(ValueError, match="(?s)`reduce_op`: got .*SUM, MEAN, MIN, MAX, PROD"):
        ReduceOp.of(value)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", list(ReduceOp))
def test_numbers_have_every_op_but_complex_ones_have_no_order(op, dtype):
    if dtype.is_complex and op in (ReduceOp.MIN, ReduceOp.MAX):
        with pytest.raises(TypeError, match=f"here: {op.name} of complex64. Complex numbers have no order"):
            op.check_dtype(dtype, "here")
    else:
        op.check_dtype(dtype, "here")


@pytest.mark.parametrize("op", list(ReduceOp))
def test_bool_has_min_and_max_only(op):
    if op in (ReduceOp.MIN, ReduceOp.MAX):
        op.check_dtype(tf.bool, "here")
    else:
        with pytest.raises(TypeError, match=f"here: {op.name} of bool.*MIN .and. or MAX .or."):
            op.check_dtype(tf.bool, "here")


@pytest.mark.parametrize("op", list(ReduceOp))
def test_strings_have_no_op(op):
    with pytest.raises(TypeError, match=f"here: {op.name} of string. {op.name} needs numbers. Cast"):
        op.check_dtype(tf.string, "here")


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", list(ReduceOp))
def test_result_has_the_dtype_of_the_operands_but_for_the_mean_of_integers(op, dtype):
    expected = tf.float64 if op is ReduceOp.MEAN and dtype.is_integer else dtype
    assert op.result_dtype(dtype) == expected
    if not (dtype.is_complex and op in (ReduceOp.MIN, ReduceOp.MAX)):
        assert combine(op, parts(dtype)).dtype == expected


@pytest.mark.parametrize("dtype", NUMBERS)
def test_combine_gives_the_closed_form(dtype):
    # Part r holds 1 + r + 3j: the sum is 6 + 9j, the mean 2 + 3j.
    expected = {
        ReduceOp.SUM: [6, 15, 24, 33],
        ReduceOp.MEAN: [2, 5, 8, 11],
        ReduceOp.MIN: [1, 4, 7, 10],
        ReduceOp.MAX: [3, 6, 9, 12],
    }
    for op, numbers in expected.items():
        if dtype.is_complex and op in (ReduceOp.MIN, ReduceOp.MAX):
            continue
        assert combine(op, parts(dtype)).numpy().tolist() == numbers, op
    product = combine(ReduceOp.PROD, [tf.cast([2, 3], dtype), tf.cast([5, 7], dtype), tf.cast([3, 1], dtype)])
    assert product.numpy().tolist() == [30, 21]


@pytest.mark.parametrize("op", list(ReduceOp))
def test_one_part_is_itself(op):
    one, = parts(tf.float32, 1)
    assert combine(op, [one]).numpy().tolist() == one.numpy().tolist()


@pytest.mark.parametrize("dtype, largest", [(tf.uint8, 200), (tf.int8, 120), (tf.int32, 2 ** 31 - 1)])
def test_mean_of_large_integers_does_not_overflow(dtype, largest):
    mean = combine(ReduceOp.MEAN, [tf.constant([largest], dtype)] * 3)
    assert mean.numpy().tolist() == [float(largest)]


def test_bool_min_is_and_max_is_or():
    table = [tf.constant([True, True, False, False]), tf.constant([True, False, True, False])]
    assert combine(ReduceOp.MIN, table).numpy().tolist() == [True, False, False, False]
    assert combine(ReduceOp.MAX, table).numpy().tolist() == [True, True, True, False]


def test_sum_adds_in_the_order_of_the_parts():
    numbers = np.array([1e8, 1.0, -1e8, 3.0], np.float32)
    in_order = np.float32(0)
    for number in numbers:
        in_order = np.float32(in_order + number)
    assert float(combine(ReduceOp.SUM, [tf.constant(number) for number in numbers])) == float(in_order) == 3.0
    assert float(combine(ReduceOp.SUM, [tf.constant(number) for number in numbers[[0, 2, 1, 3]]])) == 4.0


def test_mean_of_total_divides_integers_in_float64():
    assert mean_of_total(tf.constant([7]), 2).numpy().tolist() == [3.5]
    assert mean_of_total(tf.constant([7.0]), tf.constant(2)).dtype == tf.float32


def slices(rows, first):
    return tf.IndexedSlices(tf.fill([rows, 2], float(first)), tf.range(first, first + rows))


def test_slices_are_joined_in_order_with_unequal_and_zero_row_counts():
    joined = combine_slices(ReduceOp.SUM, [slices(2, 1), slices(0, 5), slices(1, 9)], "here")
    assert joined.values.numpy().tolist() == [[1, 1], [1, 1], [9, 9]]
    assert joined.indices.numpy().tolist() == [1, 2, 9]


def test_mean_of_slices_divides_by_the_number_of_parts():
    joined = combine_slices(ReduceOp.MEAN, [slices(1, 4), slices(1, 8)], "here")
    assert joined.values.numpy().tolist() == [[2, 2], [4, 4]]


@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PROD])
def test_other_ops_of_slices_raise(op):
    with pytest.raises(TypeError, match=f"here: {op.name} of tf.IndexedSlices. Only SUM and MEAN"):
        combine_slices(op, [slices(1, 1)] * 2, "here")
    with pytest.raises(TypeError, match="tf.convert_to_tensor"):
        op.check_sparse("here")
