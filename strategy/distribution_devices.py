"""The devices of a mesh: how Keras and TensorFlow name them, in one process and over all workers.

    list_devices()                       # ["cpu:0", "cpu:1"], of all workers
    full_names(["cpu:0", "/CPU:1"])      # ("/job:localhost/replica:0/task:0/device:CPU:0", ".../device:CPU:1")

Over several workers the numbers go on from worker to worker, as Keras counts: of two workers with two CPUs each,
"cpu:3" is the second one of worker 1. A full TensorFlow name says the worker itself.
"""

from __future__ import annotations

import functools
import os
from typing import Sequence

import tensorflow as tf

from ..collective import CollectiveOptions
from . import over_workers, worker_runtime
from .cluster import Cluster
from .devices import replica_devices
from .worker_runtime import WorkerRuntime

KINDS = ("gpu", "tpu", "cpu")


def list_devices(device_type: str | None = None) -> list[str]:
    """Returns the names of all workers' devices of one kind; takes the place of `keras.distribution.list_devices`.

    Synchronisation: where TF_CONFIG or `initialize` names several workers, every worker must call; the first call waits
    until they have met, and must come before TensorFlow runs its first op.

    >>> lockstep.list_devices("cpu")[:2]
    ['cpu:0', 'cpu:1']

    Args:
        device_type: "cpu", "gpu" or "tpu". None takes the GPUs or TPUs, where there are any, else the CPUs.

    Returns:
        Names such as "gpu:0", numbered over all workers.

    Raises:
        TypeError: `device_type` is no string.
        ValueError: There is no such kind.
        PeerError: A worker is missing at the time limit.
    """
    if device_type is not None and not isinstance(device_type, str):
        raise TypeError(f"`list_devices`: `device_type` is {device_type!r}. Expected 'cpu', 'gpu', 'tpu' or None.")
    if device_type is not None and device_type.lower() not in KINDS:
        raise ValueError(f"`list_devices`: `device_type` is {device_type!r}. Expected 'cpu', 'gpu' or 'tpu'.")
    joined()
    for kind in KINDS if device_type is None else (device_type.lower(),):
        names = _names_of_all_workers(kind)
        if names:
            return [f"{kind}:{number}" for number in range(len(names))]
    return []


def joined(options: CollectiveOptions | None = None) -> WorkerRuntime | None:
    """This process's place among several workers, None if there is one; the first call meets the others.

    Synchronisation: every worker calls.
    """
    runtime = worker_runtime.current()
    if runtime is not None:
        return runtime
    cluster = Cluster.from_environment(os.environ)
    if cluster is None or cluster.num_workers == 1:
        return None
    return worker_runtime.join(cluster, options or CollectiveOptions())


def full_names(devices: Sequence[str]) -> tuple[str, ...]:
    """Returns TensorFlow's full names of devices that Keras or TensorFlow names.

    Raises:
        TypeError: A name is no string.
        ValueError: There is no such device, or one is named twice.
    """
    runtime = worker_runtime.current()
    if runtime is not None:
        return _names_over_workers(devices, runtime)
    return replica_devices(list(devices), "DeviceMesh")


def replica_names(runtime: WorkerRuntime) -> tuple[str, ...]:
    """The full names of all workers' replicas' devices: each worker's GPUs, else its CPUs."""
    by_worker = _devices_by_worker(runtime)
    return tuple(name for names in by_worker for name in _of_kind("gpu", names) or _of_kind("cpu", names))


def _names_over_workers(devices: Sequence[str], runtime: WorkerRuntime) -> tuple[str, ...]:
    there = [name for names in _devices_by_worker(runtime) for name in names]
    found: list[str] = []
    for device in devices:
        name = _numbered_name(device, there) or _completed_name(device)
        if name not in there or name in found:
            what = "is named twice" if name in found else "does not exist"
            raise ValueError(f"DeviceMesh: device {device!r} {what}, in {list(devices)!r}. Expected names such as "
                             f"'cpu:0', numbered over all workers, or those that TensorFlow gives: {there}.")
        found.append(name)
    return tuple(found)


def _numbered_name(device: str, there: Sequence[str]) -> str:
    """The full name of a device that is numbered over all workers; "" if `device` is no such name."""
    kind, _, number = str(device).lower().strip("/").removeprefix("device:").partition(":")
    if kind not in KINDS or not number.isdecimal():
        return ""
    names = _of_kind(kind, there)
    return names[int(number)] if int(number) < len(names) else ""


def _completed_name(device: str) -> str:
    """A name that says its worker, as TensorFlow writes it in full."""
    try:
        spec = tf.DeviceSpec.from_string(str(device))
    except ValueError:
        return ""
    return spec.replace(replica=0).to_string()


def _of_kind(kind: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if f"/device:{kind.upper()}:" in name]


def _names_of_all_workers(kind: str) -> list[str]:
    """The names of the devices of a kind, in the order of the workers."""
    runtime = worker_runtime.current()
    if runtime is None:
        return [device.name for device in tf.config.list_logical_devices(kind.upper())]
    return _of_kind(kind, [name for names in _devices_by_worker(runtime) for name in names])


@functools.cache
def _devices_by_worker(runtime: WorkerRuntime) -> list[list[str]]:
    """The full names of every worker's devices; TensorFlow knows those of its own process only.

    Synchronisation: the first time, every worker calls.
    """
    prefix = runtime.cluster.device_prefix(runtime.cluster.rank) + "/"
    own = [device.name for kind in KINDS for device in tf.config.list_logical_devices(kind.upper())
           if device.name.startswith(prefix)]
    parts = over_workers.all_parts(runtime.group, [[tf.constant(own)]], "every worker's devices", one_per_worker=True)
    return [[name.decode() for name in names.numpy()] for names, in parts]
