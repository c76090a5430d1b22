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

_BYTES = [bytes([value]) for value in range(256)]


def words_per_element(dtype: tf.DType) -> int:
    """How many int32 an element of a dtype takes; strings take as many as they need."""
    return max(1, dtype.size // 4)


def to_wire(tensor: tf.Tensor) -> tf.Tensor:
    """The bits of `tensor` as a vector of int32."""
    dtype = tensor.dtype
    if dtype == tf.string:
        flat = tf.reshape(tensor, [-1])
        letters = tf.io.decode_raw(tf.strings.reduce_join(flat), tf.uint8)
        return tf.concat([tf.strings.length(flat), tf.cast(letters, tf.int32)], 0)
    if dtype.is_floating and dtype.size == 2:
        tensor = tf.bitcast(tensor, tf.uint16)
    if dtype == tf.bool or dtype.size < 4:
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
    if dtype == tf.bool or dtype.size < 4:
        small = tf.cast(wire, tf.uint16 if dtype.is_floating and dtype.size == 2 else dtype)
        return tf.reshape(tf.bitcast(small, dtype) if small.dtype != dtype else small, shape)
    words = words_per_element(dtype)
    return tf.reshape(tf.bitcast(tf.reshape(wire, [-1, words] if words > 1 else [-1]), dtype), shape)


def header(tensor: tf.Tensor, wire: tf.Tensor) -> tf.Tensor:
    """What a receiver must know of `tensor` before its bits arrive: an int32 vector of `HEADER_SIZE`.

    Raises:
        ValueError: The tensor has more than `MAX_RANK` dimensions.
    """
    if tensor.shape.rank is not None and tensor.shape.rank > MAX_RANK:
        raise ValueError(f"`{tensor.name if tf.is_symbolic_tensor(tensor) else 'gather'}`: a tensor of rank "
                         f"{tensor.shape.rank} between workers. At most {MAX_RANK} dimensions travel. Reshape it.")
    shape = tf.shape(tensor)
    sizes = tf.pad(shape, [[0, MAX_RANK - tf.size(shape)]])
    return tf.concat([[tf.size(shape)], sizes, [tf.size(wire)]], 0)


def shape_and_length(numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The shape and the length of the vector that a header tells."""
    return numbers[1:1 + numbers[0]], numbers[HEADER_SIZE - 1]
