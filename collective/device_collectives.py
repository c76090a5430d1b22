"""TensorFlow's collective ops, for the algorithms `ring` and `nccl`.

The runtime pairs the calls of a group by (group key, instance key). Bodies are traced once, so a call site has one
instance key, the same on every replica; a launch at a time uses it. TensorFlow binds an instance key to the first shape
it sees, so a tensor whose shape is not static derives its key from the shape at run time.
"""

from __future__ import annotations

import tensorflow as tf

from . import _tf
from .member import Exchange, Member
from .reduce_op import ReduceOp

MERGE = {ReduceOp.SUM: "Add", ReduceOp.MEAN: "Add", ReduceOp.MIN: "Min", ReduceOp.MAX: "Max", ReduceOp.PROD: "Mul"}

# A call site owns this many instance keys; shapes that are not static choose among them.
KEYS_PER_SITE = 1 << 12


def device_all_reduce(member: Member, op: ReduceOp, tensor: tf.Tensor, what: Exchange) -> tf.Tensor:
    """Reduces `tensor` over the group's devices with CollectiveReduceV2, the hint being `what.algorithm`.

    Synchronisation: every member calls, with the same shape and dtype.
    """
    if tensor.dtype == tf.bool:
        wide = device_all_reduce(member, op, tf.cast(tensor, tf.int32), what)
        return tf.cast(wide, tf.bool)
    operand = tf.cast(tensor, op.result_dtype(tensor.dtype))
    reduced = tf.raw_ops.CollectiveReduceV2(
        input=operand,
        group_size=member.size,
        group_key=member.group_key,
        instance_key=instance_key(member.next_instance_key(), operand),
        ordering_token=[],
        merge_op=MERGE[op],
        final_op="Div" if op is ReduceOp.MEAN else "Id",
        communication_hint=what.algorithm,
    )
    _tf.annotate(reduced.op, what.to_json())
    return reduced


def instance_key(site: int, tensor: tf.Tensor) -> tf.Tensor:
    """The key of a call site for the shape that `tensor` has: an int32 scalar, equal on every replica."""
    first = site * KEYS_PER_SITE % (1 << 31)
    if tensor.shape.is_fully_defined():
        return tf.constant(first, tf.int32)
    # A polynomial in the dimensions, modulo a prime below KEYS_PER_SITE: 0 is left to static shapes.
    mixed = tf.reduce_sum(tf.shape(tensor, tf.int64) * tf.range(1, tf.rank(tensor) + 1, dtype=tf.int64) ** 2)
    return tf.cast(first + 1 + mixed % 4093, tf.int32)
