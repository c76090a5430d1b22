"""Placing a value on the devices of a mesh: `distribute_tensor`, and `relayout` for a value that is placed already."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from . import over_workers, replica_scope, worker_runtime
from .split_batch import split_batch
from .tensor_layout import placement
from .values import Mirrored, PerReplica, components, is_distributed, rows_vary

# Where Keras keeps the layout of a variable, too.
_LAYOUT = "_layout"


def distribute_tensor(value: Any, layout: keras.distribution.TensorLayout) -> Any:
    """Places a value on the devices of a mesh as the layout says; takes the place of Keras's function of that name.

    Rows that are split go to the devices as those of a batch do: parts differ by at most one row, larger parts first.
    The result is a per-replica value, which `strategy.run` hands to the replicas of that mesh.

    Synchronisation: every worker must call, with the same value; each places the parts of its own devices. A value
    whose rows are split already is brought together first, which waits for all workers.

    >>> mesh = lockstep.DeviceMesh((2,), ["batch"], ["cpu:0", "cpu:1"])
    >>> rows = lockstep.distribute_tensor([1, 2, 3], lockstep.TensorLayout(["batch"], mesh))
    >>> [part.numpy().tolist() for part in rows.values]
    [[1, 2], [3]]

    Args:
        value: A tensor, a variable or what becomes a tensor; or a value that was placed before. A symbolic
            `keras.KerasTensor` is returned as it is.
        layout: None for all dimensions (the whole value on every device), or an axis of the mesh for the first one.

    Returns:
        A per-replica value with a component on each of this process's devices of the mesh; a `tf.Tensor` if the mesh
        has one device.

    Raises:
        TypeError: `layout` is no layout.
        ValueError: The layout has no mesh, splits other dimensions, or is of another rank than the value.
        RuntimeError: Called inside `strategy.run`, where a value is one replica's.
    """
    return _placed(value, layout, "distribute_tensor")


def relayout(value: Any, layout: keras.distribution.TensorLayout) -> Any:
    """Moves a value that is placed on a mesh into another layout; see `distribute_tensor`, which does the same.

    >>> mesh = lockstep.DeviceMesh((2,), ["batch"], ["cpu:0", "cpu:1"])
    >>> rows = lockstep.distribute_tensor([1, 2, 3], lockstep.TensorLayout(["batch"], mesh))
    >>> whole = lockstep.relayout(rows, lockstep.TensorLayout([None], mesh))
    >>> [part.numpy().tolist() for part in whole.values]
    [[1, 2, 3], [1, 2, 3]]

    Args:
        value: As for `distribute_tensor`. The rows of a batch of a distributed dataset count as split.
        layout: As for `distribute_tensor`.

    Raises:
        TypeError, ValueError, RuntimeError: As for `distribute_tensor`.
    """
    return _placed(value, layout, "relayout")


def _placed(value: Any, layout: keras.distribution.TensorLayout, where: str) -> Any:
    if not isinstance(layout, keras.distribution.TensorLayout):
        raise TypeError(f"`{where}`: `layout` is {layout!r}. Expected a lockstep.TensorLayout.")
    if isinstance(value, keras.KerasTensor):
        return value
    if replica_scope.current() is not None:
        raise RuntimeError(f"`{where}`: called inside `strategy.run`, where a value is one replica's part. Call it "
                           "outside, and pass its result to `strategy.run`.")
    place = placement(layout)
    tensor = _whole(value, where)
    if len(layout.axes) != tensor.shape.rank:
        raise ValueError(f"`{where}`: `layout` has {len(layout.axes)} axes, {layout.axes}, and the value has shape "
                         f"{tensor.shape}. Expected an axis name or None for each dimension.")
    is_split = place.num_parts > 1
    parts = split_batch(tensor, place.num_parts) if is_split else (tensor,)
    own = []
    for device, part in zip(place.devices, place.parts, strict=True):
        if _is_own(device):
            with tf.device(device):
                copy = tf.identity(parts[part])
            own.append(rows_vary(copy) if is_split else copy)
    if len(place.devices) == 1:
        return own[0]
    placed = PerReplica(own) if is_split else Mirrored(own)
    setattr(placed, _LAYOUT, layout)
    return placed


def _is_own(device: str) -> bool:
    runtime = worker_runtime.current()
    return runtime is None or device.startswith(runtime.cluster.device_prefix(runtime.cluster.rank) + "/")


def _whole(value: Any, where: str) -> tf.Tensor:
    """The value in one piece."""
    if not is_distributed(value):
        return tf.convert_to_tensor(value.value if isinstance(value, keras.Variable) else value)
    if isinstance(value, Mirrored):
        return tf.convert_to_tensor(value.values[0])
    runtime = worker_runtime.current()
    parts = over_workers.all_parts(None if runtime is None else runtime.group, [[part] for part in components(value)],
                                   f"`{where}`: the rows of all replicas")
    layout = getattr(value, _LAYOUT, None)
    # Of a mesh with several axes, several devices hold the same rows.
    numbers = range(len(parts)) if layout is None else placement(layout).parts
    first_of = {number: part for number, (part,) in reversed(list(zip(numbers, parts, strict=True)))}
    return tf.concat([first_of[number] for number in sorted(first_of)], axis=0)
