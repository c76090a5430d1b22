"""`DeviceMesh`: the devices of a distribution, as a grid with named axes."""

from __future__ import annotations

from typing import Any, Sequence

import keras
import numpy as np

from .distribution_devices import full_names, list_devices


class DeviceMesh(keras.distribution.DeviceMesh):
    """A grid of devices with named axes; takes the place of `keras.distribution.DeviceMesh`, and is one.

    A description only: whether the devices exist is found out when something is placed on them.

    >>> mesh = lockstep.DeviceMesh((2,), ["batch"], ["cpu:0", "cpu:1"])
    >>> mesh
    <DeviceMesh shape=(2,), axis_names=['batch']>

    Args:
        shape: The number of devices along each axis, such as `(8,)`.
        axis_names: A name for each axis.
        devices: Names as Keras ("cpu:0") or TensorFlow ("/device:CPU:0") writes them, in the order of the grid's rows.
            None takes `list_devices()`.

    Raises:
        ValueError: `shape` or `axis_names` is empty, their lengths differ, a name stands twice, or there is another
            number of devices.
    """

    def __init__(self, shape: Sequence[int], axis_names: Sequence[str], devices: Any = None):
        super().__init__(shape, axis_names, list_devices() if devices is None else devices)
        for what, names in (("axis_names", list(axis_names)), ("devices", self.devices.ravel().tolist())):
            twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
            if twice:
                raise ValueError(f"DeviceMesh: `{what}` names {twice[0]!r} twice: {names}. Expected different ones.")

    @property
    def backend_mesh(self) -> Any:
        """The full TensorFlow names of the devices, an array like `devices`.

        >>> lockstep.DeviceMesh((2,), ["batch"], ["cpu:0", "cpu:1"]).backend_mesh[1]
        '/job:localhost/replica:0/task:0/device:CPU:1'

        Raises:
            ValueError: There is no such device, or two names mean one device.
        """
        return np.reshape(np.array(full_names(self.devices.ravel().tolist()), dtype=object), self.devices.shape)
