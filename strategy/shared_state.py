"""State that is not replicated, in a step that every replica runs.

A plain variable made outside of the scope, an iterator, a mutable table or a generator exists once. Replicas that
changed it at the same time would race. Two cures keep the order of the replicas, and so the result, the same on every
run:

    the step does not synchronise    the calls of the body follow each other (`must_chain_calls`)
    the step synchronises            replicas must run at the same time, so they take turns around the ops that touch
                                     the state (`take_turns`), unless the turn would have to be held while the
                                     replica waits for others: that is refused, by name
"""

from __future__ import annotations

from typing import Sequence

import tensorflow as tf

from ..collective._tf import ANNOTATION
from ..collective.local import Channel
from ._tf import FuncGraph, written_resources
from .body import Body

_CONTROL_FLOW = ("If", "While", "Case", "StatelessIf", "StatelessWhile", "StatelessCase")


def must_chain_calls(body: Body, captures: Sequence[Sequence[tf.Tensor]], channels: Sequence[Channel]) -> bool:
    """Whether the body's calls must follow each other.

    Raises:
        RuntimeError: They must, and cannot, since the replicas wait for each other.
    """
    written = written_shared_resources(body.graph, captures)
    if not written:
        return False
    if not channels:
        return True
    names = ", ".join(sorted(_describe(body.graph, resource) for resource in written))
    raise RuntimeError(
        f"`strategy.run`: the step changes {names}, which exists once, and also synchronises the replicas. All "
        "replicas would change it at the same time, in no fixed order. Make it under `strategy.scope()`, pass its "
        "value to the step as an argument, or change it outside of `strategy.run`.")


def written_shared_resources(graph: FuncGraph, captures: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
    """The resources that the body may change and that are the same for all replicas: the body's own inputs."""
    inner = [tensor for tensor in graph.inputs if tensor.dtype in (tf.resource, tf.variant)]
    replicated = {id(placeholder) for placeholder, copies in zip(graph.internal_captures, captures)
                  if len({id(copy) for copy in copies}) > 1}
    shared = {id(tensor): tensor for tensor in inner if id(tensor) not in replicated}
    written: dict[int, tf.Tensor] = {}
    for op in graph.get_operations():
        for tensor in written_resources(op):
            if id(tensor) in shared and not _only_exchanges(tensor):
                written[id(tensor)] = tensor
    return list(written.values())


def _only_exchanges(placeholder: tf.Tensor) -> bool:
    """Whether a shared resource is one of the queues through which replicas exchange tensors."""
    captured = next((outer for outer, inner in placeholder.graph.captures if inner is placeholder), None)
    return getattr(captured, "_lockstep_queue", False)


def _describe(graph: FuncGraph, placeholder: tf.Tensor) -> str:
    captured = next((outer for outer, inner in graph.captures if inner is placeholder), placeholder)
    owner = getattr(captured, "_parent_trackable", None)
    owner = owner() if callable(owner) else owner
    name = getattr(owner, "name", None) or getattr(owner, "_name", None)
    kind = type(owner).__name__ if owner is not None else "a resource"
    return f"{kind} {name!r}" if name else f"{kind} ({placeholder.name})"


def synchronises_in_control_flow(body: Body, channels: Sequence[Channel]) -> bool:
    """Whether a collective of the body stands in a branch or a loop, where replicas could part ways."""
    if not channels:
        return False
    handles = {id(handle) for channel in channels
               for handle in (channel.own_inward.handles[0], channel.own_outward.handles[0])}
    inner = {id(placeholder) for outer, placeholder in body.graph.captures if id(outer) in handles}
    return any(any(id(tensor) in inner for tensor in op.inputs) and not is_collective(op)
               for op in body.graph.get_operations())


def is_collective(op: tf.Operation) -> bool:
    """Whether an op is itself one exchange, rather than a branch, loop or function that may hold some."""
    return ANNOTATION in op.node_def.attr
