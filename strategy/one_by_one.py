"""Replicas that run one by one in Python.

A plain function that is called eagerly runs once per replica, so that it can be debugged; a step that has no single
trace is traced once per replica in the same way. Each replica runs on a thread of its own, but only one at a time: a
replica runs until it ends or reaches a synchronisation point, then the next one does. When all have reached the point,
it is served once and everyone goes on. The order is that of the replicas, on every run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import Any, Callable, Sequence

import tensorflow as tf
from absl import logging

from ..collective import CollectiveMismatchError, Exchange
from ..collective.meeting_member import MeetingMember, Serve
from ..collective.sites import place_of
from . import replica_scope
from ._tf import callbacks_on_ops, convert_with_autograph, summaries_written_if, summary_state
from .function_key import Closure
from .replica_context import ReplicaContext
from .values import regroup, select


def run_one_by_one(strategy: tf.distribute.Strategy, function: Callable[..., Any], args: Sequence[Any],
                   kwargs: dict[str, Any]) -> Any:
    """Runs `function` once per local replica and regroups the results.

    Raises:
        CollectiveMismatchError: The replicas reached different synchronisation points.
        BaseException: What a replica raised first, with a note that names the replica.
    """
    size = len(strategy.extended.worker_devices)
    closure = Closure(function)
    made: list[tuple[Any, Any]] = []
    # Converted here: a thread does not know its caller's status.
    replicas = [_Replica(strategy, index, convert_with_autograph(closure.of_replica(index), always=False),
                         select(index, tuple(args)), select(index, kwargs), made) for index in range(size)]
    try:
        while True:
            for replica in replicas:
                replica.go_on()
                if replica.error is not None:
                    raise replica.error
            if all(replica.point is None for replica in replicas):
                return regroup([replica.result for replica in replicas])
            _serve(replicas)
            for replica in replicas:
                replica.num_taken = len(made)
    finally:
        for replica in replicas:
            replica.abandon()


def _serve(replicas: Sequence["_Replica"]) -> None:
    points = [replica.point for replica in replicas]
    first = points[0]
    if any(point is None or first is None or point.label != first.label for point in points):
        reached = "; ".join(f"replica {index}: {point.label if point else 'end of the step'}"
                            for index, point in enumerate(points))
        raise CollectiveMismatchError(
            f"`strategy.run`: the replicas reached different synchronisation points ({reached}). All replicas must "
            "call the same collectives in the same order: move the call out of the branch that depends on the replica.")
    assert first is not None
    answers = first.serve([point.payload for point in points if point is not None])
    for replica, answer in zip(replicas, answers, strict=True):
        replica.answer = answer


@dataclasses.dataclass(frozen=True)
class _Point:
    """A synchronisation point that a replica has reached.

    Attributes:
        label: What it is; all replicas must agree.
        payload: What the replica brings.
        serve: Turns all replicas' payloads into all replicas' answers.
    """

    label: str
    payload: Any
    serve: Callable[[list[Any]], Sequence[Any]]


class _Running(threading.local):
    """The replica that runs on this thread."""

    replica: "_Replica"


_running = _Running()


class _Abandoned(BaseException):
    """Ends the thread of a replica whose step will not be finished."""


class _Replica:
    """One replica's thread, and the hand-over of the right to run."""

    def __init__(self, strategy: tf.distribute.Strategy, index: int, function: Callable[..., Any], args: Any,
                 kwargs: Any, made: list[tuple[Any, Any]]):
        self._strategy, self.index = strategy, index
        self._function, self._args, self._kwargs = function, args, kwargs
        self._summaries = summary_state()
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._may_run, self._has_paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main, name=f"replica_{index}", daemon=True)
        self._is_over = False
        self._abandoned = False
        # What any replica has made for all, by key, and how much of it this replica has passed.
        self._made = made
        self.num_taken = 0
        self.point: _Point | None = None
        self.answer: Any = None
        self.result: Any = None
        self.error: BaseException | None = None

    def go_on(self) -> None:
        """Lets the replica run until its next synchronisation point or its end."""
        if self._is_over:
            return
        self.point = None
        if self._thread.ident is None:
            self._thread.start()
        self._may_run.release()
        seconds = self._strategy.extended.options.warn_seconds
        if not self._has_paused.acquire(timeout=seconds):
            logging.warning(
                "strategy.run: replica %d has run for %.0f s, and the others wait for their turn: replicas of a plain "
                "function that is called eagerly run one after the other. If it waits for another replica in a way of "
                "its own, decorate it with @tf.function, or use the collectives of the replica context.",
                self.index, seconds)
            self._has_paused.acquire()

    def abandon(self) -> None:
        """Ends the replica wherever it is."""
        if self._thread.ident is not None and not self._is_over:
            self._abandoned = True
            self._may_run.release()
        if self._thread.ident is not None:
            self._thread.join()

    def reach(self, point: _Point) -> Any:
        """Called on the replica's thread: waits at `point` and returns the answer."""
        self.point = point
        self._has_paused.release()
        self._may_run.acquire()
        if self._abandoned:
            raise _Abandoned
        return self.answer

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` made for the first replica that came here since the last synchronisation point.

        A replica may pass over what another one has made: an optimizer makes its variables on the first call, and has
        them when the next replica calls.
        """
        for position in range(self.num_taken, len(self._made)):
            if self._made[position][0] == key:
                self.num_taken = position + 1
                return self._made[position][1]
        made = make()
        self._made.append((key, made))
        self.num_taken = len(self._made)
        return made

    def _main(self) -> None:
        self._may_run.acquire()
        try:
            if not self._abandoned:
                self.result = self._run()
        except _Abandoned:
            pass
        except BaseException as error:
            error.add_note(f"Raised by replica {self.index} ({self._strategy.extended.worker_devices[self.index]}).")
            self.error = error
        finally:
            self._is_over = True
            self._has_paused.release()

    def _run(self) -> Any:
        _running.replica = self
        member = OneByOneMember(self._strategy, self.index, self._graph)
        scope = replica_scope.ReplicaScope(self._strategy, member, self.index, is_traced_once=False,
                                           in_graph=self._graph is not None, merge=member.merge)
        device = self._strategy.extended.worker_devices[self.index]
        # A new thread is eager. Not tf.init_scope: it would stop the recording of the step's gradient tapes.
        graph = self._graph.as_default() if self._graph is not None else contextlib.nullcontext()
        with graph, self._strategy.scope(), tf.device(device), tf.name_scope(f"replica_{self.index}"), \
                replica_scope.entered(scope), summaries_written_if(lambda: member.rank == 0, self._summaries), \
                callbacks_on_ops(self._strategy.extended.random_streams.on_op), \
                ReplicaContext(self._strategy, member, self.index):
            return self._function(*self._args, **self._kwargs)


class OneByOneMember(MeetingMember):
    """The seat of a replica that runs on its own thread, one at a time.

    It meets the others through the replica that runs on the calling thread: gradients of collectives are taken later,
    on other threads than those of the step.
    """

    def __init__(self, strategy: tf.distribute.Strategy, index: int, graph: tf.Graph | None):
        super().__init__(strategy.extended.worker_devices, strategy.extended.workers)
        self._strategy, self._index, self._graph = strategy, index, graph

    @property
    def rank(self) -> int:
        return self._strategy.extended.first_replica + self._index

    def meet(self, tensors: Sequence[tf.Tensor], serve: Serve, what: Exchange,
             result_dtypes: Sequence[tf.DType] | None = None) -> list[tf.Tensor]:
        self._check_not_inside_function(what.kind)

        def answer(parts: list[Any]) -> list[Any]:
            return [list(serve(parts, place_of(self._graph)))] * len(self.devices)

        brought = what.tensors[0] if what.kind == "agree" else \
            f"{len(tensors)} {what.dtype} tensor{'s' * (len(tensors) != 1)}"
        label = f"{what.kind}{' ' * bool(what.op)}{what.op} of {brought}"
        return list(_running.replica.reach(_Point(label, list(tensors), answer)))

    def merge(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls `merge_fn` once, with the replicas' arguments regrouped; every replica gets its part of the result."""
        self._check_not_inside_function("merge_call")

        def serve(calls: list[Any]) -> list[Any]:
            merged_args, merged_kwargs = regroup(calls)
            with replica_scope.merging():
                result = merge_fn(self._strategy, *merged_args, **merged_kwargs)
            return [select(index, result) for index in range(len(self.devices))]

        return _running.replica.reach(_Point("merge_call", (tuple(args), kwargs or {}), serve))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        return _running.replica.once(key, make)

    def _check_not_inside_function(self, what: str) -> None:
        if tf.executing_eagerly() or tf.compat.v1.get_default_graph() is self._graph:
            return
        raise RuntimeError(
            f"`{what}` was called in a tf.function, and that in a step whose replicas run one by one: they could not "
            "meet there. Decorate the step that you pass to `strategy.run` with `@tf.function`.")
