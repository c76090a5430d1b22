"""All-gather, broadcast and agreement: the collectives that move values without arithmetic."""

from __future__ import annotations

from typing import Any, Sequence

import tensorflow as tf

from .buckets import num_bytes
from .errors import unfit
from .member import Exchange, Member, Parts
from .options import is_integer

VALUES, SHAPES = "replicas' values", "replicas' shapes"


def _what(kind: str, tensor: tf.Tensor, name: str = "", op: str = "") -> Exchange:
    label = name or (f"shape {tuple(tensor.shape)}" if tf.executing_eagerly() else tensor.name)
    return Exchange(kind, op, tensor.dtype.name, "local", num_bytes(tensor.shape, tensor.dtype), (label,))


def all_gather(member: Member, tensor: tf.Tensor, axis: int) -> tf.Tensor:
    """Concatenates everybody's tensors along `axis`, in rank order.

    Synchronisation: every member calls, with one axis, dtype and rank; only the sizes along `axis` may differ.

    Args:
        member: This replica's seat.
        tensor: Any dtype, rank at least 1.
        axis: The axis to join, negative values count from the end.

    Returns:
        The joined tensor, the same on every member.

    Raises:
        ValueError: A scalar, or an axis that the tensor does not have.
        tf.errors.InvalidArgumentError: The shapes differ elsewhere than along `axis`.
    """
    axis = checked_axis(tensor, axis, "all_gather")
    if member.size == 1:
        return tensor
    # Static shapes of a body are those of all replicas of this process.
    are_equal = member.can_use_device_collectives and member.size == len(member.devices) \
        and tensor.shape.rank is not None and None not in [*tensor.shape[:axis], *tensor.shape[axis + 1:]]
    gathered, = member.exchange([tensor], lambda parts: [tf.concat([part for part, in parts], axis)],
                                _what("all-gather", tensor, op=f"axis {axis}"),
                                verdict=None if are_equal else lambda parts: _other_sizes(parts, axis))
    if tensor.shape.rank is not None:
        gathered.set_shape([None if index == axis else dim for index, dim in enumerate(tensor.shape)])
    return gathered


def _other_sizes(parts: Parts, axis: int) -> tf.Tensor:
    """A string scalar: "" where the members' tensors fit together along `axis`, else which one does not.

    Raises:
        tf.errors.InvalidArgumentError: Static shapes tell that one does not.
    """
    def told(rank: int, shape: str | tf.Tensor, first: str | tf.Tensor) -> list[str | tf.Tensor]:
        return [f"`all_gather`: replica {rank} has shape ", shape, ", replica 0 has ", first,
                f". Only the sizes along axis {axis} may differ."]

    def without_axis(sizes: Any) -> Any:
        return tf.concat([sizes[:axis], sizes[axis:][1:]], 0)

    static = [tensor.shape for tensor, in parts]
    for rank, shape in enumerate(static):
        if not but_axis(shape, axis).is_compatible_with(but_axis(static[0], axis)):
            raise unfit("".join(told(rank, _shown(shape), _shown(static[0]))))
    shapes = [tf.shape(tensor) for tensor, in parts]
    problem = tf.constant("")
    for rank, shape in reversed(list(enumerate(shapes))[1:]):
        fits = same_bits(without_axis(shapes[0]), without_axis(shape))
        text = told(rank, tf.strings.format("{}", shape), tf.strings.format("{}", shapes[0]))
        problem = tf.where(fits, problem, tf.strings.join(text))
    return problem


def _shown(shape: tf.TensorShape) -> str:
    """A shape as TensorFlow prints a tensor that holds one."""
    return "?" if shape.rank is None else f"[{' '.join('?' if size is None else str(size) for size in shape)}]"


def but_axis(shape: tf.TensorShape, axis: int) -> tf.TensorShape:
    """A shape, its size along `axis` being any."""
    if shape.rank is None:
        return shape
    return tf.TensorShape([None if index == axis % shape.rank else size for index, size in enumerate(shape)])


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
    if member.can_use_device_collectives:  # Static shapes of a body are those of all replicas.
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


def agree(member: Member, tensor: tf.Tensor, name: str, advice: str, whose: str = VALUES) -> tf.Tensor:
    """Returns `tensor` after checking that it has the same shape and values, as `same_bits` says, on every member.

    Synchronisation: every member calls, with the same dtype.

    Raises:
        tf.errors.InvalidArgumentError: The values differ; the text is that of `difference`.
    """
    if member.size == 1:
        return tensor

    agreed, = member.exchange([tensor], lambda parts: parts[0], _what("agree", tensor, name),
                              verdict=lambda parts: difference([part for part, in parts], name, advice, whose))
    agreed.set_shape(tensor.shape)
    return agreed


def difference(values: Sequence[tf.Tensor], name: str, advice: str, whose: str = VALUES) -> tf.Tensor:
    """A string scalar: "" where all values are the same, else `name`, that `whose` differ, the values, and `advice`."""
    if len(values) == 1:
        return tf.constant("")
    same = tf.reduce_all(tf.stack([same_bits(values[0], other) for other in values[1:]]))
    shown = tf.strings.join([tf.strings.format("{}", value, summarize=3) for value in values], separator=", ")
    return tf.cond(same, lambda: tf.constant(""), lambda: tf.strings.join(
        _told(name, shown, advice, whose)))


def shape_difference(tensors: Sequence[tf.Tensor], name: str, advice: str) -> tf.Tensor:
    """`difference` of the tensors' shapes.

    Raises:
        tf.errors.InvalidArgumentError: Static shapes tell that they differ.
    """
    if not all(tensor.shape.is_compatible_with(tensors[0].shape) for tensor in tensors):
        shown = ", ".join(_shown(tensor.shape) for tensor in tensors)
        raise unfit("".join(_told(name, shown, advice, SHAPES)))
    return difference([tf.shape(tensor) for tensor in tensors], name, advice, SHAPES)


def _told(name: str, shown: str | tf.Tensor, advice: str, whose: str) -> list[str | tf.Tensor]:
    return [f"{name}: the {whose} differ. By rank: ", shown, f". {advice}"]


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
