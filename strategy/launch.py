"""The launch: one body, called once per local replica, all at the same time.

A launch is a function whose graph holds one call of the body per replica, each under its replica's device, with the
replica's own inputs and with the replica's own copies in place of the captures that were traced:

    lock -> drain -> +- body(inputs_0, captures_0) on device 0 -+-> unlock
                     +- body(inputs_1, captures_1) on device 1 -+
                     +- ...                                     |

The graph has no automatic control dependencies: they would chain the calls, and replicas that wait for each other would
never meet. All calls are control outputs, so no result that is ignored can make a call vanish. The lock lets launches
of one strategy follow each other, from whichever thread or graph they come; draining removes what a failed launch left
in the queues. The calls must not be inlined: loops of different replicas would get different frames.
"""

from __future__ import annotations

from typing import Any, Sequence

import tensorflow as tf

from ..collective import Copies, Queues
from . import shared_state
from ._tf import FuncGraph, call_flat, concrete_function, trace_into
from .body import Body
from .values import regroup_leaf


class Launch:
    """A body ready to run on every local replica of a strategy.

    Args:
        strategy: The strategy.
        body: The traced step.

    Raises:
        ValueError: The body uses a variable of another strategy.
        RuntimeError: The body shares state between replicas in a way that has no order, see shared_state.py.
    """

    def __init__(self, strategy: tf.distribute.Strategy, body: Body):
        self._body = body
        self._devices = strategy.extended.worker_devices
        self._captures = [replica_captures(strategy, capture) for capture in body.function.captured_inputs]
        if len(self._devices) == 1:
            self._function = body.function
        else:
            self._function = self._build(strategy)

    def _build(self, strategy: tf.distribute.Strategy) -> Any:
        body, queues = self._body, strategy.extended.queues
        channels = queues.used_by([copies[0] for copies in self._captures])
        chained = shared_state.must_chain_calls(body, self._captures, channels)
        may_part = shared_state.synchronises_in_control_flow(body, channels)
        per_input = [len(tf.nest.flatten(spec, expand_composites=True)) for spec in body.inputs.signature]
        graph = FuncGraph(f"launch_{body.graph.name}")
        num_inputs = sum(per_input)
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in body.graph.inputs[:num_inputs]]

        def launch(*inputs: tf.Tensor) -> list[tf.Tensor]:
            outputs: list[tf.Tensor] = []
            calls: list[tf.Operation] = []
            ended: list[tf.Operation] = []
            lock = tf.raw_ops.MutexLock(mutex=queues.mutex)
            with tf.control_dependencies([lock]):
                ready = Queues.drain(channels) or [lock.op]
            for replica, device in enumerate(self._devices):
                before = ready + (calls[-1:] if chained else [])
                with tf.control_dependencies(before), tf.device(device), tf.name_scope(f"replica_{replica}"):
                    results, call = self._call(graph, replica, inputs[replica * num_inputs:(replica + 1) * num_inputs])
                outputs.extend(results)
                calls.append(call)
                if may_part:
                    with tf.control_dependencies([call]):
                        ended += Queues.send_ended(channels, replica)
            with tf.control_dependencies(calls + ended):
                unlock = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
            graph.control_outputs.extend([*calls, unlock])
            return outputs

        trace_into(graph, launch, specs * len(self._devices), automatic_control_dependencies=False)
        return concrete_function(graph, {})

    def _call(self, graph: FuncGraph, replica: int,
              inputs: Sequence[tf.Tensor]) -> tuple[Sequence[tf.Tensor], tf.Operation]:
        before = len(graph.get_operations())
        results = call_flat(self._body.function, inputs, [copies[replica] for copies in self._captures])
        created = graph.get_operations()[before:]
        return results, next(op for op in reversed(created) if op.type.endswith("PartitionedCall"))

    def __call__(self, tensors: Sequence[Sequence[tf.Tensor]]) -> Any:
        """Runs the body on every replica.

        Args:
            tensors: By local replica: its flat inputs.

        Returns:
            The step's result, tensors being per-replica values (plain tensors for one replica).
        """
        flat = [tensor for replica in tensors for tensor in replica]
        outputs = self._function._call_flat(flat, self._function.captured_inputs)
        outputs = [] if outputs is None or isinstance(outputs, tf.Operation) else tf.nest.flatten(outputs)
        structure = self._body.structure
        count = len(self._body.graph.outputs)
        by_replica = [structure.pack(list(outputs[replica * count:(replica + 1) * count]))
                      for replica in range(len(self._devices))]
        leaves = [regroup_leaf(leaves) for leaves in zip(*by_replica, strict=True)]
        return tf.nest.pack_sequence_as(structure.template, leaves)


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
