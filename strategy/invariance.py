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
from .captures import captured, origin

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
        elif at.op.type != "Placeholder":
            needed = needs(at)
            if needed is None:
                return False
            todo.extend(needed)
        elif not _is_shared_input(at):
            outer = captured(at)
            if outer is None:
                return False
            todo.append(outer)
        elif _spans_workers():
            return False
    return True


def needs(tensor: tf.Tensor) -> list[tf.Tensor] | None:
    """The inputs of its graph that `tensor` is computed from; None where replicas may draw different numbers."""
    seen: set[int] = set()
    found: list[tf.Tensor] = []
    todo = [tensor]
    while todo:
        at = todo.pop()
        if id(at) in seen or _is_collective_result(at):
            continue
        seen.add(id(at))
        if at.op.type == "Placeholder":
            found.append(at)
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
    return tensor.dtype == tf.resource and is_meeting_place(origin(tensor))


def is_given_from_outside(tensor: tf.Tensor) -> bool:
    """Whether the step has `tensor` from outside, the same on every replica: it is captured, or a shared argument."""
    tensor = origin(tensor)
    return getattr(tensor, "graph", None) is None or _is_shared_input(tensor)


def mark_shared_input(placeholder: tf.Tensor) -> None:
    """Marks a body's input that every replica gets alike."""
    placeholder._lockstep_shared = True


def _is_shared_input(tensor: tf.Tensor) -> bool:
    return getattr(tensor, "_lockstep_shared", False)


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
