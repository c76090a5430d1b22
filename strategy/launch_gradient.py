"""Gradients through a launch: a tape around `strategy.run`.

The backward pass of a launch is a launch: TensorFlow derives the backward function of the body, once, and every replica
calls it with the gradients of its own results and with what its own forward pass has kept. Collectives in the body have
gradients that are collectives, so replicas meet in the backward pass as they did in the forward pass.

    forward launch     inputs_r, copies_r            ->  results_r, kept_r
    backward launch    d results_r, kept_r, copies_r ->  d inputs_r, d copies_r

A mirrored variable is one variable to the outside: its gradient is the sum over the replicas' copies.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

import tensorflow as tf

from ..collective.copies import is_meeting_place
from ._tf import FuncGraph, backward_function, call_flat, concrete_function, flat_function, trace_into
from .body import NOT_INLINED, Body, Outputs, as_any_replica
from .launch import Launch
from .shared_state import order_shared_state


class DifferentiableLaunch:
    """A launch that can be differentiated once, for several replicas.

    Args:
        strategy: The strategy.
        body: The traced step; it returns its results.
    """

    def __init__(self, strategy: tf.distribute.Strategy, body: Body):
        self._graph = graph = body.graph
        self._total_gradient = strategy.extended.total_gradient
        self._num_results = len(body.result_shapes)
        self._num_inputs = len(graph.inputs) - len(graph.internal_captures)
        results = list(graph.outputs)
        with as_any_replica(strategy, graph):
            self._backward = backward_function(body.function)
        self._gradients, _ = Outputs.of(list(self._backward.structured_outputs))
        # Resources do not travel: a replica's backward pass has its own captures, as the forward pass has.
        captured = {id(inner): outer for outer, inner in graph.captures}
        self._given = {id(needed): captured[id(_origin(needed))] for needed in self._backward.captured_inputs
                       if id(_origin(needed)) in captured}
        self._kept = [needed for needed in self._backward.captured_inputs
                      if getattr(needed, "graph", None) is graph and id(needed) not in self._given]
        graph.outputs[:] = results + self._kept
        forward = flat_function(f"{body.function.name}_forward", graph, NOT_INLINED)
        self._forward = Launch(strategy, dataclasses.replace(body, function=forward), is_differentiable=True)
        self._differentiable = [index for index, result in enumerate(results)
                                if result.dtype.is_floating or result.dtype.is_complex]
        self._backward_launch = Launch(strategy, self._backward_body(strategy))

    def _backward_body(self, strategy: tf.distribute.Strategy) -> Body:
        """The backward function as a body: what a forward pass keeps is among its inputs."""
        graph = FuncGraph(f"backward_{self._graph.name}")

        def pull_back(*inputs: tf.Tensor) -> Sequence[tf.Tensor]:
            upstream, kept = inputs[:len(self._differentiable)], inputs[len(self._differentiable):]
            given = self._given | {id(needed): tensor for needed, tensor in zip(self._kept, kept, strict=True)}
            captures = [given.get(id(needed), needed) for needed in self._backward.captured_inputs]
            return call_flat(self._backward, upstream, captures)

        differentiable = [self._graph.outputs[index] for index in self._differentiable]
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in (*differentiable, *self._kept)]
        with as_any_replica(strategy, graph):
            trace_into(graph, pull_back, specs, automatic_control_dependencies=True)
        sharing = order_shared_state(graph, strategy.extended.turns)
        structure, _ = Outputs.of(list(graph.outputs))
        return Body(graph, concrete_function(graph, NOT_INLINED), structure, None,
                    [output.shape for output in graph.outputs], sharing)

    def __call__(self, tensors: Sequence[Sequence[tf.Tensor]]) -> Any:
        """Runs the body on every replica, see `Launch`."""
        by_replica: list[list[tf.Tensor]] = []

        def gradient(*upstream: Any) -> list[Any]:
            return self._pull_back(by_replica, upstream)

        by_replica += self._forward.call_flat(tensors, gradient)
        return self._forward.packed([outputs[:self._num_results] for outputs in by_replica])

    def _pull_back(self, by_replica: Sequence[Sequence[tf.Tensor]], upstream: Sequence[Any]) -> list[Any]:
        """The gradients of the launch's inputs and captures, from those of its outputs."""
        tensors = []
        for replica, outputs in enumerate(by_replica):
            own = upstream[replica * len(outputs):(replica + 1) * len(outputs)]
            tensors.append([_dense_or_zeros(own[index], outputs[index]) for index in self._differentiable]
                           + list(outputs[self._num_results:]))
        gradients = [self._gradients.pack(flat)
                     for flat in self._backward_launch.call_flat(tensors, no_second_gradient)]
        of_inputs = [gradient for own in gradients for gradient in own[:self._num_inputs]]
        of_captures = {id(capture): self._total_gradient([own[self._num_inputs + index] for own in gradients])
                       for index, capture in enumerate(self._graph.external_captures) if not is_meeting_place(capture)}
        return of_inputs + [of_captures.get(id(capture)) for capture in self._forward.captured_inputs]


def _origin(tensor: tf.Tensor) -> tf.Tensor:
    """Where a resource comes from: loops take and return those that they use."""
    while tensor.dtype == tf.resource and not hasattr(tensor, "numpy"):
        if tensor.op.type in ("While", "StatelessWhile"):
            tensor = tensor.op.inputs[tensor.value_index]
        elif tensor.op.type == "Identity":
            tensor = tensor.op.inputs[0]
        else:
            break
    return tensor


def _dense_or_zeros(gradient: Any, output: tf.Tensor) -> tf.Tensor:
    return tf.zeros_like(output) if gradient is None else tf.convert_to_tensor(gradient)


def no_second_gradient(*upstream: Any) -> Sequence[Any]:
    """The gradient of a gradient through `strategy.run`: raises LookupError."""
    raise LookupError("`strategy.run`: a gradient through it was differentiated again. Second-order gradients work "
                      "inside the step only: open both tapes there.")
