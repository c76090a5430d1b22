"""Handles of variables on many devices, carried as one tensor per device that stands on the host.

TensorFlow places whatever takes a resource's handle on the resource's device. A loop or a branch around a launch would
take the handles of every replica's variables, and so be spread over all devices, with values on their way between them:
when a step fails, a value on its way is cancelled and takes the place of the cause. A bundle hides the handles from
what stands around the launch, which also has one input instead of one for every variable of every replica:

    bundle = HandleBundle([w_0, w_1, b_0, b_1])    # in a launch: made once, eagerly
    bundle.open()                                  # in its graph: {id(w_0): a tensor that is w_0's handle, ...}

What is hidden from TensorFlow's automatic control dependencies would not be ordered: a read of a variable after the
launch could come before it. So they are told what a bundle holds.
"""

from __future__ import annotations

import contextlib
from typing import MutableSet, Sequence

import tensorflow as tf

from ..collective.local import HOST
from ._tf import FuncGraph, register_acd_resource_resolver
from .captures import origin


class HandleBundle:
    """Eager handles as tensors on the host.

    Args:
        handles: Eager resource handles, on any devices.
    """

    def __init__(self, handles: Sequence[tf.Tensor]):
        by_device: dict[str, list[tf.Tensor]] = {}
        for handle in handles:
            by_device.setdefault(handle.device, []).append(handle)
        self._parts = [(_wrapped(device, own), own) for device, own in by_device.items()]

    def open(self) -> dict[int, tf.Tensor]:
        """Ops that take the bundle apart, in the graph that is built: by an eager handle's id, the same handle."""
        opened: dict[int, tf.Tensor] = {}
        with tf.device(HOST):
            for part, handles in self._parts:
                tensors = tf.raw_ops.OptionalGetValue(
                    optional=part, output_types=[tf.resource] * len(handles), output_shapes=[[]] * len(handles))
                opened.update((id(handle), tensor) for handle, tensor in zip(handles, tensors, strict=True))
        return opened


def _wrapped(device: str, handles: Sequence[tf.Tensor]) -> tf.Tensor:
    with tf.init_scope():
        with tf.device(device):  # Where the handles are: TensorFlow takes them nowhere else.
            part = tf.raw_ops.OptionalFromValue(components=handles)
        with tf.device(HOST):
            part = tf.identity(part)
    part._lockstep_handles = tuple(handles)
    return part


def _handles_of_bundles(op: tf.Operation, reads: MutableSet[tf.Tensor], writes: MutableSet[tf.Tensor]) -> bool:
    """Tells automatic control dependencies which resources an op may write through bundles among its inputs.

    A handle that the op's graph does not capture is used by nothing else there.
    """
    bundles = {id(tensor): tensor for tensor in op.inputs if tensor.dtype == tf.variant}
    graph = op.graph
    if not bundles or not isinstance(graph, FuncGraph):
        return False
    held = {id(handle) for outer, inner in graph.captures if id(inner) in bundles
            for handle in getattr(origin(outer), "_lockstep_handles", ())}
    found = [inner for outer, inner in graph.captures if id(origin(outer)) in held] if held else []
    is_new = any(tensor not in writes for tensor in found)
    for tensor in found:
        writes.add(tensor)
    return is_new


with contextlib.suppress(KeyError):  # There from an import before, under another name: it does the same.
    register_acd_resource_resolver(_handles_of_bundles)
