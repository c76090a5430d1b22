"""Queues: any tensors through one channel, nothing stale after a failure, causes kept and taken once."""

import gc

import pytest
import tensorflow as tf

import lockstep
from lockstep.collective import Queues, all_gather
from lockstep.collective.local import ENDED, MISMATCH, unwrapped, wrapped
from lockstep.collective.queue_member import mismatch, runs_on_host
from lockstep.collective.turns import reachable
from lockstep.strategy import replica_scope
from testing.replicas import mirrored, replica_context, values_of


@pytest.fixture
def queues():
    return Queues(2, "group")


def size(queue):
    return int(tf.raw_ops.QueueSizeV2(handle=queue))


def sizes(channel):
    return [size(queue) for queue in channel.inward + channel.outward]


def test_results_of_each_body_have_a_channel_of_their_own(queues):
    assert queues.new_channel([tf.float32]) is not queues.new_channel([tf.float32])


def test_any_tensors_are_wrapped_in_one():
    tensors = [tf.constant([1.0, 2.0]), tf.constant("word"), tf.zeros([0, 3], tf.int64)]
    variant = wrapped(tensors)
    assert (variant.dtype, variant.shape) == (tf.variant, [])
    again = unwrapped(variant, [tensor.dtype for tensor in tensors])
    assert [tensor.dtype for tensor in again] == [tensor.dtype for tensor in tensors]
    assert (again[0].numpy().tolist(), again[1].numpy(), again[2].shape) == ([1.0, 2.0], b"word", (0, 3))


def test_elements_come_out_as_they_went_in_with_their_tag(queues):
    channel = queues.new_channel([tf.float32, tf.string])
    channel.put(channel.inward[1], [tf.constant([1.0, 2.0]), tf.constant("word")], "tag")
    assert sizes(channel) == [0, 1, 0, 0]
    (numbers, word), tag = channel.take(channel.inward[1])
    assert (numbers.numpy().tolist(), word.numpy(), tag.numpy()) == ([1.0, 2.0], b"word", b"tag")
    assert sizes(channel) == [0] * 4


def test_queues_of_two_groups_are_apart_even_when_the_first_is_gone():
    for _ in range(2):
        channel = Queues(2, "group").new_channel([tf.float32])
        assert sizes(channel) == [0] * 4
        channel.put(channel.inward[0], [tf.constant(1.0)], "")
        del channel
        gc.collect()


def test_own_queues_are_copies_that_name_their_kind(queues):
    channel = queues.meeting
    for copies, is_equal in ((channel.own_inward, False), (channel.own_outward, True)):
        assert copies.is_queue and copies.is_equal is is_equal and copies.group == "group"
        assert len(copies.handles) == 2
    assert queues.are_used_by([channel.own_inward.handles[0]])
    assert queues.are_used_by([channel.own_outward.handles[0]])
    assert not queues.are_used_by([channel.inward[0], tf.constant(1)])


def test_drain_empties_what_a_failed_step_left_and_nothing_else(queues):
    used, other = queues.new_channel([tf.float32]), queues.new_channel([tf.int32])
    used.put(used.inward[0], [tf.constant(1.0)], "stale")
    used.put(used.outward[1], [tf.constant(2.0)], "stale")
    other.put(other.inward[0], [tf.constant(3)], "fresh")

    @tf.function
    def drain():
        queues.drain([used])

    for _ in range(2):
        drain()
        assert sizes(used) == [0] * 4
    assert sizes(other) == [1, 0, 0, 0]
    assert queues.drain([]) == []


@pytest.mark.parametrize("rank, wanted", [(0, [1, 0, 1, 1]), (1, [0, 1, 0, 0])])
def test_ended_replica_tells_the_reducer_and_the_first_one_everybody(queues, rank, wanted):
    queues.send_ended(rank)
    assert sizes(queues.meeting) == wanted
    (nothing,), tag = queues.meeting.take(queues.meeting.inward[rank])
    assert not tf.raw_ops.OptionalHasValue(optional=nothing) and tag.numpy().decode() == ENDED


def test_problems_are_kept_in_order_and_taken_once(queues):
    assert queues.take_problems() == []
    queues.fail_with(tf.constant(""))
    assert queues.take_problems() == []
    for text in ("first", "second"):
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            queues.fail_with(tf.constant(text))
    assert queues.take_problems() == ["first", "second"]
    assert queues.take_problems() == []


def test_mismatch_names_every_replicas_collective():
    assert mismatch([tf.constant("a"), tf.constant("a")], "a").numpy() == b""
    text = mismatch([tf.constant("a"), tf.constant("b")], "a").numpy().decode()
    assert text.startswith(f"{MISMATCH}: replica 0: a; replica 1: b")
    assert text.endswith("expected: a")


def test_only_the_graph_of_an_exchange_stands_on_the_host():
    graph = tf.Graph()
    assert not runs_on_host(graph)
    graph._lockstep_on_host = True
    assert runs_on_host(graph)
    assert not runs_on_host(None)


def test_replicas_that_bring_other_dtypes_to_their_branch_are_told_apart():
    strategy = mirrored(2)

    @tf.function
    def step(x):
        context = replica_context()
        if context.replica_id_in_sync_group == 0:
            return tf.cast(context.all_reduce("SUM", x), tf.int32)
        return context.all_reduce("SUM", tf.cast(x, tf.int32))

    for _ in range(3):
        with pytest.raises(lockstep.CollectiveMismatchError, match="float32.*int32"):
            strategy.run(step, args=(tf.constant(1.0),))
    total = strategy.run(tf.function(lambda x: replica_context().all_reduce("SUM", x)), args=(tf.constant(1.0),))
    assert values_of(strategy, total) == [2.0, 2.0]


def test_exchanges_of_a_body_keep_their_order_whatever_their_dtypes():
    strategy = mirrored(2)
    graphs = []

    @tf.function
    def step(x):
        context = replica_context()
        graphs.append(tf.compat.v1.get_default_graph())
        slow = context.all_reduce("SUM", tf.reduce_sum(tf.linalg.matmul(x, x)))
        count = context.all_reduce("SUM", tf.constant(1))
        return slow, count, context.all_reduce("MAX", x[0])

    results = strategy.run(step, args=(tf.ones([2, 2]),))
    assert [values_of(strategy, result)[1] for result in results] == [16.0, 2, [1.0, 1.0]]
    exchanges = [op for op in graphs[0].get_operations() if op.type == "StatefulPartitionedCall"][:3]
    for earlier, later in zip(exchanges, exchanges[1:]):
        assert later in reachable([earlier], forward=True)


@pytest.mark.parametrize("when", ["before", "between", "after"])
@pytest.mark.parametrize("num_replicas", [2, 3])
def test_failed_exchange_leaves_nothing_behind(num_replicas, when):
    strategy = mirrored(num_replicas)

    @tf.function
    def step(x, limit):
        context = replica_context()
        checks = {"before": [x], "between": [], "after": []}
        with tf.control_dependencies([tf.debugging.assert_less(value, limit, "too large") for value in checks[when]]):
            total = context.all_reduce("SUM", tf.identity(x))
        if when == "between":
            with tf.control_dependencies([total]):
                tf.debugging.assert_less(x, limit, "too large")
        rows = all_gather(replica_scope.current().member, tf.reshape(x, [1]), 0)
        if when == "after":
            with tf.control_dependencies([rows]):
                tf.debugging.assert_less(x, limit, "too large")
        return total, rows

    for attempt in range(3):
        numbers = [float(10 * attempt + rank) for rank in range(num_replicas)]
        x = lockstep.PerReplica([tf.constant(number) for number in numbers])
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s)replica {num_replicas - 1} .*too large"):
            strategy.run(step, args=(x, tf.constant(numbers[-1])))
        total, rows = strategy.run(step, args=(x, tf.constant(99.0)))
        assert values_of(strategy, total) == [sum(numbers)] * num_replicas
        assert values_of(strategy, rows) == [numbers] * num_replicas
    assert strategy.extended.queues.take_problems() == []
    assert sizes(strategy.extended.queues.meeting) == [0] * (2 * num_replicas)
