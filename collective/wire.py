"""Tensors as vectors of int32, the form in which they travel between workers where no arithmetic is done on the way.

TensorFlow's collective ops move equally shaped tensors of a few dtypes. What is gathered has any dtype, and each worker
its own shape. So a tensor is turned into its bits, and a header says what they mean:

    to_wire(tensor)                   the bits, an int32 vector
    header(tensor, wire)              rank, sizes, length of the vector: HEADER_SIZE numbers
    from_wire(vector, dtype, shape)   the tensor again
"""

from __future__ import annotations

import tensorflow as tf

MAX_RANK = 8
HEADER_SIZE = MAX_RANK + 2

_LIMIT = f"At most {MAX_RANK} dimensions travel. Reshape it."
_BYTES = [bytes([value]) for value in range(256)]


def words_per_element(dtype: tf.DType) -> int:
    """How many int32 an element of a dtype takes; strings take as many as they need."""
    return max(1, dtype.size // 4)


def to_wire(tensor: tf.Tensor) -> tf.Tensor:
    """The bits of `tensor` as a vector of int32.

    Raises:
        TypeError: The dtype is none of numbers, bools and strings.
    """
    dtype = tensor.dtype
    if not (dtype.is_integer or dtype.is_floating or dtype.is_complex or dtype in (tf.bool, tf.string)):
        raise TypeError(f"`{_name(tensor)}`: a tensor of dtype {dtype.name} between workers. Only numbers, bools and "
                        "strings travel. Send what it holds.")
    if dtype == tf.string:
        flat = tf.reshape(tensor, [-1])
        letters = tf.io.decode_raw(tf.strings.reduce_join(flat), tf.uint8)
        return tf.concat([tf.strings.length(flat), tf.cast(letters, tf.int32)], 0)
    if dtype.is_floating and dtype.size < 4:
        tensor = tf.bitcast(tf.cast(tensor, _half(dtype)), tf.uint16)
    if dtype.size < 4:
        return tf.reshape(tf.cast(tensor, tf.int32), [-1])
    return tf.reshape(tf.bitcast(tensor, tf.int32), [-1])


def from_wire(wire: tf.Tensor, dtype: tf.DType, shape: tf.Tensor | tf.TensorShape) -> tf.Tensor:
    """Inverse of `to_wire`.

    Args:
        wire: The vector.
        dtype: The tensor's dtype.
        shape: The tensor's shape.
    """
    if dtype == tf.string:
        count = tf.reduce_prod(tf.convert_to_tensor(shape, tf.int32))
        lengths = wire[:count]
        joined = tf.strings.reduce_join(tf.gather(tf.constant(_BYTES), wire[count:]))
        return tf.reshape(tf.strings.substr(joined, tf.cumsum(lengths, exclusive=True), lengths), shape)
    if dtype.size < 4:
        if dtype.is_floating:
            return tf.reshape(tf.cast(tf.bitcast(tf.cast(wire, tf.uint16), _half(dtype)), dtype), shape)
        return tf.reshape(tf.cast(wire, dtype), shape)
    words = words_per_element(dtype)
    return tf.reshape(tf.bitcast(tf.reshape(wire, [-1, words] if words > 1 else [-1]), dtype), shape)


def _half(dtype: tf.DType) -> tf.DType:
    """The two-byte float that holds every value of a small float: `tf.bitcast` takes none of one byte."""
    return dtype if dtype.size == 2 else tf.float16


def header(tensor: tf.Tensor, wire: tf.Tensor) -> tf.Tensor:
    """What a receiver must know of `tensor` before its bits arrive: an int32 vector of `HEADER_SIZE`.

    Raises:
        ValueError: The tensor has more than `MAX_RANK` dimensions.
        tf.errors.InvalidArgumentError: The same, where only running tells.
    """
    rank = tensor.shape.rank
    if rank is not None and rank > MAX_RANK:
        raise ValueError(f"`{_name(tensor)}`: a tensor of rank {rank} between workers. {_LIMIT}")
    shape = tf.shape(tensor)
    if rank is None:
        check = tf.debugging.Assert(tf.size(shape) <= MAX_RANK, [
            f"`{_name(tensor)}`: the rank of a tensor between workers:", tf.size(shape), _LIMIT])
        with tf.control_dependencies([check] if check is not None else []):
            shape = tf.identity(shape)
    sizes = tf.pad(shape, [[0, MAX_RANK - tf.size(shape)]])
    return tf.concat([[tf.size(shape)], sizes, [tf.size(wire)]], 0)


def _name(tensor: tf.Tensor) -> str:
    return tensor.name if tf.is_symbolic_tensor(tensor) else "gather"


def shape_and_length(numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The shape and the length of the vector that a header tells."""
    return numbers[1:1 + numbers[0]], numbers[HEADER_SIZE - 1]
