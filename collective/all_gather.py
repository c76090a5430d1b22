"""All-gather, broadcast and agreement: the collectives that move values without arithmetic."""

from __future__ import annotations

from typing import Sequence

import tensorflow as tf

from .buckets import num_bytes
from .member import Exchange, Member
from .options import is_integer


def _what(kind: str, tensor: tf.Tensor, name: str = "") -> Exchange:
    label = name or (f"shape {tuple(tensor.shape)}" if tf.executing_eagerly() else tensor.name)
    return Exchange(kind, "", tensor.dtype.name, "local", num_bytes(tensor.shape, tensor.dtype), (label,))


def all_gather(member: Member, tensor: tf.Tensor, axis: int) -> tf.Tensor:
    """Concatenates everybody's tensors along `axis`, in rank order.

    Synchronisation: every member calls, with one dtype and rank; only the sizes along `axis` may differ.

    Args:
        member: This replica's seat.
        tensor: Any dtype, rank at least 1.
        axis: The axis to join, negative values count from the end.

    Returns:
        The joined tensor, the same on every member.

    Raises:
        ValueError: A scalar, or an axis that the tensor does not have.
    """
    axis = checked_axis(tensor, axis, "all_gather")
    if member.size == 1:
        return tensor
    gathered, = member.exchange([tensor], lambda parts: [tf.concat([part for part, in parts], axis)],
                                _what("all-gather", tensor))
    if tensor.shape.rank is not None:
        gathered.set_shape([None if index == axis else dim for index, dim in enumerate(tensor.shape)])
    return gathered


def checked_axis(tensor: tf.Tensor, axis: int, where: str) -> int:
    """The non-negative form of `axis`, after checking that `tensor` has it."""
    rank = tensor.shape.rank
    if not is_integer(axis):
        raise TypeError(f"`{where}`: `axis` is {axis!r}. Expected an integer.")
    if rank == 0:
        raise ValueError(f"`{where}`: got a scalar. A scalar has no axis to join along. "
                         "Give it one with `tf.expand_dims(value, 0)`.")
    if rank is None:
        return axis
    if not -rank <= axis < rank:
        raise ValueError(f"`{where}`: `axis` is {axis} for a value of shape {tensor.shape}. "
                         f"Expected {-rank} to {rank - 1}.")
    return axis % rank


def all_components(member: Member, tensors: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
    """Gives every member everybody's tensors, by rank, as they are: shapes may differ.

    Synchronisation: every member calls, with the same dtypes.
    """
    if member.size == 1 or not tensors:
        return [list(tensors)] * member.size
    gathered = member.exchange(tensors, lambda parts: [tensor for part in parts for tensor in part],
                               _what("all-gather", tensors[0]), [tensor.dtype for tensor in tensors] * member.size)
    for result, tensor in zip(gathered, list(tensors) * member.size, strict=True):
        result.set_shape(tensor.shape)
    return [gathered[start:start + len(tensors)] for start in range(0, len(gathered), len(tensors))]


def broadcast(member: Member, tensors: Sequence[tf.Tensor], root: int, name: str = "") -> list[tf.Tensor]:
    """Gives every member the tensors of member `root`.

    Synchronisation: every member calls, with the same dtypes.
    """
    if member.size == 1:
        return list(tensors)
    results = member.broadcast(tensors, root, _what("broadcast", tensors[0], name))
    for result, tensor in zip(results, tensors):
        if result.shape.rank is None:  # Else the root's shape is known, and it is the one that counts.
            result.set_shape(tensor.shape)
    return results


def agree(member: Member, tensor: tf.Tensor, name: str, advice: str) -> tf.Tensor:
    """Returns `tensor` after checking that it has the same shape and values, as `same_bits` says, on every member.

    Synchronisation: every member calls, with the same dtype.

    Raises:
        tf.errors.InvalidArgumentError: The values differ; the text is `name`, the values by rank, and `advice`.
    """
    if member.size == 1:
        return tensor

    agreed, = member.exchange([tensor], lambda parts: parts[0], _what("agree", tensor, name),
                              verdict=lambda parts: difference([part for part, in parts], name, advice))
    agreed.set_shape(tensor.shape)
    return agreed


def difference(values: Sequence[tf.Tensor], name: str, advice: str, whose: str = "replicas") -> tf.Tensor:
    """A string scalar: "" where all values are the same, else `name`, the values by rank, and `advice`."""
    if len(values) == 1:
        return tf.constant("")
    same = tf.reduce_all(tf.stack([same_bits(values[0], other) for other in values[1:]]))
    shown = tf.strings.join([tf.strings.format("{}", value, summarize=3) for value in values], separator=", ")
    return tf.cond(same, lambda: tf.constant(""), lambda: tf.strings.join(
        [f"{name}: the {whose}' values differ. By rank: ", shown, f". {advice}"]))


def same_bits(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Whether two tensors have the same shape and values, NaN being equal to NaN: a bool scalar."""
    if not one.shape.is_compatible_with(other.shape):
        return tf.constant(False)

    def equal() -> tf.Tensor:
        same = tf.equal(one, other)
        if one.dtype.is_floating:
            same |= tf.math.is_nan(one) & tf.math.is_nan(other)
        return tf.reduce_all(same)

    shapes = tf.shape(one), tf.shape(other)
    alike = tf.equal(tf.size(shapes[0]), tf.size(shapes[1]))
    alike = tf.cond(alike, lambda: tf.reduce_all(tf.equal(*shapes)), lambda: tf.constant(False))
    return tf.cond(alike, equal, lambda: tf.constant(False))
