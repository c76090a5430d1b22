"""Which replica the running code is.

Variables, contexts and collectives all ask here. Three answers exist: a replica (its step is being traced, or runs in
Python), an update of one copy (`extended.update` goes through the copies), or neither: cross-replica context.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import Any, Callable, Iterator

import tensorflow as tf

from ..collective import Member
from ._tf import traces_apart_by


@dataclasses.dataclass(frozen=True)
class ReplicaScope:
    """A replica whose step is running.

    Attributes:
        strategy: The strategy whose `run` it is.
        member: Its seat in the sync group.
        index: Its position among the local replicas; 0 while a body is traced that stands for all of them.
        is_traced_once: Whether the running code is such a body.
        in_graph: Whether the step builds a graph; code under `tf.init_scope` then is outside of it.
        merge: How `merge_call` calls a function once for all replicas, where they run one by one; None elsewhere.
        in_merge_call: Whether the running code is a function given to `merge_call`, traced for all replicas: it speaks
            of all copies of a variable at once, while it sees this replica's only.
    """

    strategy: tf.distribute.Strategy
    member: Member
    index: int
    is_traced_once: bool
    in_graph: bool
    merge: Callable[[Callable[..., Any], Any, Any], Any] | None = None
    in_merge_call: bool = False


class _State(threading.local):
    scope: ReplicaScope | None = None
    is_merging: bool = False
    updated_index: int | None = None


_state = _State()


def current() -> ReplicaScope | None:
    """The replica that the running code is, or None; None also where `tf.init_scope` has left the step's graph."""
    scope = _state.scope
    if scope is not None and scope.in_graph and tf.executing_eagerly():
        return None
    return scope


def updated_index() -> int | None:
    """The copy that `extended.update` is updating, or None."""
    return _state.updated_index


def copy_index(strategy: tf.distribute.Strategy) -> int | None:
    """The index of the copy that the running code sees of a variable of `strategy`; None in cross-replica context."""
    if _state.updated_index is not None:
        return _state.updated_index
    scope = current()
    return scope.index if scope is not None and scope.strategy is strategy else None


@contextlib.contextmanager
def entered(scope: ReplicaScope | None) -> Iterator[None]:
    """Makes `scope` the current one."""
    before, before_update = _state.scope, _state.updated_index
    _state.scope, _state.updated_index = scope, None
    try:
        yield
    finally:
        _state.scope, _state.updated_index = before, before_update


@contextlib.contextmanager
def merging() -> Iterator[None]:
    """Marks the running code as a function given to `merge_call` that is called once for all replicas."""
    before = _state.is_merging
    _state.is_merging = True
    try:
        with entered(None):
            yield
    finally:
        _state.is_merging = before


def is_running() -> bool:
    """Whether the running code is part of a step, a function given to `merge_call` included."""
    return current() is not None or _state.is_merging


@contextlib.contextmanager
def updating(index: int) -> Iterator[None]:
    """Marks the running code as an update of copy `index`."""
    before = _state.updated_index
    _state.updated_index = index
    try:
        yield
    finally:
        _state.updated_index = before


def _trace_token() -> object:
    """What a nested tf.function's trace belongs to: the replica that runs it, all replicas of a strategy being one."""
    scope = _state.scope
    if scope is None:
        return None
    return (id(scope.strategy), scope.is_traced_once, scope.in_merge_call, scope.index, _state.updated_index)


traces_apart_by(_trace_token)
