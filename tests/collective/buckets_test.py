"""Buckets: every tensor once, one dtype each, no larger than asked, in order."""

import random

import pytest
import tensorflow as tf

from lockstep.collective.buckets import Bucket, num_bytes, plan_buckets

DTYPES = (tf.float32, tf.float16, tf.int64, tf.bool)


def spec(length, dtype=tf.float32):
    return tf.TensorShape([length]), dtype


def random_specs(seed):
    numbers = random.Random(seed)
    shapes = [[], [0], [1], [3], [2, 5], [17], [None], [None, 2], None]
    return [(tf.TensorShape(numbers.choice(shapes)), numbers.choice(DTYPES)) for _ in range(numbers.randrange(60))]


@pytest.mark.parametrize("bucket_bytes", [0, 1, 8, 40, 1000])
@pytest.mark.parametrize("seed", range(20))
def test_plan_keeps_the_laws_for_random_tensors(seed, bucket_bytes):
    specs = random_specs(seed)
    plan = plan_buckets(specs, bucket_bytes)
    assert sorted(index for bucket in plan for index in bucket.indices) == list(range(len(specs)))
    assert [bucket.indices[0] for bucket in plan] == sorted(bucket.indices[0] for bucket in plan)
    for bucket in plan:
        assert list(bucket.indices) == sorted(bucket.indices)
        assert {specs[index][1] for index in bucket.indices} == {bucket.dtype}
        sizes = [num_bytes(*specs[index]) for index in bucket.indices]
        if None in sizes:
            assert len(sizes) == 1 and bucket.num_bytes is None
        else:
            assert bucket.num_bytes == sum(sizes)
            assert len(sizes) == 1 or sum(sizes) <= bucket_bytes
    assert plan == plan_buckets(specs, bucket_bytes)


def test_no_tensors_need_no_bucket():
    assert plan_buckets([], 100) == []


def test_bucket_is_filled_to_the_last_byte():
    assert plan_buckets([spec(2), spec(2), spec(1)], 16) == [
        Bucket(tf.float32, (0, 1), 16), Bucket(tf.float32, (2,), 4)]


def test_zero_puts_each_tensor_in_a_bucket_of_its_own():
    assert [bucket.indices for bucket in plan_buckets([spec(1), spec(0), spec(0), spec(2)], 0)] == [
        (0,), (1,), (2,), (3,)]


def test_tensor_that_is_too_large_is_alone_and_the_open_bucket_stays_open():
    plan = plan_buckets([spec(1), spec(100), spec(2)], 16)
    assert [bucket.indices for bucket in plan] == [(0, 2), (1,)]


def test_dtypes_interleave_without_closing_each_others_buckets():
    plan = plan_buckets([spec(1), spec(1, tf.int32), spec(1), spec(1, tf.int32)], 100)
    assert [(bucket.dtype, bucket.indices) for bucket in plan] == [(tf.float32, (0, 2)), (tf.int32, (1, 3))]


def test_unknown_size_is_alone():
    plan = plan_buckets([spec(1), spec(None), spec(None), spec(1)], 100)
    assert [(bucket.indices, bucket.num_bytes) for bucket in plan] == [((0, 3), 8), ((1,), None), ((2,), None)]


@pytest.mark.parametrize("shape, dtype, expected", [
    ([], tf.float64, 8), ([0], tf.float32, 0), ([3, 5], tf.float16, 30), ([2], tf.bool, 2), ([None], tf.int32, None),
    (None, tf.int32, None)])
def test_num_bytes(shape, dtype, expected):
    assert num_bytes(tf.TensorShape(shape), dtype) == expected
