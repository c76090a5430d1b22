"""Buckets: the groups in which tensors travel.

Gradients of a model are many and mostly small, and each exchange has a fixed price, so tensors of one dtype share an
exchange until it holds `bucket_bytes`. The plan depends only on dtypes and static shapes: every replica makes the same.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Sequence

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Tensors of one dtype that share one exchange.

    Attributes:
        dtype: Their dtype.
        indices: Their positions in the list that was planned, ascending.
        num_bytes: Their size together, or None where it is not known when the step is traced.
    """

    dtype: tf.DType
    indices: tuple[int, ...]
    num_bytes: int | None


def num_bytes(shape: tf.TensorShape, dtype: tf.DType) -> int | None:
    """Size of a tensor in bytes, or None where a dimension is unknown."""
    if not shape.is_fully_defined():
        return None
    return math.prod(shape.as_list()) * dtype.size


def plan_buckets(specs: Sequence[tuple[tf.TensorShape, tf.DType]], bucket_bytes: int) -> list[Bucket]:
    """Groups tensors by dtype, in order, into buckets of at most `bucket_bytes` bytes.

    Returns:
        Buckets in the order of their first tensor; together they hold every index once.
    """
    buckets: list[Bucket] = []
    open_bucket: dict[tf.DType, int] = {}
    for index, (shape, dtype) in enumerate(specs):
        size = num_bytes(shape, dtype)
        at = open_bucket.get(dtype)
        if at is not None and size is not None:
            held = buckets[at].num_bytes
            if held is not None and held + size <= bucket_bytes:
                buckets[at] = Bucket(dtype, buckets[at].indices + (index,), held + size)
                continue
        buckets.append(Bucket(dtype, (index,), size))
        if size is not None and size < bucket_bytes:
            open_bucket[dtype] = len(buckets) - 1
    return buckets


def flattened(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Tensors of one dtype as one: end to end in a vector, or the only one as it is."""
    return tensors[0] if len(tensors) == 1 else tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def taken_apart(flat: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Inverse of `flattened`: tensors of the shapes of `like`, which are static where there are several."""
    if len(like) == 1:
        return [flat]
    parts = tf.split(flat, [tensor.shape.num_elements() for tensor in like])
    return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, like, strict=True)]
