"""The body: a step traced once, for every replica.

`trace_body` runs the user's function once, in a graph of its own, as "the replica that calls this graph". What differs
between replicas is not in the body but behind its captures: variables' copies, queues, the replica id, random streams.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Iterator, Sequence

import tensorflow as tf

from ..collective import QueueMember
from ..collective.local import Channel
from . import activity, branches, empty_batches, replica_scope
from ._tf import (
    AtomicFunction,
    ConcreteFunction,
    FuncGraph,
    callbacks_on_ops,
    concrete_function,
    convert_with_autograph,
    summaries_written_if,
    trace_into,
)
from .arguments import Arguments
from .invariance import mark_shared_input
from .replica_context import ReplicaContext
from .replicated_variable import ReplicatedVariable
from .shared_state import Sharing, order_shared_state
from .variable_creation import kept_by_the_program

# Attributes of a function: its calls stay calls.
NOT_INLINED = {"_noinline": tf.compat.v1.AttrValue(b=True)}


@dataclasses.dataclass(frozen=True)
class Body:
    """A traced step.

    Attributes:
        graph: The step's graph.
        function: The function that it defines.
        structure: What the step returned, with tensors replaced by their specs.
        results: Where the replicas put their results, or None if the body returns them.
        result_shapes: The static shapes of one replica's flat results.
        sharing: How the replicas keep the order in which they change state that exists once.
    """

    graph: FuncGraph
    function: ConcreteFunction | AtomicFunction
    structure: "Outputs"
    results: Channel | None
    result_shapes: list[tf.TensorShape]
    sharing: Sharing


@dataclasses.dataclass(frozen=True)
class Outputs:
    """The structure of a step's result: which leaves are tensors, and what the others are.

    Attributes:
        template: The result; a leaf's place holds its position among the leaves.
        specs: By leaf: the spec of a tensor or composite tensor, or None.
        constants: By leaf: the Python object where the spec is None.
    """

    template: Any
    specs: tuple[tf.TypeSpec | None, ...]
    constants: tuple[Any, ...]

    @classmethod
    def of(cls, result: Any) -> tuple["Outputs", list[tf.Tensor]]:
        """The structure of `result`, and its tensors in order, composite tensors taken apart."""
        specs: list[tf.TypeSpec | None] = []
        constants: list[Any] = []
        tensors: list[tf.Tensor] = []
        for leaf in tf.nest.flatten(result):
            if isinstance(leaf, tf.Operation):
                leaf = None
            if _is_tensor_like(leaf):
                specs.append(tf.type_spec_from_value(leaf))
                constants.append(None)
                tensors.extend(tf.nest.flatten(leaf, expand_composites=True))
            else:
                specs.append(None)
                constants.append(leaf)
        return cls(result, tuple(specs), tuple(constants)), tensors

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[Any]:
        """The leaves, from one replica's flat tensors."""
        at = 0
        leaves = []
        for spec, constant in zip(self.specs, self.constants):
            if spec is None:
                leaves.append(constant)
                continue
            count = len(tf.nest.flatten(spec, expand_composites=True))
            leaves.append(tf.nest.pack_sequence_as(spec, list(tensors[at:at + count]), expand_composites=True))
            at += count
        return leaves


def _is_tensor_like(leaf: Any) -> bool:
    if isinstance(leaf, (ReplicatedVariable, tf.Variable)):
        return False
    return tf.is_tensor(leaf) or isinstance(leaf, (tf.IndexedSlices, tf.RaggedTensor, tf.SparseTensor))


@contextlib.contextmanager
def as_any_replica(strategy: tf.distribute.Strategy, graph: FuncGraph) -> Iterator[None]:
    """Traces what follows into `graph` as the step of whichever replica will run it."""
    extended = strategy.extended
    member = extended.traced_member
    scope = replica_scope.ReplicaScope(strategy, member, 0, is_traced_once=True, in_graph=True)

    def on_op(*created: Any, **place: Any) -> Sequence[tf.Tensor] | None:
        branches.on_op(*created, **place)
        replaced = extended.random_streams.on_op(*created, **place)
        return empty_batches.on_op(*created, **place) if replaced is None else replaced

    with graph.device(extended.replica_pins), replica_scope.entered(scope), callbacks_on_ops(on_op), \
            summaries_written_if(lambda: tf.equal(member.rank, 0)), ReplicaContext(strategy, member, 0):
        yield


def trace_body(strategy: tf.distribute.Strategy, name: str, arguments: Arguments, with_autograph: bool,
               returns_results: bool = False) -> Body:
    """Traces a function once for the given arguments.

    Args:
        strategy: The strategy whose replicas will run the body.
        name: The name of the graph.
        arguments: The function and what it is called with; their specs are the body's inputs.
        with_autograph: Whether its Python control flow is converted.
        returns_results: Whether the body returns its results, as one that is differentiated must.
    """
    extended = strategy.extended
    graph = FuncGraph(name)
    member = extended.traced_member
    traced: list[tuple[Outputs, list[tf.TensorShape]]] = []
    channels: list[Channel] = []

    def step(*inputs: Any) -> list[tf.Tensor]:
        for tensor in tf.nest.flatten(arguments.shared_of(inputs), expand_composites=True):
            mark_shared_input(tensor)
        args, kwargs = arguments.rebuild(inputs)
        with as_any_replica(strategy, graph):
            result = convert_with_autograph(arguments.bound_function(), with_autograph)(*args, **kwargs)
            structure, tensors = Outputs.of(result)
            tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
            traced.append((structure, [tensor.shape for tensor in tensors]))
            if tensors and not returns_results and isinstance(member, QueueMember) \
                    and member.shares_a_device_with_the_host:
                channels.append(member.deliver(tensors))
                return []
        return tensors

    with activity.busy(f"tracing {name}"), kept_by_the_program(name):
        trace_into(graph, step, arguments.signature, automatic_control_dependencies=True)
    sharing = order_shared_state(graph, extended.turns) if member.size > 1 else Sharing.NOTHING
    function = concrete_function(graph, NOT_INLINED)
    structure, shapes = traced[0]
    return Body(graph, function, structure, channels[0] if channels else None, shapes, sharing)
