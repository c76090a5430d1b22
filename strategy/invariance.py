"""Whether a tensor of a traced body is the same on every replica.

A body is traced once and run by every replica, so two replicas compute different values only where they read something
different: their arguments, their own copies of an ON_READ variable (the replica id and the random streams are such),
or state that other replicas have changed in between. Everything computed from constants, mirrored variables, results
of collectives and shared arguments is equal by construction. `is_equal_on_all_replicas` walks from a tensor back to
what it was computed from; where it cannot see, it answers False, and the caller compares the values instead.
"""

from __future__ import annotations

import tensorflow as tf

from ..collective import Copies
from ..collective._tf import ANNOTATION, SHARED_RESULTS
from ..collective.copies import is_meeting_place
from . import replica_scope
from ._tf import FuncGraph

SHARED_INPUT = "_lockstep_shared_input"

# Stateful ops that give the same on every replica for the same inputs.
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "If", "While",
                    "StatefulPartitionedCall", "QueueDequeueV2", "Assert", "LookupTableFindV2", "LookupTableSizeV2"})


def is_equal_on_all_replicas(tensor: tf.Tensor) -> bool:
    """Whether `tensor`, of a body or of a function inside one, is equal on all replicas by construction."""
    seen: set[int] = set()
    todo = [tensor]
    while todo:
        at = todo.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        if getattr(at, "graph", None) is None:  # An eager tensor.
            if not _is_equal_capture(at):
                return False
            continue
        op = at.op
        if _is_collective_result(at):
            continue
        if op.type == "Placeholder":
            source = _source(at)
            if source is None:
                return False
            if source is SHARED_INPUT:
                if _spans_workers():
                    return False
            else:
                todo.append(source)
            continue
        if op.op_def is not None and op.op_def.is_stateful and op.type not in _READS:
            return False
        todo.extend(op.inputs)
    return True


def needs(tensor: tf.Tensor) -> set[int] | None:
    """Ids of the inputs of its graph that `tensor` is computed from; None where replicas may draw different numbers."""
    seen: set[int] = set()
    found: set[int] = set()
    todo = [tensor]
    while todo:
        at = todo.pop()
        if id(at) in seen or _is_collective_result(at):
            continue
        seen.add(id(at))
        if at.op.type == "Placeholder":
            found.add(id(at))
        elif at.op.op_def is not None and at.op.op_def.is_stateful and at.op.type not in _READS:
            return None
        todo.extend(at.op.inputs)
    return found


def _is_collective_result(tensor: tf.Tensor) -> bool:
    """Whether a collective has made the tensor: its result is shared."""
    kind = tensor.op.type
    if kind.endswith("PartitionedCall") or kind.startswith("Collective"):
        return ANNOTATION in tensor.op.node_def.attr
    return kind == "IdentityN" and tensor.value_index < tensor.op.node_def.attr[SHARED_RESULTS].i


def is_exchange(tensor: tf.Tensor) -> bool:
    """Whether an input of an op is what the replicas meet through: the op takes part in an exchange."""
    while tensor.dtype == tf.resource and getattr(tensor, "graph", None) is not None:
        source = _source(tensor) if tensor.op.type == "Placeholder" else None
        if source is None or source is SHARED_INPUT:
            return False
        tensor = source
    return is_meeting_place(tensor)


def is_given_from_outside(tensor: tf.Tensor) -> bool:
    """Whether the step has `tensor` from outside, the same on every replica: it is captured, or a shared argument."""
    while getattr(tensor, "graph", None) is not None:
        if tensor.op.type != "Placeholder":
            return False
        source = _source(tensor)
        if source is None or source is SHARED_INPUT:
            return source is SHARED_INPUT
        tensor = source
    return True


def mark_shared_input(placeholder: tf.Tensor) -> None:
    """Marks a body's input that every replica gets alike."""
    placeholder._lockstep_shared = True


def _source(placeholder: tf.Tensor) -> tf.Tensor | str | None:
    """What a placeholder stands for: a captured tensor, a shared input, or unknown (None)."""
    if getattr(placeholder, "_lockstep_shared", False):
        return SHARED_INPUT
    graph = placeholder.graph
    if isinstance(graph, FuncGraph):
        for outer, inner in graph.captures:
            if inner is placeholder:
                return outer
    return None


def _spans_workers() -> bool:
    """Whether the step runs on several workers: each is given tensors by a program of its own."""
    scope = replica_scope.current()
    return scope is not None and scope.strategy.extended.workers is not None


def _is_equal_capture(eager: tf.Tensor) -> bool:
    """An eager tensor is a constant; a handle leads to a resource, which must not be a replica's own."""
    if eager.dtype != tf.resource:
        return eager.dtype != tf.variant and not _spans_workers()
    copies = Copies.of(eager)
    # State that exists once may be changed by the replicas in turn, and then they read different values.
    return copies.is_equal if copies is not None else getattr(eager, "_lockstep_queue", False)
