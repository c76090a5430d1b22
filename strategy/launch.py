"""The launch: one body, called once per local replica, all at the same time.

A launch is a function whose graph holds one call of the body per replica, each under its replica's device, with the
replica's own inputs and with the replica's own copies in place of the captures that were traced:

    launch:    lock -> drain -> call of `replicas` -> unlock

    replicas:  body(inputs_0, captures_0) on device 0
               body(inputs_1, captures_1) on device 1
               ...

The graphs have no automatic control dependencies: they would chain the calls, and replicas that wait for each other
would never meet. All calls are control outputs, so no ignored result can make a call vanish. The lock lets launches
of one strategy follow each other, from whichever thread or graph they come; draining removes what a failed launch left
in the queues.

The bodies and `replicas` are not inlined. Loops of different replicas would get different frames, and their
collectives would never meet. And when a replica fails, TensorFlow cancels whatever waits, and keeps the first error of
each device: an op that waited beside a failing call on its device, or a value on its way to or from it, would hide the
cause behind its cancellation. So nothing stands beside a call, no call starts before the inputs of all are where they
belong, and what replicas tell each other goes through queues, inside of functions that are called on their devices.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import tensorflow as tf

from ..collective import Copies, Queues
from ..collective._tf import leave_optimized
from ..collective.local import HOST
from ._tf import (
    AtomicFunction,
    ConcreteFunction,
    FuncGraph,
    Gradient,
    call_flat,
    call_recorded,
    call_with_gradient,
    concrete_function,
    trace_into,
    watch_variables,
)
from .body import NOT_INLINED, Body
from .handle_bundle import HandleBundle
from .shared_state import Sharing, synchronises_in_control_flow
from .values import regroup_leaf


class Launch:
    """A body ready to run on every local replica of a strategy.

    Args:
        strategy: The strategy.
        body: The traced step.
        is_differentiable: Whether the launch takes the replicas' variables as inputs, so that it can have gradients
            with respect to them.

    Raises:
        ValueError: The body uses a variable of another strategy.
    """

    def __init__(self, strategy: tf.distribute.Strategy, body: Body, is_differentiable: bool = False):
        self._body = body
        self._devices = strategy.extended.worker_devices
        self._captures = [replica_captures(strategy, capture) for capture in body.graph.external_captures]
        self._is_alone = strategy.num_replicas_in_sync == 1
        if self._is_alone:
            self._function = body.function
        else:
            self._function = self._build(strategy, HandleBundle([] if is_differentiable else self._own_handles()))

    def _own_handles(self) -> list[tf.Tensor]:
        """The eager handles that are some replica's own and stand on another device than the host."""
        return [handle for copies in self._captures if Copies.of(copies[0]) is not None
                for handle in copies if hasattr(handle, "numpy") and not handle.device.endswith(HOST)]

    def _build(self, strategy: tf.distribute.Strategy, bundle: HandleBundle) -> ConcreteFunction:
        """The launch function: lock, drain, the calls, unlock."""
        queues = strategy.extended.queues
        meeting = [queues.meeting] if queues.are_used_by([copies[0] for copies in self._captures]) else []
        results = self._body.results
        turns = [strategy.extended.turns] if self._body.sharing is Sharing.TURNS else []
        if meeting:
            strategy.extended.watch_absentees()
        calls = self._build_calls(queues)
        graph = FuncGraph(f"launch_{self._body.graph.name}")

        def launch(*inputs: tf.Tensor) -> Sequence[tf.Tensor]:
            lock = tf.raw_ops.MutexLock(mutex=queues.mutex)
            with tf.control_dependencies([lock]):
                ready = queues.begin_launch([*meeting, *([results] if results else []), *turns])
            if turns:
                with tf.control_dependencies(ready):
                    ready = [turns[0].start()]
            with tf.control_dependencies(ready):
                opened = bundle.open()
                captures = [opened.get(id(capture), capture) for capture in calls.captured_inputs]
                outputs, call = called_flat(graph, calls, inputs, captures)
            if results is not None:
                with tf.control_dependencies([call]):
                    outputs = [tensor for queue in results.outward for tensor in results.take(queue)[0]]
            with tf.control_dependencies([call, *(output.op for output in outputs)]):
                unlock = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
            graph.control_outputs.extend([call, unlock])
            return outputs

        trace_into(graph, launch, self._input_specs() * len(self._devices), automatic_control_dependencies=False)
        return concrete_function(graph, {})

    def _build_calls(self, queues: Queues) -> ConcreteFunction:
        """The function that holds one call of the body per replica."""
        body = self._body
        chained = body.sharing is Sharing.CHAINED_CALLS
        may_part = synchronises_in_control_flow(body.graph)
        specs = self._input_specs()
        graph = FuncGraph(f"replicas_{body.graph.name}")

        def replicas(*inputs: tf.Tensor) -> list[tf.Tensor]:
            outputs: list[tf.Tensor] = []
            calls: list[tf.Operation] = []
            ends: list[tf.Operation] = []
            own = [inputs[replica * len(specs):(replica + 1) * len(specs)] for replica in range(len(self._devices))]
            captures = [[copies[replica] for copies in self._captures] for replica in range(len(self._devices))]
            for replica, device in enumerate(self._devices):
                mine = [*own[replica], *captures[replica]]
                with tf.device(device), tf.name_scope(f"replica_{replica}"):
                    start = called_on_host(graph, "start", mine, lambda: [queues.start_line.wait(replica)])
                    with tf.control_dependencies([start, *(calls[-1:] if chained else [])]):
                        results, call = called_flat(graph, body.function, own[replica], captures[replica])
                    outputs.extend(results)
                    calls.append(call)
                    if may_part:
                        with tf.control_dependencies([call]):
                            ends.append(called_on_host(graph, "end", [], lambda: queues.send_ended(replica)))
            graph.control_outputs.extend(calls + ends)
            return outputs

        trace_into(graph, replicas, specs * len(self._devices), automatic_control_dependencies=False)
        return concrete_function(graph, NOT_INLINED)

    def _input_specs(self) -> list[tf.TensorSpec]:
        """The flat inputs of one replica."""
        graph = self._body.graph
        own = graph.inputs[:len(graph.inputs) - len(graph.internal_captures)]
        return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in own]

    def __call__(self, tensors: Sequence[Sequence[tf.Tensor]]) -> Any:
        """Runs the body on every replica.

        Args:
            tensors: By local replica: its flat inputs.

        Returns:
            The step's result, tensors being per-replica values (plain tensors for one replica).
        """
        return self.packed(self.call_flat(tensors, _no_gradient))

    def call_flat(self, tensors: Sequence[Sequence[tf.Tensor]], gradient: Gradient) -> list[list[tf.Tensor]]:
        """Runs the body on every replica.

        Args:
            tensors: By local replica: its flat inputs.
            gradient: From the gradients of all outputs, replica after replica, to those of all inputs and of the
                `captured_inputs`; for several replicas only.

        Returns:
            By local replica: its flat outputs.
        """
        flat = [tensor for replica in tensors for tensor in replica]
        if self._is_alone:
            return [list(call_recorded(self._function, flat))]
        watch_variables(self._body.graph.variables)
        outputs = call_with_gradient(self._function, flat, gradient)
        count = len(outputs) // len(self._devices)
        return [list(outputs[start:start + count]) for start in range(0, count * len(self._devices), count or 1)] \
            or [[] for _ in self._devices]

    @property
    def captured_inputs(self) -> Sequence[tf.Tensor]:
        """What the launch captures: every replica's copies, and what exists once."""
        return self._function.captured_inputs

    def packed(self, by_replica: Sequence[Sequence[tf.Tensor]]) -> Any:
        """The step's result from the replicas' flat results."""
        structure = self._body.structure
        for tensors in by_replica:
            for tensor, shape in zip(tensors, self._body.result_shapes, strict=True):
                tensor.set_shape(shape)
        leaves = [regroup_leaf(leaves) for leaves in zip(*map(structure.pack, by_replica), strict=True)]
        return tf.nest.pack_sequence_as(structure.template, leaves)


def _no_gradient(*upstream: Any) -> Sequence[Any]:
    raise LookupError(
        "`strategy.run`: its results are differentiated, but no tf.GradientTape was open when it was traced. Open the "
        "tape around the first call of the tf.function that holds `strategy.run`, or take the gradient in the step.")


def called_on_host(graph: FuncGraph, name: str, tensors: Sequence[tf.Tensor], ops: Callable[[], list[tf.Operation]]
                   ) -> tf.Operation:
    """Calls a function on the current device whose ops stand on the host; returns the call.

    Args:
        graph: The graph that is built.
        name: The function's name.
        tensors: What must have come to the device before the function starts.
        ops: Makes the function's ops, and returns those that must run.
    """
    function = FuncGraph(name)

    def run(*unused_inputs: tf.Tensor) -> list[tf.Tensor]:
        with tf.device(HOST):
            function.control_outputs.extend(ops())
        return []

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    trace_into(function, run, specs, automatic_control_dependencies=False)
    made = concrete_function(function, NOT_INLINED)
    return called_flat(graph, made, tensors, made.captured_inputs)[1]


def called_flat(graph: FuncGraph, function: ConcreteFunction | AtomicFunction, inputs: Sequence[tf.Tensor],
                captures: Sequence[tf.Tensor]) -> tuple[Sequence[tf.Tensor], tf.Operation]:
    """Calls `function` in `graph`; returns its outputs and the op of the call."""
    before = len(graph.get_operations())
    outputs = call_flat(function, inputs, captures)
    created = graph.get_operations()[before:]
    call = next(op for op in reversed(created) if op.type.endswith("PartitionedCall"))
    leave_optimized(call)
    return outputs, call


def replica_captures(strategy: tf.distribute.Strategy, capture: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """What stands for a capture of the body, by local replica.

    Raises:
        ValueError: The capture belongs to a variable of another strategy.
    """
    copies = Copies.of(capture)
    if copies is None:
        return (capture,) * len(strategy.extended.worker_devices)
    if copies.group is not strategy.extended:
        raise ValueError(f"`strategy.run`: the step uses the variable {copies.owner_name!r}, which was made under "
                         "another strategy's scope. Make it under the scope of the strategy that runs the step.")
    return copies.handles
