"""TensorFlow's collective ops: `ring` gives the numbers of `local`; `nccl` is checked op by op, without a GPU."""

import itertools

import pytest
import tensorflow as tf

import lockstep
from lockstep.collective import CollectiveOptions, Member, ReduceOp
from lockstep.collective.all_reduce import all_reduce
from lockstep.collective.device_collectives import DTYPES, KEYS_PER_SITE, MERGE, PADDED_SIZES, can_reduce
from lockstep.collective.turns import reachable
from testing.replicas import mirrored, replica_context, values_of

OPS = ("SUM", "MEAN", "MIN", "MAX", "PROD")
INTEGERS = (tf.int32, tf.int64, tf.uint8)
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64)


def total(x, op="SUM"):
    return replica_context().all_reduce(op, x)


def ramp(size, length, dtype=tf.float32):
    """Element j on replica r is 1 + r + size * j."""
    return lockstep.PerReplica([tf.cast([1 + rank + size * index for index in range(length)], dtype)
                                for rank in range(size)])


def ramp_sum(size, length):
    return [size * (size + 1) / 2 + size * size * index for index in range(length)]


@pytest.mark.parametrize("num_replicas, op", [*((3, op) for op in OPS), (2, "SUM"), (7, "SUM")])
def test_ring_gives_the_numbers_of_local(num_replicas, op):
    # Sums of small integers are exact in every order and dtype here.
    dtypes = [dtype for dtype in INTEGERS + FLOATS if not (dtype.is_complex and op in ("MIN", "MAX"))]
    values = [ramp(num_replicas, 3, dtype) for dtype in dtypes if op != "PROD" or dtype == tf.float64]
    if op in ("MIN", "MAX"):
        values.append(lockstep.PerReplica([tf.constant([True, False, rank == 1]) for rank in range(num_replicas)]))

    @tf.function
    def step(values):
        context = replica_context()
        return [context.all_reduce(op, values, CollectiveOptions(name, 16)) for name in ("ring", "local")]

    strategy = mirrored(num_replicas)
    ring, local = strategy.run(step, args=(values,))
    for one, other in zip(ring, local, strict=True):
        assert values_of(strategy, one) == values_of(strategy, other)
        dtypes = [strategy.experimental_local_results(result)[0].dtype for result in (one, other)]
        assert dtypes[0] == dtypes[1]


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_ring_of_any_floats_is_equal_on_all_replicas_and_close_to_local(op):
    # The ring adds each piece in another order: n - 1 roundings of 2 ** -24 relative to the largest partial sum.
    strategy = mirrored(4)
    parts = lockstep.PerReplica([tf.random.stateless_normal([101], [0, rank]) for rank in range(4)])

    @tf.function
    def step(x):
        context = replica_context()
        return [context.all_reduce(op, x, CollectiveOptions(name)) for name in ("ring", "local")]

    ring, local = (strategy.experimental_local_results(result) for result in strategy.run(step, args=(parts,)))
    assert len({part.numpy().tobytes() for part in ring}) == 1
    largest = float(tf.reduce_sum(tf.abs(tf.stack(parts.values))))
    assert float(tf.reduce_max(tf.abs(ring[0] - local[0]))) <= 3 * 2 ** -24 * largest


def test_ring_with_a_shape_that_changes_from_call_to_call():
    # 0 and 4093 shared an instance key once, and broke every collective of the process.
    strategy = mirrored(2, implementation="ring")
    step = tf.function(total)
    for length in (5, 7, 4093, 0, 1, 8186, 7, 100):
        result = strategy.run(step, args=(ramp(2, length),))
        assert values_of(strategy, result) == [ramp_sum(2, length)] * 2


@pytest.mark.parametrize("shape", [[], [0], [3, 0], [2, 3], [1, 1, 1]])
def test_ring_of_any_static_shape(shape):
    strategy = mirrored(2, implementation="ring")
    result = strategy.run(tf.function(lambda: total([tf.ones(shape), tf.ones([2]), tf.ones(shape, tf.int32)])))
    for part in result[::2]:
        assert values_of(strategy, part) == [(2 * tf.ones(shape)).numpy().tolist()] * 2


@pytest.mark.parametrize("is_nested", [False, True])
def test_ring_in_a_while_loop_whose_tensor_grows(is_nested):
    strategy = mirrored(4, implementation="ring")
    nested = tf.function(lambda x: total(total(x), "MAX"))

    @tf.function
    def step(x):
        def body(count, x):
            return count + 1, tf.concat([nested(x) if is_nested else total(x), x], 0)

        invariants = (tf.TensorShape([]), tf.TensorShape([None]))
        return tf.while_loop(lambda count, x: count < 5, body, (0, x), invariants)[1]

    x = [1.0]
    for _ in range(5):
        x = [4 * value for value in x] + x
    for _ in range(2):
        assert values_of(strategy, strategy.run(step, args=(tf.constant([1.0]),))) == [x] * 4


def test_ring_for_two_strategies_side_by_side():
    small, large = mirrored(2, implementation="ring"), mirrored(3, implementation="ring")

    @tf.function
    def outer(one, other):
        for _ in tf.range(3):
            small.run(total, args=(one,))
            large.run(total, args=(other,))
        return small.run(total, args=(one,)), large.run(total, args=(other,))

    for length in (4, 9):
        one, other = outer(ramp(2, length), ramp(3, length))
        assert values_of(small, one) == [ramp_sum(2, length)] * 2
        assert values_of(large, other) == [ramp_sum(3, length)] * 3
        assert values_of(large, large.run(tf.function(total), args=(ramp(3, 2),))) == [ramp_sum(3, 2)] * 3


def test_ring_after_a_replica_has_failed():
    # The very first launch fails: the group would stay cancelled if the replicas had not met before, 24 times of 25.
    strategy = mirrored(2, implementation="ring")

    @tf.function
    def step(x):
        tf.debugging.assert_less(x, 5.0, "too large")
        return total(x)

    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)replica 1 .*too large"):
            strategy.run(step, args=(lockstep.PerReplica([tf.constant(1.0), tf.constant(9.0)]),))
        assert values_of(strategy, strategy.run(step, args=(tf.constant(1.0),))) == [2.0] * 2


@pytest.mark.parametrize("place", ["step", "cond", "while", "function"])
def test_collectives_of_a_body_keep_their_order(place):
    graphs = []

    def several(x):
        graphs.append(tf.compat.v1.get_default_graph())
        slow = total(tf.reduce_sum(tf.linalg.matmul(x, x)))
        return slow + total(x[0, 0], "MAX") + tf.cast(total(tf.constant(1)), tf.float32)

    @tf.function
    def step(x):
        if place == "cond":
            return tf.cond(x[0, 0] > 0, lambda: several(x), lambda: 0.0)
        if place == "while":
            return tf.while_loop(lambda count, _: count < 2, lambda count, _: (count + 1, several(x)), (0, 0.0))[1]
        return tf.function(several)(x) if place == "function" else several(x)

    strategy = mirrored(2, implementation="ring")
    assert values_of(strategy, strategy.run(step, args=(tf.ones([2, 2]),))) == [19.0] * 2
    ops = [op for op in graphs[0].get_operations() if op.type == "CollectiveReduceV2"]
    assert len(ops) == 3
    for earlier, later in itertools.pairwise(ops):
        assert later in reachable([earlier], forward=True)


class GpuMember(Member):
    """A seat among four GPUs that do not exist."""

    can_use_device_collectives = True
    group_key = 77

    def __init__(self):
        super().__init__([f"/device:GPU:{index}" for index in range(4)])
        self._keys = itertools.count(5)

    def instance_key(self, what, shapes, num_keys):
        return next(self._keys) * num_keys


def nccl_ops(op, tensors, implementation="auto", bucket_bytes=16):
    """The collective ops of an all-reduce among GPUs, and the kinds of all ops in its graph."""
    with tf.Graph().as_default() as graph:
        results = all_reduce(GpuMember(), op, [tf.zeros(shape, dtype) for shape, dtype in tensors],
                             CollectiveOptions(implementation, bucket_bytes))
        assert [result.shape for result in results] == [tuple(shape) for shape, _ in tensors]
        assert [result.dtype for result in results] == [op.result_dtype(dtype) for _, dtype in tensors]
    ops = graph.get_operations()
    return [each for each in ops if each.type == "CollectiveReduceV2"], {each.type for each in ops}


@pytest.mark.parametrize("implementation", ["auto", "nccl"])
@pytest.mark.parametrize("op", list(ReduceOp))
def test_nccl_is_one_op_per_bucket_with_the_hint_and_keys_of_its_own(op, implementation):
    tensors = [([2], tf.float32), ([1, 2], tf.float32), ([3], tf.float16), ([], tf.float32), ([9], tf.float32)]
    ops, kinds = nccl_ops(op, tensors, implementation)
    assert [(each.inputs[0].dtype, each.inputs[0].shape.num_elements()) for each in ops] == [
        (tf.float32, 4), (tf.float16, 3), (tf.float32, 1), (tf.float32, 9)]
    assert not {kind for kind in kinds if "Queue" in kind or "PartitionedCall" in kind}
    for index, each in enumerate(ops):
        assert each.get_attr("communication_hint") == b"nccl"
        assert each.get_attr("merge_op") == MERGE[op].encode()
        assert each.get_attr("final_op") == (b"Div" if op is ReduceOp.MEAN else b"Id")
        assert not each.get_attr("is_stateless")
        size, group, key = (int(tf.get_static_value(tensor)) for tensor in each.inputs[1:4])
        assert (size, group, key) == (4, 77, (5 + index) * KEYS_PER_SITE)


def test_nccl_travels_bool_as_int32_and_the_mean_of_integers_as_float64():
    assert [each.inputs[0].dtype for each in nccl_ops(ReduceOp.MAX, [([2], tf.bool)])[0]] == [tf.int32]
    assert [each.inputs[0].dtype for each in nccl_ops(ReduceOp.MEAN, [([2], tf.int32)])[0]] == [tf.float64]


def test_dtypes_that_the_op_knows():
    assert all(can_reduce(ReduceOp.SUM, dtype) for dtype in DTYPES)
    assert can_reduce(ReduceOp.MAX, tf.bool) and can_reduce(ReduceOp.MEAN, tf.uint8)
    assert not any(can_reduce(ReduceOp.SUM, dtype) for dtype in (tf.uint8, tf.int8, tf.complex64))
    with tf.Graph().as_default(), pytest.raises(TypeError, match="uint8"):
        tf.raw_ops.CollectiveReduceV2(input=tf.zeros([1], tf.uint8), group_size=2, group_key=1, instance_key=1,
                                      ordering_token=[], merge_op="Add", final_op="Id")


def test_padding_adds_an_eighth_at_most_and_sizes_fit_the_keys_of_a_site():
    assert list(PADDED_SIZES) == sorted(set(PADDED_SIZES))
    assert PADDED_SIZES[0] == 1 and len(PADDED_SIZES) <= KEYS_PER_SITE
    assert all(later - 1 <= earlier * 9 / 8 for earlier, later in itertools.pairwise(PADDED_SIZES))
