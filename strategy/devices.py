"""The devices that replicas run on, checked before anything is built on them."""

from __future__ import annotations

from typing import Any, Sequence

import tensorflow as tf

from ..collective.queue_member import runs_on_host


def replica_devices(devices: Sequence[str] | None, where: str = "MirroredStrategy") -> tuple[str, ...]:
    """Returns the full names of the devices, one replica each.

    Args:
        devices: Names such as "GPU:0" or "/device:CPU:1"; None takes all GPUs, else all logical CPUs.
        where: The caller, for error texts.

    Raises:
        TypeError: `devices` is a single string or not a sequence of strings.
        ValueError: The list is empty, names a device that does not exist, or one device twice.
    """
    existing = _existing()
    if devices is None:
        gpus = [name for name in existing if _kind_and_index(name)[0] == "GPU"]
        devices = gpus or existing
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not all(isinstance(d, str) for d in devices):
        raise TypeError(f"{where}: `devices` is {devices!r}. Expected a list of device names, such as "
                        '["GPU:0", "GPU:1"].')
    there = _shown(existing)
    if not devices:
        raise ValueError(f"{where}: `devices` is empty. Name at least one device, or leave `devices` out to "
                         f"take all. Devices here: {there}.")
    names = []
    for device in devices:
        name = existing_device(device, where)
        if name in names:
            raise ValueError(f"{where}: device {device!r} is listed twice in {list(devices)!r}. Each replica "
                             f"needs a device of its own. Devices here: {there}.")
        names.append(name)
    return tuple(_full_name(name) for name in names)


def existing_device(device: str, where: str) -> str:
    """TensorFlow's name of the device that `device` means.

    Raises:
        ValueError: There is none.
    """
    existing = _existing()
    name = next((name for name in existing if _means(device, name)), None)
    if name is None:
        raise ValueError(f"{where}: no device {device!r}. Devices here: {_shown(existing)}. Virtual CPU devices are "
                         "made with `tf.config.set_logical_device_configuration` before TensorFlow starts.")
    return name


def devices_of(destinations: Any, replicas: Sequence[str]) -> Sequence[str]:
    """The devices that are meant where a result is put.

    Args:
        destinations: A device name, or a value or variable whose devices are meant.
        replicas: The devices of the replicas, where per-replica values and variables are.

    Raises:
        TypeError: `destinations` is something else.
        ValueError: There is no such device.
    """
    if isinstance(destinations, str):
        return (existing_device(destinations, "`destinations`"),)
    if isinstance(destinations, tf.distribute.DistributedValues):
        return replicas
    if not isinstance(destinations, (tf.Tensor, tf.IndexedSlices, tf.Variable)):
        raise TypeError(f"`destinations` is {destinations!r}. Expected a device name, or a value or variable whose "
                        "devices are meant.")
    return (destinations.device or "CPU:0",)


def _existing() -> list[str]:
    return [device.name for kind in ("GPU", "CPU") for device in tf.config.list_logical_devices(kind)]


def _shown(names: Sequence[str]) -> str:
    return ", ".join("{}:{}".format(*_kind_and_index(name)) for name in names)


def _full_name(existing: str) -> str:
    return "/job:localhost/replica:0/task:0" + existing if existing.startswith("/device:") else existing


def _means(device: str, existing: str) -> bool:
    """Whether the user's name `device` means the device `existing`; it may leave the job and the task out."""
    if _kind_and_index(device) != _kind_and_index(existing):
        return False
    full = tf.DeviceSpec.from_string(_full_name(existing))
    spec = tf.DeviceSpec.from_string(device) if device.startswith("/") else tf.DeviceSpec()
    return spec.job in (None, full.job) and spec.replica in (None, full.replica) and spec.task in (None, full.task)


def _kind_and_index(device: str) -> tuple[str, int]:
    try:
        spec = tf.DeviceSpec.from_string(device if device.startswith("/") else "/device:" + device)
    except ValueError:
        return (device, -1)
    if spec.device_type is None:
        return (device, -1)
    return (spec.device_type.upper(), spec.device_index or 0)


class ReplicaPins:
    """Recognises ops that are pinned to a replica's device.

    `with tf.device(v.device)` in a step would send every replica's op to the device of the copy that was traced. While
    a body is traced this is its outermost device function: it drops such pins and leaves all others.
    """

    def __init__(self, devices: Sequence[str]):
        self._keys = {_kind_and_index(device) for device in devices}
        self._dropped: dict[str, bool] = {"": False}

    def __call__(self, op: tf.Operation) -> str:
        device = op.device
        if device not in self._dropped:
            self._dropped[device] = _kind_and_index(device) in self._keys
        return "" if self._dropped[device] and not runs_on_host(op.graph) else device
