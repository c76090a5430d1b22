"""The form in which tensors travel between workers: every dtype and shape comes out as it went in."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from lockstep.collective.wire import HEADER_SIZE, MAX_RANK, from_wire, header, shape_and_length, to_wire

INTEGERS = (tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64)
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
SMALL_FLOATS = (tf.dtypes.experimental.float8_e5m2, tf.dtypes.experimental.float8_e4m3fn)


def extremes(dtype):
    if dtype.is_integer:
        return tf.constant([dtype.min, dtype.max, 0, 1], dtype)
    numbers = [float(dtype.min), float(dtype.max), -0.0, float("nan"), float("inf"), 1.5]
    return tf.constant(np.array(numbers).astype(dtype.as_numpy_dtype))


def every_byte(dtype):
    return tf.constant(np.arange(256, dtype=np.uint8).view(dtype.as_numpy_dtype))


# Functions: a module must not start TensorFlow when it is imported.
TENSORS = {
    **{dtype.name: functools.partial(extremes, dtype) for dtype in INTEGERS + FLOATS},
    **{dtype.name: functools.partial(every_byte, dtype) for dtype in SMALL_FLOATS},
    "bool": lambda: tf.constant([[True, False], [False, False]]),
    "complex64": lambda: tf.constant([1 + 2j, complex("nan"), -0.0j], tf.complex64),
    "complex128": lambda: tf.constant([[1e300 + 2j], [-3j]], tf.complex128),
    "strings": lambda: tf.constant([["", "a"], ["\u00e9t\u00e9", ""]]),
    "bytes that are no text": lambda: tf.constant([b"\xff\x00\xfe", bytes(range(256)), b"\x80"]),
    "nothing but empty strings": lambda: tf.constant(["", ""]),
    "a string alone": lambda: tf.constant("word"),
    "no strings": lambda: tf.zeros([0, 2], tf.string),
    "a scalar": lambda: tf.constant(3.5),
    "a bool scalar": lambda: tf.constant(True),
    "a float64 scalar": lambda: tf.constant(3.5, tf.float64),
    "an empty vector": lambda: tf.zeros([0], tf.int64),
    "an empty matrix": lambda: tf.zeros([3, 0], tf.float16),
    "rank 8": lambda: tf.reshape(tf.range(6.0), [1, 2, 1, 1, 3, 1, 1, 1]),
    "strings of rank 8": lambda: tf.reshape(tf.constant(["a", "bc"]), [1, 1, 1, 1, 2, 1, 1, 1]),
}


def there_and_back(tensor):
    wire = to_wire(tensor)
    numbers = header(tensor, wire)
    shape, length = shape_and_length(numbers)
    return from_wire(tf.concat([wire, [7, 7]], 0)[:length], tensor.dtype, shape), wire, numbers


def bits(tensor):
    """What a tensor holds, for an exact comparison; one NaN is as good as another."""
    array = np.asarray(tensor.numpy())
    return array.tolist() if array.dtype == object else np.where(array != array, array.dtype.type(1), array).tobytes()


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_out_as_it_went_in(name):
    tensor = TENSORS[name]()
    again, wire, numbers = there_and_back(tensor)
    assert (wire.dtype, wire.shape.rank, numbers.dtype, numbers.shape) == (tf.int32, 1, tf.int32, [HEADER_SIZE])
    assert (again.dtype, again.shape, bits(again)) == (tensor.dtype, tensor.shape, bits(tensor))


@pytest.mark.parametrize("name", TENSORS)
def test_shapes_need_not_be_known_when_a_step_is_traced(name):
    tensor = TENSORS[name]()
    travel = tf.function(lambda x: there_and_back(x)[0]).get_concrete_function(tf.TensorSpec(None, tensor.dtype))
    assert bits(travel(tensor)) == bits(tensor)


@pytest.mark.parametrize("name", ["float16", "strings", "no strings"])
def test_a_shape_that_is_known_is_kept(name):
    tensor = TENSORS[name]()
    known = []
    tf.function(lambda x: known.append(from_wire(to_wire(x), x.dtype, x.shape).shape))(tensor)
    assert known == [tensor.shape]


def test_a_header_says_the_rank_the_sizes_and_the_length():
    tensor = tf.zeros([2, 3], tf.float64)
    assert header(tensor, to_wire(tensor)).numpy().tolist() == [2, 2, 3, 0, 0, 0, 0, 0, 0, 12]


def test_a_float_of_two_bytes_takes_one_number():
    assert to_wire(tf.constant([1.0, -0.0], tf.float16)).numpy().tolist() == [0x3C00, 0x8000]


def test_a_tensor_of_more_dimensions_is_refused_by_name():
    tensor = tf.zeros([1] * (MAX_RANK + 1))
    with pytest.raises(ValueError, match="`gather`: a tensor of rank 9 between workers. At most 8 dimensions travel"):
        header(tensor, to_wire(tensor))
    with pytest.raises(ValueError, match="`weights:0`: a tensor of rank 9 between workers"):
        tf.function(lambda: there_and_back(tf.zeros([1] * 9, name="weights"))[0])()


def test_dimensions_that_are_not_known_when_a_step_is_traced_are_counted_when_it_runs():
    travel = tf.function(lambda x: there_and_back(x)[0]).get_concrete_function(tf.TensorSpec(None))
    with pytest.raises(tf.errors.InvalidArgumentError, match="At most 8 dimensions travel"):
        travel(tf.zeros([1] * 9))


def test_what_has_no_bits_is_refused_by_name():
    variant = tf.data.experimental.to_variant(tf.data.Dataset.range(1))
    with pytest.raises(TypeError, match="a tensor of dtype variant between workers. Only numbers, bools and strings"):
        to_wire(variant)


def test_a_long_string_of_every_byte_travels():
    text = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8).tobytes()
    again, wire, _ = there_and_back(tf.constant([text, b"", text[:1]]))
    assert again.numpy().tolist() == [text, b"", text[:1]]
    assert wire.shape == [100_004]
