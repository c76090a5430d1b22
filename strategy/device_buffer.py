"""Steps that lie on the replicas' devices before they are asked for.

`DistributedIterator` uses it where replicas are GPUs. A step is a flat tuple of tensors (`step_pipeline`), and
`component_devices` says where each of them belongs; "" stands for the host, where nothing is copied. A `DeviceBuffer`
is one FIFO queue of few steps for each device that occurs. Handing out step k fetches step k + 1 from the host and
copies it, while the caller computes. The queues are TensorFlow resources, so this works alike in Python and inside
`tf.function`, and a checkpoint takes the steps in the queues along.

    buffer = DeviceBuffer.create(specs, devices, capacity=1)
    step = buffer.get_next(steps)  # `steps` is the host's iterator
"""

from __future__ import annotations

from typing import Any, Sequence

import tensorflow as tf

from .values import PerReplicaSpec

_HOST_ONLY = (tf.string, tf.variant, tf.resource)


def component_devices(element_spec: Any, devices: Sequence[str]) -> tuple[str, ...]:
    """The device that each flat component of an element is copied to, "" for those that stay on the host.

    Args:
        element_spec: A nest of `PerReplicaSpec`s, or of plain specs for one replica.
        devices: The device of each replica, "" to leave its parts on the host.
    """
    placed = []
    for leaf in tf.nest.flatten(element_spec):
        parts = leaf.value_specs if isinstance(leaf, PerReplicaSpec) else [leaf]
        for part, device in zip(parts, devices):
            for component in tf.nest.flatten(part, expand_composites=True):
                placed.append(device if _is_accelerator(device) and component.dtype not in _HOST_ONLY else "")
    return tuple(placed)


def place(step: Sequence[tf.Tensor], devices: Sequence[str]) -> list[tf.Tensor]:
    """Copies each component of a step to its device; "" leaves it where it is."""
    placed = []
    for component, device in zip(step, devices):
        if device:
            with tf.device(device):
                component = tf.identity(component)
        placed.append(component)
    return placed


class DeviceBuffer:
    """A bounded queue of steps for each device, filled in order from the host's iterator.

    One caller at a time: two threads that take steps from one buffer may mix their parts.

    Args:
        specs: The spec of each flat component of a step.
        devices: The device of each flat component, "" for the host.
        capacity: The most steps to hold, 1 or more.
        handles: The queues' resources, one for each distinct device, in the order of `groups`.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec], devices: Sequence[str], capacity: int,
                 handles: Sequence[tf.Tensor]):
        self._specs = specs
        self._devices = devices
        self._capacity = capacity
        self.groups = group_by_device(devices)
        self.handles = tuple(handles)
        self._queues: list[tf.queue.FIFOQueue] = []

    @classmethod
    def create(cls, specs: Sequence[tf.TensorSpec], devices: Sequence[str], capacity: int) -> "DeviceBuffer":
        """An empty buffer, whose queues live as long as it does. Only outside `tf.function`."""
        queues = []
        for device, members in group_by_device(devices).items():
            with tf.device(device or "CPU:0"):
                # One more than is ever held: a full queue would block.
                queues.append(tf.queue.FIFOQueue(capacity + 1, [specs[member].dtype for member in members]))
        buffer = cls(specs, devices, capacity, [queue.queue_ref for queue in queues])
        buffer._queues = queues
        return buffer

    def get_next(self, steps: tf.data.Iterator) -> list[tf.Tensor]:
        """The next step, on its devices; the buffer is filled up again from `steps`.

        Raises:
            tf.errors.OutOfRangeError: The buffer is empty and `steps` is at its end.
        """
        tf.cond(self._size() > 0, _nothing, lambda: self._put(steps.get_next()))
        step = self._take()
        self._fill(steps)
        return step

    def get_next_as_optional(self, steps: tf.data.Iterator) -> tuple[tf.experimental.Optional, ...]:
        """The next step as one optional for each group, all of them empty at the end."""
        self._fill(steps, up_to=1)
        there = self._size() > 0
        optionals = []
        for handle, (device, members) in zip(self.handles, self.groups.items()):
            group_specs = tuple(self._specs[member] for member in members)
            with tf.device(device or "CPU:0"):
                optionals.append(tf.cond(
                    there,
                    lambda handle=handle, group_specs=group_specs: tf.experimental.Optional.from_value(
                        tuple(_dequeue(handle, group_specs))),
                    lambda group_specs=group_specs: tf.experimental.Optional.empty(group_specs)))
        self._fill(steps)
        return tuple(optionals)

    def save(self) -> tf.Tensor:
        """The steps that are held, serialised: strings of shape [steps, components]. Only outside `tf.function`."""
        held = [self._take() for _ in range(int(self._size()))]
        for step in held:
            self._put(step)
        rows = [[tf.io.serialize_tensor(component) for component in step] for step in held]
        return tf.reshape(tf.constant([], tf.string) if not rows else tf.stack(rows), [len(rows), len(self._specs)])

    def restore(self, saved: tf.Tensor) -> None:
        """Replaces the steps that are held by those that `save` returned.

        Raises:
            ValueError: They are steps of another number of replicas.
        """
        while int(self._size()):
            self._take()
        if saved.shape[0] and saved.shape[1] != len(self._specs):
            raise ValueError(
                f"DistributedIterator: the checkpoint holds steps of {saved.shape[1]} tensors, this iterator makes "
                f"{len(self._specs)}. Steps that wait on a device belong to the number of replicas that they were "
                "split for. Restore onto as many replicas, or write and restore checkpoints with "
                "`InputOptions(experimental_per_replica_buffer_size=0)`.")
        for row in saved if saved.shape[0] else []:
            self._put([tf.io.parse_tensor(text, spec.dtype) for text, spec in zip(row, self._specs)])

    def _size(self) -> tf.Tensor:
        """Steps held: what the last queue holds, which is filled last."""
        return tf.raw_ops.QueueSizeV2(handle=self.handles[-1])

    def _put(self, step: Sequence[tf.Tensor]) -> None:
        placed = place(step, self._devices)
        for handle, members in zip(self.handles, self.groups.values()):
            tf.raw_ops.QueueEnqueueV2(handle=handle, components=[placed[member] for member in members])

    def _take(self) -> list[tf.Tensor]:
        step: list[Any] = [None] * len(self._specs)
        for handle, (device, members) in zip(self.handles, self.groups.items()):
            with tf.device(device or "CPU:0"):
                components = _dequeue(handle, [self._specs[member] for member in members])
            for member, component in zip(members, components):
                step[member] = component
        return step

    def _fill(self, steps: tf.data.Iterator, up_to: int | None = None) -> None:
        """Fetches steps until the buffer holds `up_to`, its capacity by default, or `steps` is at its end."""
        wanted = self._capacity if up_to is None else up_to

        def fetch(_: tf.Tensor) -> list[tf.Tensor]:
            step = steps.get_next_as_optional()
            there = step.has_value()
            tf.cond(there, lambda: self._put(step.get_value()), _nothing)
            return [tf.logical_and(there, self._size() < wanted)]

        tf.while_loop(lambda more: more, fetch, [self._size() < wanted], parallel_iterations=1)


def group_by_device(devices: Sequence[str]) -> dict[str, list[int]]:
    """Positions of the components that share a device, in the order in which devices occur."""
    groups: dict[str, list[int]] = {}
    for position, device in enumerate(devices):
        groups.setdefault(device, []).append(position)
    return groups


def _dequeue(handle: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    components = tf.raw_ops.QueueDequeueV2(handle=handle, component_types=[spec.dtype for spec in specs])
    return [tf.ensure_shape(component, spec.shape) for component, spec in zip(components, specs)]


def _nothing() -> None:
    return None


def _is_accelerator(device: str) -> bool:
    if not device:
        return False
    kind = tf.DeviceSpec.from_string(device if device.startswith("/") else "/device:" + device).device_type
    return kind != "CPU"
