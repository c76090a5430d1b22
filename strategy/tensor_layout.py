"""`TensorLayout`: which part of a tensor is on which device of a mesh."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np

from .distribution_devices import full_names


@dataclasses.dataclass(frozen=True)
class Placement:
    """A layout spelled out for TensorFlow.

    Attributes:
        devices: The full names of the mesh's devices.
        parts: For each device, the number of the part of the tensor's rows that it holds.
        num_parts: How many parts the rows are split in; 1 if the whole tensor is everywhere.
    """

    devices: tuple[str, ...]
    parts: tuple[int, ...]
    num_parts: int


class TensorLayout(keras.distribution.TensorLayout):
    """How a tensor lies on a mesh; takes the place of `keras.distribution.TensorLayout`, and is one.

    >>> mesh = lockstep.DeviceMesh((2,), ["batch"], ["cpu:0", "cpu:1"])
    >>> lockstep.TensorLayout(["batch", None], mesh).axes        # rows split over the devices, columns whole
    ('batch', None)

    Args:
        axes: For each dimension of the tensor the name of the mesh's axis that it is split over, None for whole.
        device_mesh: The mesh; None if it is set later, as the attribute `device_mesh`.

    Raises:
        ValueError: The mesh has no axis of such a name.
    """

    @property
    def backend_layout(self) -> Placement:
        """Which rows go to which device, see `distribute_tensor`.

        >>> mesh = lockstep.DeviceMesh((2,), ["batch"], ["cpu:0", "cpu:1"])
        >>> lockstep.TensorLayout(["batch"], mesh).backend_layout.parts
        (0, 1)

        Raises:
            ValueError: There is no mesh, a dimension other than the first is split, or a device does not exist.
        """
        return placement(self)


def placement(layout: keras.distribution.TensorLayout) -> Placement:
    """Spells out a layout, ours or Keras's own; see `TensorLayout.backend_layout`."""
    mesh = layout.device_mesh
    if mesh is None:
        raise ValueError(f"TensorLayout: {layout} has no device mesh. A tensor is placed on the devices of one. Make "
                         "the layout with `TensorLayout(axes, device_mesh)`.")
    devices = full_names(mesh.devices.ravel().tolist())
    if any(axis is not None for axis in layout.axes[1:]):
        raise ValueError(f"TensorLayout: `axes` is {layout.axes}. Expected None everywhere (the whole tensor on every "
                         "device), or an axis of the mesh for the first dimension only (its rows split). Models are "
                         "not split here: split the rows, or use None.")
    if not layout.axes or layout.axes[0] is None:
        return Placement(devices, (0,) * len(devices), 1)
    axis = list(mesh.axis_names).index(layout.axes[0])
    parts = np.indices(mesh.devices.shape)[axis].ravel().tolist()
    return Placement(devices, tuple(parts), mesh.devices.shape[axis])
