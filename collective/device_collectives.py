"""TensorFlow's collective ops, for the algorithms `ring` and `nccl`.

The runtime pairs the calls of a group by (group key, instance key). Bodies are traced once, so a call site has one
instance key, the same on every replica; a launch at a time uses it. Automatic control dependencies keep the calls of
a body in program order, since the op is stateful: no ordering token is needed.

TensorFlow binds an instance key to the first shape it sees, and another shape breaks every collective of the process.
So a tensor whose shape is not static is flattened and padded to one of `PADDED_SIZES`, each of which has a key of its
own. Replicas with different shapes would wait for each other under different keys: they agree on the shape first.
"""

from __future__ import annotations

from typing import Callable, Sequence

import tensorflow as tf

from . import _tf
from .all_gather import SHAPES, agree
from .member import Exchange, Member
from .reduce_op import ReduceOp

MERGE = {ReduceOp.SUM: "Add", ReduceOp.MEAN: "Add", ReduceOp.MIN: "Min", ReduceOp.MAX: "Max", ReduceOp.PROD: "Mul"}

ONE_SHAPE = "Every replica must pass one shape: drop or pad the last partial batch."
DTYPES = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)

# Sizes below 2**40 with four significant bits: padding adds an eighth at most.
PADDED_SIZES = (*range(1, 8), *(steps << shift for shift in range(37) for steps in range(8, 16)))

# A call site owns this many instance keys: one for a static shape, or one for each padded size.
KEYS_PER_SITE = 1 << 9


def can_reduce(op: ReduceOp, dtype: tf.DType) -> bool:
    """Whether TensorFlow's op reduces tensors of `dtype`."""
    return dtype == tf.bool or op.result_dtype(dtype) in DTYPES


def join_group(devices: Sequence[str], group_key: int, group_size: int) -> None:
    """Lets the devices of this process meet once, outside of any step, with those of other processes if there are any.

    TensorFlow resolves a group in its first collective. Were that in a step, and did a replica fail meanwhile, the
    group would stay cancelled for the life of the process.
    """
    def meet() -> list[tf.Tensor]:
        met = []
        for device in devices:
            with tf.device(device):
                # Site 0 is nobody's: instance keys start at 1.
                met.append(tf.raw_ops.CollectiveReduceV2(
                    input=tf.zeros([1]), group_size=group_size, group_key=group_key, instance_key=0,
                    ordering_token=[], merge_op="Add", final_op="Id"))
        return met

    with tf.init_scope():
        tf.compat.v1.wrap_function(meet, [])()


def device_all_reduce(member: Member, op: ReduceOp, tensor: tf.Tensor, what: Exchange, label: str) -> tf.Tensor:
    """Reduces `tensor` over the group's devices with CollectiveReduceV2, the hint being `what.algorithm`.

    Synchronisation: every member calls, with the same shape and dtype.

    Args:
        member: This replica's seat.
        op: How to reduce.
        tensor: The tensor.
        what: Says what this exchange is.
        label: What an error text calls the tensor.

    Raises:
        tf.errors.InvalidArgumentError: The shape is not static, and differs between the members.
    """
    if tensor.dtype == tf.bool:
        wide = device_all_reduce(member, op, tf.cast(tensor, tf.int32), what, label)
        return tf.cast(wide, tf.bool)
    operand = tf.cast(tensor, op.result_dtype(tensor.dtype))
    static = str(operand.shape) if operand.shape.is_fully_defined() else ""
    first_key = member.instance_key(what, static, KEYS_PER_SITE)
    if static:
        return _reduce(member, op, operand, tf.constant(first_key), what)
    shape = agree(member, tf.shape(operand), label, ONE_SHAPE, SHAPES)
    return padded(operand, shape, lambda vector, which: _reduce(member, op, vector, first_key + which, what))


def padded_size(count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The number and the size of the smallest padded vector that holds `count` elements, an int64 scalar."""
    sizes = tf.constant(PADDED_SIZES, tf.int64)
    which = tf.reduce_sum(tf.cast(sizes < count, tf.int32))
    return which, sizes[which]


def padded(operand: tf.Tensor, shape: tf.Tensor, run: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Runs a collective on an operand whose shape is not static.

    Args:
        operand: The operand.
        shape: Its shape, which is everybody's.
        run: Given the operand as a vector of one of `PADDED_SIZES`, and the number of that size.
    """
    count = tf.reduce_prod(tf.cast(shape, tf.int64))
    which, size = padded_size(count)
    vector = tf.pad(tf.reshape(operand, [-1]), [[0, size - count]])
    return tf.reshape(run(vector, which)[:count], shape)


def _reduce(member: Member, op: ReduceOp, operand: tf.Tensor, instance_key: tf.Tensor, what: Exchange) -> tf.Tensor:
    def reduce(operand: tf.Tensor) -> tf.Tensor:
        reduced = tf.raw_ops.CollectiveReduceV2(
            input=operand,
            group_size=member.size,
            group_key=member.group_key,
            instance_key=instance_key,
            ordering_token=[],
            merge_op=MERGE[op],
            final_op="Div" if op is ReduceOp.MEAN else "Id",
            communication_hint=what.algorithm,
        )
        _tf.annotate(reduced.op, what.to_json())
        return reduced

    return member.collective(instance_key, operand, reduce)
