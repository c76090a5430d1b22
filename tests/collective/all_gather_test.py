"""All-gather, broadcast and agreement: values move unchanged, in rank order, with shapes that may differ."""

import pytest
import tensorflow as tf

import lockstep
from lockstep.collective import Member, SoloMember, agree, all_gather, broadcast
from lockstep.collective.all_gather import checked_axis, same_bits
from lockstep.strategy import replica_scope
from testing.replicas import mirrored

SIZES = (1, 2, 3, 4, 7)
NAN = float("nan")


def per_replica(parts):
    return parts[0] if len(parts) == 1 else lockstep.PerReplica(parts)


def run(strategy, call, how, *parts):
    """What `call(member, value)` gives each replica, in a traced or a plain step."""
    @tf.function
    def step(*values):
        return call(replica_scope.current().member, *values)

    result = strategy.run(step.python_function if how == "plain" else step, args=tuple(map(per_replica, parts)))
    return [part.numpy().tolist() for part in strategy.experimental_local_results(result)]


def is_everywhere(results, wanted):
    return all(result == wanted for result in results)


@pytest.mark.parametrize("how", ["traced", "plain"])
@pytest.mark.parametrize("num_replicas", SIZES)
def test_rows_are_joined_in_rank_order_whatever_their_number(num_replicas, how):
    # Replica r has (2 r) % 3 rows, so some have none: row j is [10 r + j].
    strategy = mirrored(num_replicas)
    rows = [[[10 * rank + index] for index in range(2 * rank % 3)] for rank in range(num_replicas)]
    parts = [tf.reshape(tf.constant(part, tf.int32), [-1, 1]) for part in rows]
    results = run(strategy, lambda member, x: all_gather(member, x, 0), how, parts)
    assert is_everywhere(results, [row for part in rows for row in part])


@pytest.mark.parametrize("how", ["traced", "plain"])
@pytest.mark.parametrize("axis", [1, -1])
def test_other_axes_count_from_both_ends(axis, how):
    parts = [tf.constant([[1], [2]]), tf.constant([[3, 4], [5, 6]])]
    results = run(mirrored(2), lambda member, x: all_gather(member, x, axis), how, parts)
    assert is_everywhere(results, [[1, 3, 4], [2, 5, 6]])


@pytest.mark.parametrize("how", ["traced", "plain"])
@pytest.mark.parametrize("dtype", [tf.string, tf.bool, tf.complex64, tf.uint8, tf.bfloat16])
def test_every_dtype_travels(dtype, how):
    parts = [tf.constant(["a", "", "b"]), tf.constant(["c"])]
    if dtype != tf.string:
        parts = [tf.cast(tf.constant([1, 0, 2]), dtype), tf.cast(tf.constant([3]), dtype)]
    results = run(mirrored(2), lambda member, x: all_gather(member, x, 0), how, parts)
    assert is_everywhere(results, tf.concat(parts, 0).numpy().tolist())


def test_static_shape_of_a_gathered_tensor_is_open_along_the_axis_only():
    shapes = []

    def gathered(member, x):
        result = all_gather(member, x, -1)
        shapes.append(result.shape.as_list())
        return result

    run(mirrored(2), gathered, "traced", [tf.zeros([2, 3])] * 2)
    assert shapes == [[2, None]]


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_scalar_or_missing_axis_raises(num_replicas):
    member = Member([f"/device:CPU:{index}" for index in range(num_replicas)])
    with pytest.raises(ValueError, match="`all_gather`: got a scalar.*tf.expand_dims"):
        all_gather(member, tf.constant(1), 0)
    for axis in (2, -3):
        with pytest.raises(ValueError, match=rf"`axis` is {axis} for a value of shape \(1, 1\). Expected -2 to 1"):
            all_gather(member, tf.zeros([1, 1]), axis)
    assert checked_axis(tf.zeros([1, 1]), -1, "here") == 1


@pytest.mark.parametrize("how", ["traced", "plain"])
@pytest.mark.parametrize("num_replicas, root", [(1, 0), (2, 0), (2, 1), (3, 1), (7, 6)])
def test_broadcast_gives_everybody_the_values_of_the_root(num_replicas, root, how):
    numbers = [tf.constant([rank, 10 * rank]) for rank in range(num_replicas)]
    words = [tf.constant(str(rank)) for rank in range(num_replicas)]

    def sent(member, x, word):
        x, word = broadcast(member, [x, word], root)
        return tf.strings.join([tf.strings.as_string(x), word], "/")

    assert is_everywhere(run(mirrored(num_replicas), sent, how, numbers, words),
                         [f"{root}/{root}".encode(), f"{10 * root}/{root}".encode()])


@pytest.mark.parametrize("how", ["traced", "plain"])
@pytest.mark.parametrize("root", [0, 1])
def test_broadcast_takes_the_shape_of_the_root(root, how):
    parts = [tf.constant([1.0]), tf.constant([2.0, 3.0])]
    results = run(mirrored(2), lambda member, x: broadcast(member, [x], root)[0], how, parts)
    assert is_everywhere(results, parts[root].numpy().tolist())


@pytest.mark.parametrize("how", ["traced", "plain"])
@pytest.mark.parametrize("value", [[1.0, -2.5], [], 3, ["text"], True])
def test_equal_values_agree(value, how):
    results = run(mirrored(3), lambda member, x: agree(member, x, "It", "Fix it."), how, [tf.constant(value)] * 3)
    assert is_everywhere(results, tf.constant(value).numpy().tolist())


@pytest.mark.parametrize("how", ["traced", "plain"])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_nan_agrees_with_nan(dtype, how):
    parts = [tf.cast(tf.constant([NAN, 1.0]), dtype)] * 2
    results = run(mirrored(2), lambda member, x: tf.math.is_nan(agree(member, x, "It", "Fix it.")), how, parts)
    assert is_everywhere(results, [True, False])


@pytest.mark.parametrize("how", ["traced", "plain"])
@pytest.mark.parametrize("one, other, shown", [
    ([1.0], [2.0], r"\[1\], \[2\]"), ([NAN], [2.0], r"\[nan\], \[2\]"), ([1.0], [1.0, 1.0], r"\[1\], \[1 1\]"),
    ([1, 2], [[1, 2]], r"\[1 2\], \[\[1 2\]\]"), ([1, 2], [1, 2, 3], r"\[1 2\], \[1 2 3\]"),
    (["a"], ["b"], r'\["a"\], \["b"\]'), ([], [1.0], r"\[\], \[1\]")])
def test_values_that_differ_raise_with_the_values_and_the_advice(one, other, shown, how):
    strategy = mirrored(2)

    def call(member, x):
        return agree(member, x, "The rate", "Fix it.")

    with pytest.raises(tf.errors.InvalidArgumentError, match=(
            f"The rate: the replicas.+ values differ. By rank: {shown}. Fix it.")):
        run(strategy, call, how, [tf.constant(one), tf.constant(other)])
    equal = [tf.zeros_like(other)] * 2
    assert is_everywhere(run(strategy, call, how, equal), equal[0].numpy().tolist())


def test_one_replica_out_of_many_that_differs_is_seen():
    parts = [tf.constant(index == 6) for index in range(7)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="By rank: (0, ){6}1. Fix"):
        run(mirrored(7), lambda member, x: agree(member, x, "It", "Fix it."), "traced", parts)


@pytest.mark.parametrize("one, other, same", [
    ([1.0, NAN], [1.0, NAN], True), ([NAN], [1.0], False), ([1.0], [1.0, 1.0], False), ([[1]], [1], False),
    ("a", "a", True), ("a", "b", False), ([0.0], [-0.0], True)])
@pytest.mark.parametrize("in_function", [False, True])
def test_same_bits(one, other, same, in_function):
    compare = tf.function(same_bits) if in_function else same_bits
    assert bool(compare(tf.constant(one), tf.constant(other))) is same


def test_group_of_one_moves_nothing():
    member, value = SoloMember(["/device:CPU:0"]), tf.constant([1.0])
    assert all_gather(member, value, 0) is value
    assert broadcast(member, [value], 0)[0] is value
    assert agree(member, value, "It", "Fix it.") is value
