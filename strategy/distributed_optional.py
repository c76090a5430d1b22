"""The next element of a distributed iterator, or the fact that there is none.

`DistributedIterator.get_next_as_optional` returns it. It is a composite tensor, so that it can be a loop variable of
`tf.while_loop` and an output of `tf.cond`, as in Keras's loop over several steps.

    element = iterator.get_next_as_optional()
    if element.has_value():
        strategy.run(step, args=(element.get_value(),))
"""

from __future__ import annotations

from typing import Any, Sequence

import tensorflow as tf

from .device_buffer import group_by_device, place
from .step_pipeline import pack


class DistributedOptional(tf.experimental.Optional):
    """An element with one part for each replica, or nothing.

    Args:
        optionals: The step's components: either one optional of all of them, on the host, or one for each device.
        spec: What they make, and where it belongs.
    """

    def __init__(self, optionals: Sequence[tf.experimental.Optional], spec: "DistributedOptionalSpec"):
        self._optionals = tuple(optionals)
        self._spec = spec

    def has_value(self, name: str | None = None) -> tf.Tensor:
        """Whether there is an element, a scalar bool."""
        return self._optionals[0].has_value(name)

    def get_value(self, name: str | None = None) -> Any:
        """The element, its parts on the replicas' devices.

        Raises:
            tf.errors.InvalidArgumentError: There is none.
        """
        devices = self._spec.devices
        if len(self._optionals) == 1:
            return pack(self._spec.element_spec, place(self._optionals[0].get_value(name), devices))
        step: list[Any] = [None] * len(devices)
        for optional, (device, members) in zip(self._optionals, group_by_device(devices).items()):
            with tf.device(device or "CPU:0"):
                components = optional.get_value(name)
            for member, component in zip(members, components):
                step[member] = component
        return pack(self._spec.element_spec, step)

    @property
    def element_spec(self) -> Any:
        """The spec of the element."""
        return self._spec.element_spec

    @property
    def _type_spec(self) -> "DistributedOptionalSpec":
        return self._spec


class DistributedOptionalSpec(tf.TypeSpec):
    """Type of a `DistributedOptional`.

    Args:
        element_spec: The spec of the element.
        devices: The device of each of its flat components, "" for the host.
        optional_specs: The specs of the optionals that hold the components.
    """

    __slots__ = ["element_spec", "devices", "_optional_specs"]

    def __init__(self, element_spec: Any, devices: Sequence[str], optional_specs: Sequence[tf.OptionalSpec]):
        self.element_spec = element_spec
        self.devices = tuple(devices)
        self._optional_specs = tuple(optional_specs)

    @property
    def value_type(self) -> type:
        return DistributedOptional

    def _serialize(self) -> tuple[Any, ...]:
        return self.element_spec, self.devices, self._optional_specs

    @property
    def _component_specs(self) -> tuple[tf.OptionalSpec, ...]:
        return self._optional_specs

    def _to_components(self, value: DistributedOptional) -> tuple[tf.experimental.Optional, ...]:
        return value._optionals

    def _from_components(self, components: Sequence[tf.experimental.Optional]) -> DistributedOptional:
        return DistributedOptional(components, self)
