"""`DataParallel`: the interface of `keras.distribution.DataParallel`, on a strategy that trains on all devices."""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import Any, Iterator, Sequence

import keras
import tensorflow as tf

from ..collective import CollectiveOptions
from . import keras_distribution
from .base import Strategy
from .device_mesh import DeviceMesh
from .distributed_dataset import DistributedDataset
from .distribution_devices import full_names, joined, list_devices, replica_names
from .mirrored_strategy import MirroredStrategy
from .multi_worker_mirrored_strategy import MultiWorkerMirroredStrategy
from .split_batch import split_batch
from .tensor_layout import TensorLayout
from .worker_runtime import WorkerRuntime

_BATCH_AXIS = "batch"


class DataParallel(keras.distribution.DataParallel):
    """Data-parallel training by Keras's interface; takes the place of `keras.distribution.DataParallel`, and is one.

    Variables made while it is current (`scope`, or `keras.distribution.set_distribution`) have a copy on every device
    of the mesh, and Keras's `fit`, `evaluate` and `predict` run a replica on each, with one device's numbers. Where
    TF_CONFIG or `initialize` names several workers, the mesh spans the devices of all.

    Synchronisation: every worker must make it, at the start of its program; see `MultiWorkerMirroredStrategy`.

    >>> data_parallel = lockstep.DataParallel(devices=["cpu:0", "cpu:1"])
    >>> with data_parallel.scope():
    ...     model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, kernel_initializer="ones")])
    ...     model.compile("sgd", "mse")
    >>> history = model.fit(np.ones([7, 1]), np.zeros([7, 1]), batch_size=7, verbose=0)
    >>> history.history["loss"], data_parallel.strategy.num_replicas_in_sync
    ([1.0], 2)

    Args:
        device_mesh: The devices, a grid of one axis. Of several axes the first is the data axis, and a warning says so;
            the devices along the others share the rows of their part.
        devices: Names of devices, for a mesh of one axis "batch". With neither, all of `list_devices()` are taken.
        auto_shard_dataset: Whether a `tf.data.Dataset` is the global one; False if each process has a part of its own.
        options: How the replicas exchange tensors; None takes the defaults.

    Raises:
        ValueError: Both `device_mesh` and `devices` are given, or `device_mesh` is no mesh, or a device does not exist
            or is named twice, or on several workers the mesh is not that of all their replicas' devices.
        RuntimeError: On several workers: TensorFlow has run ops in this process before.
        PeerError: A worker is missing at the time limit.
    """

    def __init__(self, device_mesh: keras.distribution.DeviceMesh | None = None, devices: Sequence[str] | None = None,
                 auto_shard_dataset: bool = True, *, options: CollectiveOptions | None = None):
        if device_mesh is not None and devices is not None:
            raise ValueError(f"DataParallel: both `device_mesh` ({device_mesh}) and `devices` ({devices!r}) are given. "
                             "Expected one of them. Leave the other out.")
        if device_mesh is not None and not isinstance(device_mesh, keras.distribution.DeviceMesh):
            raise ValueError(f"DataParallel: `device_mesh` is {device_mesh!r}. Expected a lockstep.DeviceMesh.")
        keras_distribution.install(_strategy_of)
        runtime = joined(options)
        if device_mesh is None:
            device_mesh = _mesh_of(devices, runtime, auto_shard_dataset)
        if runtime is None:
            full_names(device_mesh.devices.ravel().tolist())  # Raises where a device does not exist.
        axes = device_mesh.axis_names
        if device_mesh.devices.ndim != 1:
            warnings.warn(
                f"DataParallel: `device_mesh` has {device_mesh.devices.ndim} axes, {list(axes)}. Expected one. The "
                f"first, {axes[0]!r}, is the data axis; devices along the others share the rows of their part, so that "
                f"all {device_mesh.devices.size} devices train.", stacklevel=2)
        # Keras's own initializer fails where it wants to warn.
        super(keras.distribution.DataParallel, self).__init__(device_mesh, axes[0], auto_shard_dataset)
        self._options = options
        self._strategy: Strategy | None = None
        if runtime is not None:
            self._num_processes, self._process_id = runtime.cluster.num_workers, runtime.cluster.rank
            self._strategy = _over_workers(device_mesh, runtime, options)

    @property
    def strategy(self) -> Strategy:
        """The strategy that does the work, made when it is first asked for: `run`, `reduce` and more for own loops.

        >>> data_parallel = lockstep.DataParallel(devices=["cpu:0", "cpu:1"])
        >>> float(data_parallel.strategy.reduce("SUM", data_parallel.strategy.run(lambda: tf.constant(1.0))))
        2.0
        """
        if self._strategy is None:
            self._strategy = MirroredStrategy(full_names(self.device_mesh.devices.ravel().tolist()), self._options)
        return self._strategy

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Makes it Keras's current distribution, and its strategy TensorFlow's current one; the one before comes back.

        >>> data_parallel = lockstep.DataParallel(devices=["cpu:0", "cpu:1"])
        >>> with data_parallel.scope():
        ...     keras.distribution.distribution() is data_parallel
        True

        Raises:
            RuntimeError: Entered inside the scope of a strategy that is not its own.
        """
        with super().scope():
            yield

    def distribute_dataset(self, dataset: Any) -> Any:
        """Returns what this process's replicas read of the user's global dataset.

        `fit`, `evaluate` and `predict` call it; call it in loops of your own.

        Synchronisation: every worker must call.

        >>> data_parallel = lockstep.DataParallel(devices=["cpu:0", "cpu:1"])
        >>> for batch in data_parallel.distribute_dataset(tf.data.Dataset.range(5).batch(3)):
        ...     print([part.numpy().tolist() for part in data_parallel.strategy.experimental_local_results(batch)])
        [[0, 1], [2]]
        [[3], [4]]

        Args:
            dataset: A `tf.data.Dataset`, the same on every process; with `auto_shard_dataset=False` the process's own.

        Returns:
            Of batches, a `DistributedDataset` with a part for each replica, of any number of rows. Of elements without
            rows, a `tf.data.Dataset` of those of this process: every n-th for n processes. A `DistributedDataset` as it
            is.

        Raises:
            ValueError: `dataset` is of another type, or its tensors have different numbers of rows.
            TypeError: An element holds something that is no tensor.
        """
        if isinstance(dataset, DistributedDataset):
            return dataset
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(f"`distribute_dataset`: the dataset type {type(dataset)} is not supported for "
                             "auto-sharding. Expected a `tf.data.Dataset`. Wrap it, "
                             "`tf.data.Dataset.from_tensor_slices(x).batch(size)`; `fit` takes arrays as they are.")
        reads_its_own = self.num_processes > 1 and not self.auto_shard_dataset
        specs = tf.nest.flatten(dataset.element_spec)
        if any(getattr(spec, "shape", tf.TensorShape(None)).rank == 0 for spec in specs):
            if self.num_processes == 1 or reads_its_own:
                return dataset
            options = tf.data.Options()
            options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
            return dataset.shard(self.num_processes, self._process_id).with_options(options)
        if reads_its_own:
            num_replicas = len(self.strategy.extended.worker_devices)
            return self.strategy.distribute_datasets_from_function(lambda _: _per_replica(dataset, num_replicas))
        return self.strategy.experimental_distribute_dataset(dataset)

    def get_data_layout(self, data_shape: Sequence[int | None]) -> TensorLayout:
        """The layout of input: rows split over the first axis of the mesh, everything else whole.

        >>> lockstep.DataParallel(devices=["cpu:0", "cpu:1"]).get_data_layout((None, 3)).axes
        ('batch', None)

        Args:
            data_shape: A list or tuple, with None for a dimension that is unknown.

        Raises:
            TypeError: It is neither.
            ValueError: It is empty: a scalar has no rows.
        """
        if not isinstance(data_shape, (list, tuple, tf.TensorShape)):
            raise TypeError(f"`get_data_layout`: `data_shape` is {data_shape!r}. Expected a list or tuple.")
        if not len(data_shape):
            raise ValueError("`get_data_layout`: `data_shape` is empty. A scalar has no rows to split. Batch the data.")
        return TensorLayout([self.batch_dim_name] + [None] * (len(data_shape) - 1), self.device_mesh)

    def get_variable_layout(self, variable: Any) -> keras.distribution.TensorLayout:
        """The layout of a variable: whole on every device; one that it was given by hand counts, as in Keras.

        >>> data_parallel = lockstep.DataParallel(devices=["cpu:0", "cpu:1"])
        >>> data_parallel.get_variable_layout(keras.Variable([1.0, 2.0])).axes
        (None,)
        """
        given = getattr(variable, "_layout", None)
        return TensorLayout([None] * len(variable.shape), self.device_mesh) if given is None else given

    def get_tensor_layout(self, path: str) -> None:
        """None: what layers hand on stays where it is."""
        return None


def _strategy_of(value: Any) -> Strategy | None:
    return value.strategy if isinstance(value, DataParallel) else None


def _mesh_of(devices: Sequence[str] | None, runtime: WorkerRuntime | None, auto_shard_dataset: bool) -> DeviceMesh:
    """A mesh of one axis."""
    if devices is None and runtime is None:
        # Keras looks for the devices of one process, so that who replaces its `list_devices` replaces it here too.
        devices = keras.distribution.DataParallel(auto_shard_dataset=auto_shard_dataset).device_mesh.devices.tolist()
    elif devices is None:
        devices = list_devices()
    elif isinstance(devices, str) or not len(devices):
        raise ValueError(f"DataParallel: `devices` is {devices!r}. Expected a list of names, such as "
                         '`["cpu:0", "cpu:1"]`; None takes all.')
    devices = list(devices)
    return DeviceMesh((len(devices),), [_BATCH_AXIS], devices)


def _over_workers(mesh: keras.distribution.DeviceMesh, runtime: WorkerRuntime, options: CollectiveOptions | None
                  ) -> Strategy:
    cluster = runtime.cluster
    named, there = full_names(mesh.devices.ravel().tolist()), replica_names(runtime)
    if named != there:
        raise ValueError(f"DataParallel: the mesh is of the devices {list(named)}. On several workers, expected all "
                         f"that have a replica, in their order: {list(there)}. Leave `device_mesh` and `devices` out "
                         "to take them.")
    return MultiWorkerMirroredStrategy(tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster.cluster_spec(), task_type=cluster.task.kind, task_id=cluster.task.index), options)


def _per_replica(dataset: tf.data.Dataset, num_replicas: int) -> tf.data.Dataset:
    """The batches of a process, each as a batch for every one of its replicas."""
    def in_parts(*batch: Any) -> tf.data.Dataset:
        parts = split_batch(batch[0] if len(batch) == 1 else batch, num_replicas)
        return functools.reduce(tf.data.Dataset.concatenate, map(tf.data.Dataset.from_tensors, parts))

    return dataset.flat_map(in_parts)
