"""The seat of a replica that runs a traced body: it meets the others of its process through queues, see local.py.

Where there are several workers, replica 0 of each brings what its worker has to the other workers, and the result to
its own: one exchange between processes, however many replicas each has.
"""

from __future__ import annotations

import functools
import itertools
from typing import Callable, Sequence

import tensorflow as tf

from . import _tf
from .device_collectives import join_group
from .local import HOST, MISMATCH, Channel, Queues, unwrapped, wrapped
from .meeting_member import MeetingMember, Serve
from .member import Exchange
from .sites import place_of
from .worker_group import DEVICES_GROUP, WorkerGroup

_instance_keys = itertools.count(1)


class QueueMember(MeetingMember):
    """The seat of "the replica that runs this body".

    Args:
        devices: The devices of this process's replicas.
        rank_variable: Holds the replica's rank in the sync group.
        queues: Where this process's replicas meet.
        workers: Where the workers meet, None if there is one.
    """

    can_use_device_collectives = True

    def __init__(self, devices: Sequence[str], rank_variable: tf.Variable, queues: Queues,
                 workers: WorkerGroup | None = None):
        super().__init__(devices, workers)
        self._rank_variable = rank_variable
        self._queues = queues

    @property
    def shares_a_device_with_the_host(self) -> bool:
        """Whether a replica runs on the device where the queues are."""
        return any(tf.DeviceSpec.from_string(device).device_type == "CPU" for device in self.devices)

    @property
    def rank(self) -> tf.Tensor:
        return tf.raw_ops.ReadVariableOp(resource=_tf.outside_of_loops(self._rank_variable.handle), dtype=tf.int32)

    @functools.cached_property
    def group_key(self) -> int:
        key = self._queues.group_key if self._workers is None else DEVICES_GROUP
        join_group(self.devices, key, self.size)
        return key

    def instance_key(self, what: Exchange, shapes: str, num_keys: int) -> int:
        _refuse_xla(what)
        if self._workers is None:
            return next(_instance_keys) * num_keys % (1 << 31)
        place = place_of(tf.compat.v1.get_default_graph())
        return self._workers.sites.key(what, place, shapes, is_block=not shapes)

    def collective(self, instance_key: tf.Tensor, operand: tf.Tensor, run: Callable[[tf.Tensor], tf.Tensor]
                   ) -> tf.Tensor:
        workers = self._workers
        if workers is None:
            return run(operand)

        def says(name: str, words: Callable[[tf.Tensor], list[tf.Operation]]) -> tf.Operation:
            """The op by which the first of this process's replicas tells the watch something."""
            def say(key: tf.Tensor) -> list[tf.Tensor]:
                def told() -> tf.Tensor:
                    with tf.control_dependencies(words(key)):
                        return tf.constant(0)

                tf.compat.v1.get_default_graph()._lockstep_on_host = True
                with tf.device(HOST):
                    return [tf.cond(tf.equal(self.rank, workers.first_replica), told, lambda: tf.constant(0))]

            return on_host(name, say, [instance_key])[0].op

        with tf.control_dependencies([says("waits", workers.waits_at)]):
            operand = tf.identity(operand)
        result = run(operand)
        with tf.control_dependencies([result.op]):
            completed = says("has completed", lambda _: workers.has_completed())
        with tf.control_dependencies([completed]):
            return tf.identity(result)

    def fail_with(self, problem: tf.Tensor) -> tf.Operation:
        return self._queues.fail_with(problem)

    def meet(self, tensors: Sequence[tf.Tensor], serve: Serve, what: Exchange,
             result_dtypes: Sequence[tf.DType] | None = None) -> list[tf.Tensor]:
        _refuse_xla(what)
        place = place_of(tf.compat.v1.get_default_graph())
        dtypes = [tensor.dtype for tensor in tensors]
        meeting = self._queues.meeting
        tag = str(what)

        def reduce() -> tf.Tensor:
            elements, tags = zip(*(meeting.take(queue) for queue in meeting.inward))
            with tf.control_dependencies([self._queues.fail_with(mismatch(tags, tag))]):
                parts = [unwrapped(element, dtypes) for element, in elements]
            if self._workers is not None:
                # What workers exchange is made for static shapes, and all replicas have those of the body.
                parts = [[tf.ensure_shape(tensor, mine.shape) for tensor, mine in zip(part, tensors)] for part in parts]
            results = wrapped(serve(parts, place))
            for queue in meeting.outward:
                meeting.put(queue, [results], tag)
            return tf.constant(0)

        def met(*mine: tf.Tensor) -> list[tf.Tensor]:
            tf.compat.v1.get_default_graph()._lockstep_on_host = True
            first = 0 if self._workers is None else self._workers.first_replica
            with tf.device(HOST):
                with tf.control_dependencies(self._queues.attendance.note(self.rank - first, tag)):
                    meeting.put(meeting.own_inward.handles[0], [wrapped(mine)], tag)
                tf.cond(tf.equal(self.rank, first), reduce, lambda: tf.constant(0))
                (result,), received = meeting.take(meeting.own_outward.handles[0])
                with tf.control_dependencies([self._queues.fail_with(mismatch([received], tag))]):
                    return unwrapped(result, result_dtypes or dtypes)

        return on_host(what.kind, met, tensors, what)

    def deliver(self, tensors: Sequence[tf.Tensor]) -> Channel:
        """Puts this replica's results where the launch takes them: in the own out-queue of a new channel.

        A launch could return them directly, but then they would wait on the host beside the call of the replica that
        runs there, see `on_host`.
        """
        channel = self._queues.new_channel([tensor.dtype for tensor in tensors])
        own = channel.own_outward.handles[0]

        def put(*mine: tf.Tensor) -> list[tf.Tensor]:
            tf.compat.v1.get_default_graph()._lockstep_on_host = True
            with tf.device(HOST), tf.control_dependencies([channel.put(own, mine, "")]):
                return [tf.constant(0)]

        on_host("deliver", put, tensors)
        return channel


def on_host(name: str, function: Callable[..., list[tf.Tensor]], tensors: Sequence[tf.Tensor],
            what: Exchange | None = None) -> list[tf.Tensor]:
    """Calls `function`, whose ops stand on the host, as a function of its own on the replica's device.

    Were it spread over two devices, tensors would wait on their way between them. When a step fails, whatever waits is
    cancelled: TensorFlow 2.21 then reports the cancellation instead of the cause, and can hang or crash when several
    tensors wait (LocalRendezvous::DoAbort).
    """
    function.__name__ = name.replace("-", "_").replace(" ", "_")
    called = tf.function(function, autograph=False, experimental_attributes={"_noinline": True})
    with tf.name_scope(function.__name__):
        results = _tf.call_once(called, [tf.stop_gradient(tensor) for tensor in tensors])
    _tf.leave_optimized(results[0].op)
    _tf.annotate(results[0].op, what.to_json() if what is not None else "")
    return results


def _refuse_xla(what: Exchange) -> None:
    if _tf.is_for_xla(tf.compat.v1.get_default_graph()):
        raise ValueError(f"`jit_compile=True` under a strategy with several replicas: {what} stands in a tf.function "
                         "that XLA compiles, and XLA cannot compile the exchange between the replicas. Leave "
                         "`jit_compile` out there, or give it to functions that exchange nothing.")


def mismatch(tags: Sequence[tf.Tensor], expected: str) -> tf.Tensor:
    """A text that names the replicas' collectives, from replica 0 on, or "" where all tags are the expected one."""
    same = tf.reduce_all(tf.equal(tf.stack(list(tags)), expected))
    named = [tf.strings.join([f"replica {rank}: ", tag]) for rank, tag in enumerate(tags)]
    return tf.cond(same, lambda: tf.constant(""), lambda: tf.strings.join(
        [f"{MISMATCH}: ", tf.strings.reduce_join(tf.stack(named), separator="; "), f"; expected: {expected}"]))


def runs_on_host(graph: tf.Graph) -> bool:
    """Whether a graph is that of an exchange, or of a branch of one, whose ops stay on the host."""
    while graph is not None:
        if getattr(graph, "_lockstep_on_host", False):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
