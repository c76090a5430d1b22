"""All-reduce: closed-form results for every op, dtype, shape and number of replicas; the naive form is the oracle."""

import math

import numpy as np
import pytest
import tensorflow as tf

import lockstep
from lockstep.collective.all_reduce import choose_algorithm
from lockstep.collective.member import Member
from testing.replicas import mirrored, own, replica_context, values_of

SIZES = (1, 2, 3, 4, 7)
OPS = ("SUM", "MEAN", "MIN", "MAX", "PROD")
DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64, tf.uint8, tf.complex64)
LENGTHS = (0, 1, 5, 23)


def per_replica(parts):
    return parts[0] if len(parts) == 1 else lockstep.PerReplica(parts)


def number(op, rank, size, index):
    """Element `index` on replica `rank`: distinct small integers, or 1 and 2 where a product must stay small."""
    return 1 + (rank + index) % 2 if op == "PROD" else 1 + rank + size * index


def expected(op, size, length):
    """What the replicas' elements reduce to."""
    columns = [[number(op, rank, size, index) for rank in range(size)] for index in range(length)]
    reduced = {"SUM": sum, "MEAN": lambda column: sum(column) / size, "MIN": min, "MAX": max, "PROD": math.prod}[op]
    return [reduced(column) for column in columns]


def inputs(op, size, lengths, dtypes):
    """A list of per-replica tensors: every length of every dtype."""
    return [per_replica([tf.cast([number(op, rank, size, index) for index in range(length)], dtype)
                         for rank in range(size)]) for length in lengths for dtype in dtypes]


def reducer(op, **options):
    """A step that all-reduces its arguments."""
    changed = lockstep.CollectiveOptions(**options) if options else None

    @tf.function
    def step(values):
        return replica_context().all_reduce(op, values, changed)

    return step


def has_op(op, dtype):
    return not (dtype.is_complex and op in ("MIN", "MAX"))


def check(strategy, op, step, lengths, dtypes):
    size = strategy.num_replicas_in_sync
    dtypes = [dtype for dtype in dtypes if has_op(op, dtype)]
    results = strategy.run(step, args=(inputs(op, size, lengths, dtypes),))
    cases = [(length, dtype) for length in lengths for dtype in dtypes]
    for (length, dtype), result in zip(cases, results, strict=True):
        wanted = tf.float64 if op == "MEAN" and dtype.is_integer else dtype
        for part in strategy.experimental_local_results(result):
            assert part.dtype == wanted
            assert part.numpy().tolist() == expected(op, size, length), (op, dtype, length)


@pytest.mark.parametrize("num_replicas, op", [*((size, op) for size in (1, 2, 3) for op in OPS),
                                              *((size, op) for size in (4, 7) for op in ("SUM", "MEAN"))])
def test_every_length_on_every_number_of_replicas(num_replicas, op):
    check(mirrored(num_replicas), op, reducer(op, bucket_bytes=64), LENGTHS, (tf.float32,))


@pytest.mark.parametrize("op", OPS)
def test_every_dtype_in_one_nest(op):
    check(mirrored(3), op, reducer(op), (5,), DTYPES)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("num_replicas", SIZES)
def test_every_dtype_and_length_in_a_plain_step(num_replicas, op):
    check(mirrored(num_replicas), op, reducer(op).python_function, (0, 1, 5), DTYPES)


@pytest.mark.parametrize("is_plain", [False, True])
def test_bool_min_is_and_max_is_or(is_plain):
    strategy = mirrored(2)
    table = lockstep.PerReplica([tf.constant([True, True, False, False]), tf.constant([True, False, True, False])])

    @tf.function
    def step(x):
        return replica_context().all_reduce("MIN", x), replica_context().all_reduce("MAX", x)

    both, either = strategy.run(step.python_function if is_plain else step, args=(table,))
    assert strategy.experimental_local_results(both)[-1].numpy().tolist() == [True, False, False, False]
    assert strategy.experimental_local_results(either)[-1].numpy().tolist() == [True, True, True, False]


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("op, value, text", [
    ("SUM", True, "all_reduce: SUM of bool. SUM needs numbers. Use MIN .and. or MAX .or."),
    ("MAX", "a", "all_reduce: MAX of string. MAX needs numbers"),
    ("MIN", 1j, "all_reduce: MIN of complex128. Complex numbers have no order"),
])
def test_op_that_means_nothing_for_a_dtype_raises(num_replicas, op, value, text):
    with pytest.raises(TypeError, match=text):
        mirrored(num_replicas).run(reducer(op), args=(tf.constant(value),))


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_none_raises_with_its_index(num_replicas):
    @tf.function
    def step():
        return replica_context().all_reduce("SUM", [tf.zeros([2]), None, tf.zeros([1])])

    with pytest.raises(ValueError, match="`all_reduce`: value 1 of 3 is None. Every value must be a tensor"):
        mirrored(num_replicas).run(step)


def test_nest_of_mixed_dtypes_and_shapes_keeps_its_structure():
    strategy = mirrored(2)

    @tf.function
    def step(x):
        nest = {"b": (x, [tf.cast(x, tf.int32)]), "a": tf.zeros([0, 3]), "c": tf.reshape(x, [2, 1]), "d": x[0]}
        return replica_context().all_reduce("SUM", nest)

    result = strategy.run(step, args=(lockstep.PerReplica([tf.constant([1.0, 2.0]), tf.constant([10.0, 20.0])]),))
    assert list(result) == ["b", "a", "c", "d"]
    assert values_of(strategy, result["b"][0]) == [[11.0, 22.0]] * 2
    assert values_of(strategy, result["b"][1][0]) == [[11, 22]] * 2
    assert [part.shape for part in strategy.experimental_local_results(result["a"])] == [(0, 3)] * 2
    assert values_of(strategy, result["c"]) == [[[11.0], [22.0]]] * 2
    assert values_of(strategy, result["d"]) == [11.0] * 2


def test_empty_nest_is_itself():
    assert mirrored(2).run(tf.function(lambda: replica_context().all_reduce("SUM", []))) == []


@pytest.mark.parametrize("implementation", ["local", "naive", "ring"])
def test_shapes_that_are_unknown_when_the_step_is_traced(implementation):
    strategy = mirrored(2, implementation=implementation)
    count = 0

    @tf.function
    def step(x):
        nonlocal count
        count += 1
        # Lengths are known when the step runs only.
        return replica_context().all_reduce("SUM", tf.boolean_mask(x, x > 0))

    for length in (3, 0, 1, 40, 3):
        part = [float(index + 1) for index in range(length)] + [-1.0] * (50 - length)
        result = strategy.run(step, args=(tf.constant(part),))
        assert values_of(strategy, result) == [[2.0 * (index + 1) for index in range(length)]] * 2
    assert count == 1


@pytest.mark.parametrize("how", ["local", "naive", "ring", "plain"])
@pytest.mark.parametrize("op, lengths", [("SUM", (3, 2)), ("MAX", (1, 3))])
def test_unequal_shapes_raise_with_the_shapes_and_the_next_launch_is_right(how, op, lengths):
    strategy = mirrored(2, implementation="local" if how == "plain" else how)
    step = reducer(op).python_function if how == "plain" else reducer(op)
    unequal = lockstep.PerReplica([tf.ones([length]) for length in lengths])
    shown = rf"\[{lengths[0]}\], \[{lengths[1]}\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=(
            rf"^`all_reduce`: the replicas' shapes differ. By rank: {shown}. Every replica must pass")):
        strategy.run(step, args=(unequal,))
    total = {"SUM": 2.0, "MAX": 1.0}[op]
    assert values_of(strategy, strategy.run(step, args=(tf.ones([4]),))) == [[total] * 4] * 2


@pytest.mark.parametrize("bucket_bytes", [0, 8, 24])
def test_bucket_size_changes_no_bit(bucket_bytes):
    strategy = mirrored(3)
    numbers = np.random.RandomState(0)
    parts = [lockstep.PerReplica([tf.constant(numbers.randn(length).astype("float32")) for _ in range(3)])
             for length in (3, 1, 0, 7)]
    small = strategy.run(reducer("MEAN", bucket_bytes=bucket_bytes), args=(parts,))
    default = strategy.run(reducer("MEAN"), args=(parts,))
    assert [values_of(strategy, value) for value in small] == [values_of(strategy, value) for value in default]


@pytest.mark.parametrize("num_replicas, op", [*((3, op) for op in OPS), (7, "SUM")])
def test_local_equals_naive_in_every_bit(num_replicas, op):
    strategy = mirrored(num_replicas)
    numbers = np.random.RandomState(num_replicas)
    parts = [lockstep.PerReplica([tf.constant((numbers.randn(length) * 10.0 ** numbers.randint(-6, 6)), dtype)
                                  for _ in range(num_replicas)])
             for length, dtype in [(5, tf.float32), (300, tf.float32), (5, tf.float64)]]
    local = strategy.run(reducer(op, implementation="local", bucket_bytes=1 << 20), args=(parts,))
    naive = strategy.run(reducer(op, implementation="naive"), args=(parts,))
    for one, other in zip(local, naive, strict=True):
        bits = {part.numpy().tobytes() for value in (one, other)
                for part in strategy.experimental_local_results(value)}
        assert len(bits) == 1


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_sparse_rows_are_joined_in_the_order_of_the_replicas(op, is_plain):
    strategy = mirrored(3)

    @tf.function
    def step(values, indices):
        rows = tf.IndexedSlices(values, indices, tf.constant([9, 2]))
        dense, sparse = replica_context().all_reduce(op, [tf.ones([1]), rows])
        return dense, sparse.values, sparse.indices, sparse.dense_shape

    rows = (2, 0, 1)
    values = lockstep.PerReplica([tf.fill([count, 2], 3.0 * (rank + 1)) for rank, count in enumerate(rows)])
    indices = lockstep.PerReplica([tf.range(count) + 4 * rank for rank, count in enumerate(rows)])
    results = strategy.run(step.python_function if is_plain else step, args=(values, indices))
    divisor = 3.0 if op == "MEAN" else 1.0
    wanted = ([3.0 / divisor], [[3 / divisor] * 2, [3 / divisor] * 2, [9 / divisor] * 2], [0, 1, 8], [9, 2])
    for result, value in zip(results, wanted, strict=True):
        assert all(part.numpy().tolist() == value for part in strategy.experimental_local_results(result))


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_other_ops_of_sparse_rows_raise(num_replicas):
    @tf.function
    def step():
        return replica_context().all_reduce("MIN", tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))).values

    with pytest.raises(TypeError, match="all_reduce: MIN of tf.IndexedSlices. Only SUM and MEAN"):
        mirrored(num_replicas).run(step)


@pytest.mark.parametrize("how", ["local", "naive", "ring", "plain"])
@pytest.mark.parametrize("op, wanted", [("SUM", [24.0, 42.0]), ("MEAN", [6.0, 10.5])])
def test_gradient_is_that_of_all_replicas_losses(op, wanted, how):
    # x is [1, 2] and [3, 5]; replica r's loss is (r + 1) * sum(y * y), y being the all-reduced x.
    # SUM: y = [4, 7], dL/dx = 2 * 1 * y + 2 * 2 * y = 6 y. MEAN: y = [2, 3.5], dL/dx = 6 y / 2.
    strategy = mirrored(2, implementation="local" if how == "plain" else how)

    @tf.function
    def step(x):
        context = replica_context()
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, unused, count = context.all_reduce(op, [x, 2.0 * x, tf.constant([1, 2])])
            del unused, count
            loss = tf.cast(context.replica_id_in_sync_group + 1, tf.float32) * tf.reduce_sum(y * y)
        return tape.gradient(loss, x)

    x = lockstep.PerReplica([tf.constant([1.0, 2.0]), tf.constant([3.0, 5.0])])
    run = step.python_function if how == "plain" else step
    assert values_of(strategy, strategy.run(run, args=(x,))) == [wanted] * 2


@pytest.mark.parametrize("how", ["traced", "plain"])
@pytest.mark.parametrize("op, share", [("SUM", 1.0), ("MEAN", 0.5)])
def test_gradient_of_sparse_rows_is_that_of_all_replicas_losses(op, share, how):
    strategy = mirrored(2)

    def step(x, weights):
        with tf.GradientTape() as tape:
            tape.watch(x)
            joined = replica_context().all_reduce(op, tf.IndexedSlices(x ** 2, tf.range(tf.shape(x)[0])))
            loss = tf.reduce_sum(joined.values * weights)
        return tape.gradient(loss, x)

    # Replica 0 brings the first of the three joined rows; both weigh all three, together by 3, 30 and 300.
    weights = own([[1.0], [10.0], [100.0]], [[2.0], [20.0], [200.0]])
    args = own([[1.0]], [[2.0], [3.0]]), weights
    gradient = strategy.run(step if how == "plain" else tf.function(step), args=args)
    assert values_of(strategy, gradient) == [[[3 * 2 * share]], [[30 * 4 * share], [300 * 6 * share]]]


def test_second_derivative():
    # y = x0 + x1, both replicas' loss is y ** 3: d/dx = 2 * 3 y ** 2, and of the sum of these 2 * 2 * 6 y.
    strategy = mirrored(2)

    @tf.function
    def step(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = replica_context().all_reduce("SUM", x) ** 3
            first = inner.gradient(loss, x)
        return first, outer.gradient(first, x)

    first, second = strategy.run(step, args=(lockstep.PerReplica([tf.constant(1.0), tf.constant(2.0)]),))
    assert values_of(strategy, first) == [54.0] * 2
    assert values_of(strategy, second) == [72.0] * 2


@pytest.mark.parametrize("op", ["MIN", "MAX", "PROD"])
def test_gradient_of_other_ops_raises(op):
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = replica_context().all_reduce(op, x)
        return tape.gradient(y, x)

    with pytest.raises(LookupError, match=f"`all_reduce`: no gradient is defined for {op}. Use SUM or MEAN"):
        mirrored(2).run(tf.function(step, autograph=False), args=(tf.constant(1.0),))


def test_more_than_500_tensors():
    strategy = mirrored(2)

    @tf.function
    def step(x):
        return tf.stack(replica_context().all_reduce("SUM", [x + float(index) for index in range(520)]))

    result = strategy.run(step, args=(lockstep.PerReplica([tf.constant(1.0), tf.constant(2.0)]),))
    assert values_of(strategy, result) == [[3.0 + 2.0 * index for index in range(520)]] * 2


class Seat(Member):
    def __init__(self, devices, runs_at_the_same_time=True):
        super().__init__(devices)
        self.can_use_device_collectives = runs_at_the_same_time


GPUS = ("/job:localhost/replica:0/task:0/device:GPU:0", "/job:localhost/replica:0/task:0/device:GPU:1")
CPUS = ("/device:CPU:0", "/device:CPU:1")


@pytest.mark.parametrize("implementation, devices, at_the_same_time, algorithm", [
    ("auto", GPUS, True, "nccl"), ("auto", GPUS, False, "local"), ("auto", CPUS, True, "local"),
    ("auto", (CPUS[0], GPUS[0]), True, "local"), ("local", GPUS, True, "local"), ("nccl", GPUS, True, "nccl"),
    ("nccl", GPUS, False, "local"), ("ring", CPUS, True, "ring"), ("ring", CPUS, False, "local"),
    ("naive", GPUS, True, "naive"), ("naive", CPUS, False, "naive"),
])
def test_algorithm_for_a_group(implementation, devices, at_the_same_time, algorithm):
    assert choose_algorithm(implementation, Seat(devices, at_the_same_time)) == algorithm


@pytest.mark.parametrize("devices", [CPUS, (GPUS[0], CPUS[1])])
@pytest.mark.parametrize("at_the_same_time", [True, False])
def test_nccl_on_cpus_raises_with_the_devices(devices, at_the_same_time):
    with pytest.raises(ValueError, match=f"implementation 'nccl' on devices {', '.join(devices)}. NCCL reduces"):
        choose_algorithm("nccl", Seat(devices, at_the_same_time))
