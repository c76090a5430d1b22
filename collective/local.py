"""The `local` algorithm's meeting place: replicas of one process exchange tensors through queues.

A step is traced once and called once per replica, so the body may not say which replica it is. Each replica owns two
queues of capacity 1, one in and one out; their handles are captures that a launch swaps for each replica, like a
variable's. One exchange, in every body:

    1. enqueue my tensors in my in-queue;
    2. replica 0 takes one element from every in-queue, in rank order, combines them, and puts the one result in every
       out-queue;
    3. dequeue the result from my out-queue.

Tensors pass by reference, so the result is shared and nothing is copied. An element is a tag and a list of tensors of
any dtypes, wrapped in one variant: all exchanges of a group go through the same queues, so that replicas that take
different branches meet, and are told apart, whatever they bring. Automatic control dependencies keep exchanges in
program order, since all use the same queues.

When a replica fails, TensorFlow cancels the others, and may report a cancellation instead of the cause. So an exchange
that fails writes the cause in the group's list of problems first, where the launch finds it.

Each element carries the text of its `Exchange` as a tag. Replicas that disagree on a branch meet in different
exchanges: the tags differ, and the step fails with both texts instead of adding unrelated numbers. A replica whose step
ends while others wait sends `ENDED` (the launch does, see `Queues.send_ended`).
"""

from __future__ import annotations

import itertools
import threading
from typing import Sequence

import tensorflow as tf

from .attendance import Attendance
from .copies import Copies
from .start_line import StartLine

ENDED = "end of the step"
MISMATCH = "Replicas met in different collectives"
TOO_LATE = "Too late: "
HOST = "/device:CPU:0"

_group_keys = itertools.count(1)


class Channel:
    """A pair of queues per replica, for elements of the given dtypes and a tag."""

    def __init__(self, name: str, dtypes: Sequence[tf.DType], size: int, group: object):
        self.dtypes = (*dtypes, tf.string)
        with tf.init_scope(), tf.device(HOST):
            self.inward = [self._queue(f"{name}/in/{rank}") for rank in range(size)]
            self.outward = [self._queue(f"{name}/out/{rank}") for rank in range(size)]
            # Replica 0's own queues and the reducer's list of queues are different captures of the same resources:
            # a launch swaps the former and leaves the latter.
            self.own_inward = Copies([tf.identity(queue) for queue in self.inward], name, group, is_equal=False,
                                     is_queue=True)
            self.own_outward = Copies([tf.identity(queue) for queue in self.outward], name, group, is_equal=True,
                                      is_queue=True)

    def _queue(self, name: str) -> tf.Tensor:
        queue = tf.raw_ops.FIFOQueueV2(component_types=self.dtypes, capacity=1, shared_name=name)
        queue._lockstep_queue = True  # Shared by all replicas, and meant to be.
        return queue

    def put(self, queue: tf.Tensor, tensors: Sequence[tf.Tensor], tag: str | tf.Tensor) -> tf.Operation:
        return tf.raw_ops.QueueEnqueueV2(handle=queue, components=[*tensors, tf.convert_to_tensor(tag)])

    def take(self, queue: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        *tensors, tag = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=self.dtypes)
        return tensors, tag


def wrapped(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """A list of tensors of any dtypes and shapes as one variant scalar; nothing is copied."""
    return tf.raw_ops.OptionalFromValue(components=list(tensors))


def unwrapped(variant: tf.Tensor, dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
    """Inverse of `wrapped`, shapes unknown."""
    return list(tf.raw_ops.OptionalGetValue(optional=variant, output_types=list(dtypes),
                                            output_shapes=[tf.TensorShape(None)] * len(dtypes)))


class Queues:
    """Where the replicas of one sync group meet.

    Args:
        size: Number of replicas.
        group: The sync group's identity, see `Copies`.

    Attributes:
        group_key: A number that no other group of the process has.
        name: A name that no other group of the process has.
        mutex: Held by a launch while its bodies run.
        meeting: The channel of all exchanges; its elements are `wrapped`.
        attendance: Who has come to how many exchanges.
        start_line: Where a launch's bodies wait for each other before they start.
    """

    def __init__(self, size: int, group: object):
        self.group_key = next(_group_keys)
        self.name = f"lockstep_{self.group_key}"
        self._group = group
        self._size = size
        self._numbers = itertools.count()
        self.meeting = Channel(f"{self.name}/meeting", [tf.variant], size, group)
        with tf.init_scope(), tf.device(HOST):
            self.attendance = Attendance(size)
            self.start_line = StartLine(self.name, size)
            # Held by a launch while its bodies run: launches of one group follow each other, from any thread.
            self.mutex = tf.raw_ops.MutexV2(shared_name=f"{self.name}/mutex")
            self._problems = tf.raw_ops.FIFOQueueV2(component_types=[tf.string], shapes=[[]],
                                                    shared_name=f"{self.name}/problems")
            self._problems._lockstep_queue = True

    def new_channel(self, dtypes: Sequence[tf.DType]) -> Channel:
        """A channel of its own, for the results of one body."""
        return Channel(f"{self.name}/results/{next(self._numbers)}", dtypes, self._size, self._group)

    def are_used_by(self, captures: Sequence[tf.Tensor]) -> bool:
        """Whether a body with these captures takes part in exchanges."""
        own = self.meeting.own_inward.handles[0], self.meeting.own_outward.handles[0]
        return any(capture is handle for capture in captures for handle in own)

    def fail_with(self, problem: tf.Tensor) -> tf.Operation:
        """An op that fails the step and keeps the cause, unless `problem`, a string scalar, is empty."""
        is_fine = tf.equal(problem, "")

        def keep() -> tf.Tensor:
            tf.raw_ops.QueueEnqueueV2(handle=self._problems, components=[problem])
            return tf.constant(0)

        kept = tf.cond(is_fine, lambda: tf.constant(0), keep)
        with tf.control_dependencies([kept]):
            return tf.debugging.Assert(is_fine, [problem])

    def take_problems(self) -> list[str]:
        """The causes of what has failed since the last call, oldest first."""
        found = []
        while int(tf.raw_ops.QueueSizeV2(handle=self._problems)):
            problem, = tf.raw_ops.QueueDequeueV2(handle=self._problems, component_types=[tf.string])
            found.append(problem.numpy().decode())
        return found

    def begin_launch(self, channels: Sequence[Channel]) -> list[tf.Operation]:
        """Ops that remove what earlier launches have left, in those of the channels that a launch uses, too."""
        problems = tf.raw_ops.QueueDequeueManyV2(
            handle=self._problems, n=tf.raw_ops.QueueSizeV2(handle=self._problems), component_types=[tf.string])
        notes = self.attendance.clear() if self.meeting in channels else []
        return [problems[0].op, *self.start_line.drain(), *notes, *self.drain(channels)]

    @staticmethod
    def drain(channels: Sequence[Channel]) -> list[tf.Operation]:
        """Ops that empty the channels' queues: what a failed step left must never be taken by the next."""
        if not channels:
            return []
        queues = [(channel, queue) for channel in channels for queue in channel.inward + channel.outward]
        sizes = [tf.raw_ops.QueueSizeV2(handle=queue) for _, queue in queues]

        def empty() -> tf.Tensor:
            taken = [tf.cond(tf.greater(size, 0), lambda c=channel, q=queue: c.take(q)[1], lambda: tf.constant(""))
                     for (channel, queue), size in zip(queues, sizes)]
            return tf.size(tf.stack(taken))

        return [tf.cond(tf.greater(tf.add_n(sizes), 0), empty, lambda: tf.constant(0)).op]

    def send_ended(self, rank: int, text: str = ENDED) -> list[tf.Operation]:
        """Ops that tell whoever still waits for `rank` that its step is over. Drained by `drain` afterwards."""
        waiting = [self.meeting.inward[rank], *(self.meeting.outward if rank == 0 else [])]
        return [self.meeting.put(queue, [tf.raw_ops.OptionalNone()], text) for queue in waiting]

    def end_wait_for(self, ranks: Sequence[int], text: str) -> None:
        """Makes the step of those fail, with `text`, who wait for `ranks`; called from outside of all launches."""
        with tf.device(HOST):
            for rank in ranks:
                self.send_ended(rank, TOO_LATE + text)

    def are_in_use(self, seconds: float) -> bool:
        """Whether a launch runs: whether the lock cannot be had within this time."""
        is_free = threading.Event()

        def take() -> None:
            tf.raw_ops.ConsumeMutexLock(mutex_lock=tf.raw_ops.MutexLock(mutex=self.mutex))
            is_free.set()

        threading.Thread(target=take, daemon=True).start()
        return not is_free.wait(seconds)
