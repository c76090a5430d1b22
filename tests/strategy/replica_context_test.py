"""The replica context: who a replica is, what it reduces and gathers, and `merge_call`; traced and in Python."""

import numpy as np
import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, own, replica_context, split_rows, values_of

SIZES = pytest.mark.parametrize("num_replicas", [1, 2, 4])
TRACED = pytest.mark.parametrize("traced", [True, False], ids=["traced", "python"])


def run(strategy, traced, function, *args):
    return strategy.run(tf.function(function) if traced else function, args=args)


def results(strategy, traced, function, *args):
    return values_of(strategy, run(strategy, traced, function, *args))


def number():
    return tf.cast(replica_context().replica_id_in_sync_group, tf.float32)


@TRACED
@SIZES
def test_each_replica_knows_its_number_and_how_many_there_are(num_replicas, traced):
    strategy = mirrored(num_replicas)

    def step():
        context = replica_context()
        assert isinstance(context, lockstep.strategy.ReplicaContext) and context.strategy is strategy
        assert context.num_replicas_in_sync == num_replicas
        assert context.replica_id_in_sync_group.dtype == tf.int32
        return context.replica_id_in_sync_group

    assert results(strategy, traced, step) == list(range(num_replicas))


@TRACED
@SIZES
def test_all_reduce_of_a_nest_of_mixed_dtypes_and_shapes(num_replicas, traced):
    strategy = mirrored(num_replicas)

    def step(x):
        nest = {"a": x, "b": [tf.cast(x, tf.float16), (tf.ones([2, 0]), tf.fill([2], tf.cast(x, tf.int64)))]}
        return replica_context().all_reduce("SUM", nest)

    total = run(strategy, traced, step, own(*np.arange(1.0, 1.0 + num_replicas, dtype=np.float32)))
    expected = num_replicas * (num_replicas + 1) / 2
    assert values_of(strategy, total["a"]) == [expected] * num_replicas
    assert values_of(strategy, total["b"][0]) == [expected] * num_replicas
    assert values_of(strategy, total["b"][1][0]) == [[[], []]] * num_replicas
    assert values_of(strategy, total["b"][1][1]) == [[expected, expected]] * num_replicas


@TRACED
@pytest.mark.parametrize("op, expected", [("SUM", 9.0), ("MEAN", 3.0), ("MIN", 2.0), ("MAX", 4.0), ("PROD", 24.0)])
def test_all_reduce_with_every_op(op, expected, traced):
    strategy = mirrored(3)
    reduced = results(strategy, traced, lambda x: replica_context().all_reduce(op, x), own(2.0, 3.0, 4.0))
    assert reduced == [expected] * 3


@TRACED
def test_all_reduce_of_sparse_rows(traced):
    strategy = mirrored(2)

    def step(values, indices):
        total = replica_context().all_reduce("SUM", tf.IndexedSlices(values, indices, tf.constant([3])))
        return tf.convert_to_tensor(total)

    total = results(strategy, traced, step, own([1.0, 2.0], []), own([2, 2], [], dtype=tf.int32))
    assert total == [[0.0, 0.0, 3.0]] * 2


@TRACED
@SIZES
def test_gradient_of_the_sum_is_the_sum_of_the_gradients(num_replicas, traced):
    strategy = mirrored(num_replicas)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = replica_context().all_reduce("SUM", x * x) * (number() + 1.0)
        return tape.gradient(total, x)

    numbers = np.arange(1.0, 1.0 + num_replicas, dtype=np.float32)
    assert results(strategy, traced, step, own(*numbers)) == list(2 * numbers * numbers.sum())


@TRACED
@pytest.mark.parametrize("value, error, match", [
    (None, ValueError, "value 0 of 1 is None"),
    (True, TypeError, "SUM of bool"),
    ("text", TypeError, "SUM of string"),
])
def test_all_reduce_of_what_cannot_be_summed_raises(value, error, match, traced):
    with pytest.raises(error, match=match):
        run(mirrored(2), traced, lambda: replica_context().all_reduce("SUM", value))


@pytest.mark.parametrize("options", [3, tf.distribute.experimental.CommunicationOptions()])
def test_options_of_another_kind_raise(options):
    for method in ("all_reduce", "all_gather"):
        arguments = ("SUM", tf.ones([1])) if method == "all_reduce" else (tf.ones([1]), 0)
        with pytest.raises(TypeError, match="Expected a lockstep.CollectiveOptions or None"):
            mirrored(2).run(lambda: getattr(replica_context(), method)(*arguments, options=options))


# All-gather.


@TRACED
@SIZES
@pytest.mark.parametrize("axis", [0, -2, 1, -1])
def test_all_gather_of_unequal_sizes(num_replicas, axis, traced):
    strategy = mirrored(num_replicas)
    parts = [np.full([size, 2] if axis in (0, -2) else [2, size], size, np.float32) for size in range(num_replicas)]
    joined = results(strategy, traced, lambda x: replica_context().all_gather(x, axis=axis), own(*parts))
    assert joined == [np.concatenate(parts, axis).tolist()] * num_replicas


@TRACED
def test_all_gather_of_nests_of_any_dtype(traced):
    strategy = mirrored(2)

    def step(x):
        nest = {"text": tf.strings.as_string(x), "flags": [x > 1], "ids": x}
        return replica_context().all_gather(nest, axis=0)

    joined = run(strategy, traced, step, own([1], [2, 3]))
    assert values_of(strategy, joined["text"]) == [[b"1", b"2", b"3"]] * 2
    assert values_of(strategy, joined["flags"][0]) == [[False, True, True]] * 2
    assert values_of(strategy, joined["ids"]) == [[1, 2, 3]] * 2


@TRACED
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("parts", [([1.0, 2.0], [3.0]), ([], [1.0, 2.0, 3.0])])
def test_gradient_of_all_gather_is_this_replicas_rows_of_the_summed_gradient(parts, axis, traced):
    strategy = mirrored(2)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            joined = replica_context().all_gather(x, axis=axis)
            loss = tf.reduce_sum(joined * tf.constant([1.0, 10.0, 100.0]) * (number() + 1.0))
        return tape.gradient(loss, x)

    split = len(parts[0])
    expected = [3.0, 30.0, 300.0]
    gradient = results(strategy, traced, step, own(*parts, dtype=tf.float32))
    assert gradient == [expected[:split], expected[split:]]


@TRACED
@SIZES
def test_gradient_of_all_gather_along_the_last_axis(num_replicas, traced):
    strategy = mirrored(num_replicas)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            joined = replica_context().all_gather(x, axis=-1)
            loss = tf.reduce_sum(joined * joined)
        return tape.gradient(loss, x)

    parts = [np.full([2, size + 1], size + 1.0, np.float32) for size in range(num_replicas)]
    assert results(strategy, traced, step, own(*parts)) == [(2 * num_replicas * part).tolist() for part in parts]


@TRACED
@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("value, axis, error, match", [
    (1.0, 0, ValueError, "`all_gather`: got a scalar.*expand_dims"),
    ([1.0], 1, ValueError, "`all_gather`: `axis` is 1"),
    (None, 0, NotImplementedError, "`all_gather`: got tf.IndexedSlices"),
])
def test_all_gather_of_what_has_no_rows_raises(num_replicas, value, axis, error, match, traced):
    def step():
        leaf = tf.IndexedSlices(tf.ones([1]), tf.zeros([1], tf.int32)) if value is None else tf.constant(value)
        return replica_context().all_gather(leaf, axis=axis)

    with pytest.raises(error, match=match):
        run(mirrored(num_replicas), traced, step)


# merge_call.


@TRACED
@SIZES
def test_merge_call_reduces_and_updates(num_replicas, traced):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        v, w = tf.Variable(1.0), tf.Variable([1.0, 1.0])

    def merge(merged, x, *, rate):
        total = merged.extended.reduce_to("SUM", x, v)
        pair = merged.extended.batch_reduce_to("MEAN", [(x, v), (tf.stack([x, x]) if num_replicas == 1 or traced
                                                                 else x, w)])
        merged.extended.update(v, lambda copy, t: copy.assign_add(rate * t), args=(total,))
        merged.extended.update(w, lambda copy, t: copy.assign(t + tf.zeros([2])), args=(pair[1],), group=False)
        return total

    def step(x):
        return replica_context().merge_call(merge, args=(x,), kwargs={"rate": 10.0})

    numbers = np.arange(1.0, 1.0 + num_replicas, dtype=np.float32)
    total = results(strategy, traced, step, own(*numbers))
    assert total == [numbers.sum()] * num_replicas
    assert values_of(strategy, v) == [1.0 + 10.0 * numbers.sum()] * num_replicas
    assert values_of(strategy, w) == [[numbers.mean()] * 2] * num_replicas


@TRACED
@SIZES
def test_merge_call_runs_code_for_each_replica_inside(num_replicas, traced):
    strategy = mirrored(num_replicas)

    def inner(x, *, offset):
        assert not tf.distribute.in_cross_replica_context()
        return replica_context().all_reduce("SUM", x) + offset + number()

    def merge(merged, x):
        assert tf.distribute.in_cross_replica_context()
        return merged.extended.call_for_each_replica(inner, args=(x,), kwargs={"offset": 100.0})

    total = results(strategy, traced, lambda x: replica_context().merge_call(merge, args=(x,)),
                    own(*np.arange(1.0, 1.0 + num_replicas, dtype=np.float32)))
    assert total == [100.0 + num_replicas * (num_replicas + 1) / 2 + index for index in range(num_replicas)]


@TRACED
@SIZES
def test_merge_call_reduces_nests_through_the_strategy(num_replicas, traced):
    strategy = mirrored(num_replicas)

    def merge(merged, x):
        return merged.reduce("SUM", {"x": x, "y": [x]}, axis=None)

    total = run(strategy, traced, lambda x: replica_context().merge_call(merge, args=(x,)),
                own(*[2.0] * num_replicas))
    for part in (total["x"], total["y"][0]):
        assert values_of(strategy, part) == [2.0 * num_replicas] * num_replicas


@TRACED
@SIZES
def test_merge_call_gathers_through_the_strategy(num_replicas, traced):
    strategy = mirrored(num_replicas)

    def merge(merged, x):
        return merged.gather(x, axis=0)

    joined = results(strategy, traced, lambda x: replica_context().merge_call(merge, args=(x,)),
                     split_rows(strategy, [1.0, 2.0, 3.0]))
    assert joined == [[1.0, 2.0, 3.0]] * num_replicas


@TRACED
def test_synchronising_in_the_wrong_context_raises_by_name(traced):
    strategy = mirrored(2)
    context = []

    def merge(merged):
        with pytest.raises(RuntimeError, match="replica context|ReplicaContext"):
            context[0].merge_call(lambda inner: None)
        return 1

    def step():
        context[:] = [replica_context()]
        context[0].merge_call(merge)
        with pytest.raises(RuntimeError, match="`extended.reduce_to`: called inside `strategy.run`"):
            strategy.extended.reduce_to("SUM", tf.constant(1.0), "CPU:0")
        with pytest.raises(RuntimeError, match="`extended.batch_reduce_to`: called inside `strategy.run`"):
            strategy.extended.batch_reduce_to("SUM", [(tf.constant(1.0), "CPU:0")])
        return 1

    assert run(strategy, traced, step) == 1


@pytest.mark.parametrize("call", [
    lambda context: context.all_reduce("SUM", tf.constant(1.0)),
    lambda context: context.all_gather(tf.constant([1.0]), axis=0),
    lambda context: context.merge_call(lambda merged: None),
], ids=["all_reduce", "all_gather", "merge_call"])
@pytest.mark.parametrize("num_replicas", [2])
def test_a_context_kept_after_its_step_is_refused(num_replicas, call):
    strategy = mirrored(num_replicas)
    kept = []
    strategy.run(lambda: kept.append(replica_context()))
    with pytest.raises(RuntimeError):
        call(kept[0])
