"""What a process has once when it is a worker of several: TensorFlow's server, the group, the watch."""

from __future__ import annotations

import dataclasses
import os

import tensorflow as tf

from ..collective import CollectiveOptions, Exchange, WorkerGroup
from ..collective.errors import PeerError
from ._tf import abort_collectives, has_global_seed, runtime_has_started, start_collectives
from .cluster import Cluster
from .last_words import NEWS_WITHIN, OF_A_LOST_PEER, LastWords
from .rendezvous import meet
from .watch import Watch


@dataclasses.dataclass(frozen=True)
class WorkerRuntime:
    """A worker's place among the others, which lasts as long as the process.

    Attributes:
        cluster: The workers.
        group: Where they exchange tensors.
        watch: Watches over the others.
    """

    cluster: Cluster
    group: WorkerGroup
    watch: Watch


_runtime: WorkerRuntime | None = None


def current() -> WorkerRuntime | None:
    """This process's runtime, None if it is no worker of several."""
    return _runtime


def check() -> None:
    """Raises PeerError if the collectives of this process have been closed because another worker failed."""
    if _runtime is not None and _runtime.watch.failure:
        raise PeerError(_runtime.watch.failure)


def check_after(error: tf.errors.OpError) -> None:
    """Raises PeerError if `error` comes of another worker's failure; the watch may learn of it a moment later."""
    if _runtime is None or not isinstance(error, OF_A_LOST_PEER):
        return
    _runtime.watch.failed.wait(timeout=NEWS_WITHIN)
    if _runtime.watch.failure:
        raise PeerError(_runtime.watch.failure) from None  # That a collective was closed adds nothing.


def join(cluster: Cluster, options: CollectiveOptions) -> WorkerRuntime:
    """Meets the other workers, once in a process; a second strategy shares what the first has joined.

    Synchronisation: every worker calls.

    Raises:
        RuntimeError: TensorFlow has run ops before, the process belongs to another cluster, or a device did not start.
        PeerError: A worker is missing at the time limit, or does not fit.
    """
    global _runtime
    if _runtime is not None:
        if _runtime.cluster != cluster:
            raise RuntimeError(f"MultiWorkerMirroredStrategy: this process is {_runtime.cluster.task} of another "
                               "cluster already. A process belongs to one cluster. Start another process.")
        return _runtime
    if runtime_has_started():
        raise RuntimeError(
            "MultiWorkerMirroredStrategy: TensorFlow has run ops in this process before. Its servers can be started "
            "only before the first op. Make the strategy at the start of the program, before any tensor, variable, "
            "dataset or model, and before `tf.config.list_logical_devices()`.")
    num_replicas = num_local_replicas()
    meeting = meet(cluster, num_replicas, options)
    task = cluster.task
    _bypass_proxies(cluster)
    start_collectives(cluster.cluster_spec(), task.kind, task.index, cluster.device_prefix(0), task.port)
    devices = local_devices(cluster)
    if len(devices) != num_replicas:
        raise RuntimeError(
            f"MultiWorkerMirroredStrategy: {task} has told the others that it has {num_replicas} devices, and "
            f"TensorFlow has found {devices}. Look at its output for devices that did not start, or hide them with "
            "`tf.config.set_visible_devices`.")
    meeting.all_ready(cluster, options.timeout_seconds)
    group = WorkerGroup(cluster.rank, meeting.num_replicas_by_worker, [str(task) for task in cluster.tasks])
    watch = Watch(cluster, group, meeting.connections, options, abort_collectives)
    _runtime = WorkerRuntime(cluster, group, watch)
    LastWords(watch, group)
    watch.start()
    _share_seed(group)
    return _runtime


def _share_seed(group: WorkerGroup) -> None:
    """Gives all workers one seed where the program has set none: an unseeded shuffle is the same on all then."""
    what = Exchange("broadcast", "", "int64", "ring", 8, ("the chief's seed, -1 if it has been set",))
    own = -1 if has_global_seed() else int.from_bytes(os.urandom(4), "big")
    seed, = group.broadcast([tf.constant(own, tf.int64)], 0, what, "start")
    if int(seed) >= 0 and not has_global_seed():
        tf.random.set_seed(int(seed))


def _bypass_proxies(cluster: Cluster) -> None:
    """Lets TensorFlow's servers connect to each other directly: gRPC would ask the proxy for the web, in vain."""
    others = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy") or ""
    hosts = dict.fromkeys([*filter(None, others.split(",")), *(task.host for task in cluster.tasks)])
    os.environ["no_grpc_proxy"] = ",".join(hosts)


def num_local_replicas() -> int:
    """How many devices of this process get a replica, without starting TensorFlow's runtime."""
    gpus = tf.config.get_visible_devices("GPU")
    total = 0
    for device in gpus or tf.config.get_visible_devices("CPU"):
        total += len(tf.config.get_logical_device_configuration(device) or [None])
    return total


def local_devices(cluster: Cluster) -> list[str]:
    """The devices of this process's replicas: all GPUs, else all logical CPUs."""
    prefix = cluster.device_prefix(cluster.rank)
    names = [device.name for kind in ("GPU", "CPU") for device in tf.config.list_logical_devices(kind)
             if device.name.startswith(prefix)]
    gpus = [name for name in names if "/device:GPU:" in name]
    return gpus or [name for name in names if "/device:CPU:" in name]
