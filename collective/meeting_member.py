"""The seat of a replica that meets the others of its process first, and then, once for all of them, the other workers.

How the replicas of a process meet is the business of the subclass; what becomes of what each has brought is told here:

    exchange     every worker gets everybody's, and combines it by itself
    reduce       the parts of a process are reduced, then those of the workers
    broadcast    the root's worker brings the root's part
"""

from __future__ import annotations

from typing import Callable, Sequence

import tensorflow as tf

from .member import Combine, Exchange, Member, Parts, Verdict
from .reduce_op import ReduceOp
from .worker_group import WorkerGroup, assert_none

# From the parts of this process's replicas, and the place of the exchange (sites.place_of), what all of them get.
Serve = Callable[[Parts, str], Sequence[tf.Tensor]]


class MeetingMember(Member):
    """The seat of a replica that meets others, in its process and beyond.

    Args:
        devices: The devices of this process's replicas.
        workers: Where the workers meet, None if there is one.
    """

    def __init__(self, devices: Sequence[str], workers: WorkerGroup | None):
        super().__init__(devices)
        self._workers = workers
        if workers is not None:
            self.size = workers.num_replicas

    def meet(self, tensors: Sequence[tf.Tensor], serve: Serve, what: Exchange,
             result_dtypes: Sequence[tf.DType] | None = None) -> list[tf.Tensor]:
        """Hands over `tensors`, and returns what `serve` makes of those of all replicas of this process.

        Synchronisation: every replica of this process must call.
        """
        raise NotImplementedError(f"{type(self).__name__}.meet")

    def fail_with(self, problem: tf.Tensor) -> tf.Operation:
        """An op that fails the step if `problem`, a string scalar, is not empty."""
        return assert_none(problem)

    def exchange(self, tensors: Sequence[tf.Tensor], combine: Combine, what: Exchange,
                 result_dtypes: Sequence[tf.DType] | None = None, verdict: Verdict | None = None) -> list[tf.Tensor]:
        def serve(parts: Parts, place: str) -> Sequence[tf.Tensor]:
            if self._workers is not None:
                parts = self._workers.gather(parts, what, place)
            return combine(self._approved(parts, verdict))

        return self.meet(tensors, serve, what, result_dtypes)

    def reduce(self, op: ReduceOp, tensors: Sequence[tf.Tensor], what: Exchange,
               verdict: Verdict | None = None) -> list[tf.Tensor]:
        workers = self._workers
        if workers is None or what.algorithm == "naive":
            return super().reduce(op, tensors, what, verdict)

        def serve(parts: Parts, place: str) -> Sequence[tf.Tensor]:
            return workers.reduce_parts(op, self._approved(parts, verdict), what, place, self.fail_with)

        return self.meet(tensors, serve, what, [op.result_dtype(tensor.dtype) for tensor in tensors])

    def broadcast(self, tensors: Sequence[tf.Tensor], root: int, what: Exchange) -> list[tf.Tensor]:
        workers = self._workers
        if workers is None:
            return super().broadcast(tensors, root, what)
        return self.meet(tensors, lambda parts, place: workers.broadcast_part(parts, root, what, place), what)

    def _approved(self, parts: Parts, verdict: Verdict | None) -> Parts:
        """The parts, after the verdict on them."""
        if verdict is None:
            return parts
        fine = self.fail_with(verdict(parts))
        with tf.control_dependencies([fine]):
            return [[tf.identity(tensor) for tensor in part] for part in parts]
