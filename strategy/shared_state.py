"""State that is not replicated, in a step that every replica runs.

A plain variable made outside of the scope, an iterator, a mutable table or a generator exists once. Replicas that
changed it at the same time would race. Two cures keep the order of the replicas, and so the result, the same on every
run:

    the step does not synchronise    the calls of the body follow each other: `Sharing.CHAINED_CALLS`
    the step synchronises            the replicas must run at the same time, so they take turns around the ops that
                                     touch the state: `Sharing.TURNS`

Turns need that no replica waits for others during its turn. A collective that needs the state, and that the state
needs in turn, or that stands with it in one branch, loop or function, is refused with the names of the state.
"""

from __future__ import annotations

import enum
from typing import Any

import tensorflow as tf

from ..collective import Copies
from ..collective._tf import ANNOTATION
from ..collective.turns import Turns, reachable
from ._tf import FuncGraph, written_resources
from .captures import captured


class Sharing(enum.Enum):
    """How the replicas' calls of a body keep the order in which they change shared state."""

    NOTHING = "nothing is shared, or nothing shared is changed"
    CHAINED_CALLS = "the calls follow each other"
    TURNS = "the replicas take turns around the ops that touch the state"


def order_shared_state(graph: FuncGraph, turns: Turns) -> Sharing:
    """Finds the shared state that a traced body changes, and makes the body take turns if it must.

    Args:
        graph: The body's graph, before it is made a function.
        turns: The sync group's turns.

    Raises:
        RuntimeError: The replicas would wait for each other during a turn.
    """
    state = written_shared_resources(graph)
    if not state:
        return Sharing.NOTHING
    exchanging = exchange_placeholders(graph)
    collectives = {op for op in graph.get_operations() if any(id(tensor) in exchanging for tensor in op.inputs)}
    if not collectives:
        return Sharing.CHAINED_CALLS
    touching = [op for op in graph.get_operations() if any(id(tensor) in state for tensor in op.inputs)]
    if reachable(touching, forward=True) & reachable(touching, forward=False) & collectives:
        names = ", ".join(sorted(_describe(placeholder) for placeholder in state.values()))
        raise RuntimeError(
            f"`strategy.run`: the step changes {names}, which exists once, and synchronises the replicas in "
            "between, or in the same branch, loop or function. Each replica would have to wait for the others before "
            "its turn to change it ends. Make it under `strategy.scope()`, pass its value to the step as an argument, "
            "or change it outside of `strategy.run`.")
    with graph.as_default(), tf.control_dependencies(None):
        begin = turns.begin()
        for op in touching:
            op._add_control_input(begin)
        with tf.control_dependencies(touching):
            end = turns.end()
    graph.control_outputs.append(end)
    return Sharing.TURNS


def written_shared_resources(graph: FuncGraph) -> dict[int, tf.Tensor]:
    """The body's resource inputs that are one and the same for all replicas and that it may change, by id."""
    exempt = {id(inner) for outer, inner in graph.captures
              if Copies.of(outer) is not None or getattr(outer, "_lockstep_queue", False)}
    shared = {id(tensor) for tensor in graph.inputs if tensor.dtype == tf.resource} - exempt
    return {id(tensor): tensor for op in graph.get_operations() for tensor in written_resources(op)
            if id(tensor) in shared}


def exchange_placeholders(graph: FuncGraph) -> set[int]:
    """Ids of the body's inputs that are replicas' own queues: what uses one takes part in an exchange."""
    return {id(inner) for outer, inner in graph.captures
            if (copies := Copies.of(outer)) is not None and copies.is_queue}


def synchronises_in_control_flow(graph: FuncGraph) -> bool:
    """Whether a collective of the body stands in a branch, loop or function, where replicas could part ways."""
    exchanging = exchange_placeholders(graph)
    return any(any(id(tensor) in exchanging for tensor in op.inputs) and not is_collective(op)
               for op in graph.get_operations())


def is_collective(op: tf.Operation) -> bool:
    """Whether an op is itself one exchange, rather than a branch, loop or function that may hold some."""
    return ANNOTATION in op.node_def.attr or op.type in ("QueueEnqueueV2", "QueueDequeueV2")


def _describe(placeholder: tf.Tensor) -> str:
    owner: Any = getattr(captured(placeholder), "_parent_trackable", None)
    owner = owner() if callable(owner) else owner
    name = getattr(owner, "name", None) or getattr(owner, "_name", None)
    kind = type(owner).__name__ if owner is not None else "a resource"
    return f"{kind} {name!r}" if name else f"{kind} ({placeholder.name})"
