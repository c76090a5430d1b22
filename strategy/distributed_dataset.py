"""The dataset that a strategy hands out: global batches in, one part for each replica out.

`Strategy.experimental_distribute_dataset` and `Strategy.distribute_datasets_from_function` make it.

    dataset = tf.data.Dataset.range(8).batch(4)
    for batch in strategy.experimental_distribute_dataset(dataset):  # two replicas
        strategy.run(step, args=(batch,))  # replica 0: [0, 1] then [4, 5]; replica 1: [2, 3] then [6, 7]

The pipeline is built once, here; an iterator for each epoch costs neither a trace nor a function.
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Sequence

import tensorflow as tf

from ..collective import WorkerGroup
from . import worker_input
from ._tf import enumerate_registry, for_loop_registry, for_stmt
from .device_buffer import component_devices
from .distributed_iterator import DistributedIterator, refuse_in_replica_context
from .split_batch import check_batch_spec, check_row_specs
from .step_pipeline import grouped_steps, split_steps


class DistributedDataset(tf.distribute.DistributedDataset):
    """A dataset whose elements hold one part for each replica.

    Each element of the dataset is a global batch. It is split along its first dimension, after all of the dataset's
    own transformations: parts differ by at most one row, larger parts first, rows in order; with fewer rows than
    replicas the last parts have zero rows. Every tensor of an element becomes a `PerReplica`; with one replica
    elements stay plain. The order and the number of elements are the dataset's own.

    Iterate it in Python or inside `tf.function`, where `break` and `enumerate` work too. It is not a
    `tf.data.Dataset`: transform the dataset first, then distribute it.

    Synchronisation: every worker makes it, once its program gets there. Iterating needs none, unless each worker reads
    data of its own whose length is not known beforehand: then every worker must ask for every element.

    >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> dataset = tf.data.Dataset.range(6).batch(3)
    >>> for batch in strategy.experimental_distribute_dataset(dataset):
    ...     print([part.numpy().tolist() for part in batch.values])
    [[0, 1], [2]]
    [[3, 4], [5]]

    Args:
        dataset: Batched: elements are nests of dense, ragged or sparse tensors of any dtype, shape [B, ...], one B
            for all tensors of an element.
        devices: The device of each replica, in their order. Parts for GPUs are copied there ahead of time; CPU
            replicas share the host's memory, and nothing is copied. Strings stay on the host.
        options: `experimental_per_replica_buffer_size` steps are prepared ahead, 0 for none; with
            `experimental_fetch_to_device=False` parts stay on the host. None is `tf.distribute.InputOptions()`.
        per_replica_batches: The elements are per-replica batches already, and as many consecutive ones as there are
            replicas make one step, see `from_function`.
        workers: Where the workers meet, None if there is one. Which rows are whose: see worker_input.py.
        ends_with: Where each worker reads data of its own: "longest" goes on, with zero rows for workers whose data
            have ended, until all have; "shortest" stops at the first end.

    Raises:
        TypeError: `dataset` is no `tf.data.Dataset`, an element holds something that cannot be split into rows, or
            `options` is of another type.
        ValueError: An element holds a scalar (the dataset is not batched), its tensors have different static row
            counts, `devices` is empty, the buffer size is negative, or `ends_with` is unknown.
        NotImplementedError: `options` asks for PER_REPLICA replication or to place the dataset on a device.
    """

    def __init__(self, dataset: tf.data.Dataset, devices: Sequence[str],
                 options: tf.distribute.InputOptions | None = None, *, per_replica_batches: bool = False,
                 workers: WorkerGroup | None = None, ends_with: str = worker_input.LONGEST):
        where = "`experimental_distribute_dataset`"
        if per_replica_batches:
            where = "`distribute_datasets_from_function`"
        _check_dataset(dataset, where)
        options = _checked_options(options, where)
        if not devices:
            raise ValueError(f"{where}: `devices` is empty. There must be a replica. Name one device for each.")
        if ends_with not in (worker_input.LONGEST, worker_input.SHORTEST):
            raise ValueError(f"{where}: `ends_with` is {ends_with!r}. Expected 'longest' or 'shortest'.")
        buffer_size = options.experimental_per_replica_buffer_size
        (check_row_specs if per_replica_batches else check_batch_spec)(dataset.element_spec, where)
        self._agreed_end = ""
        if per_replica_batches:
            self._steps, self._element_spec = grouped_steps(dataset, len(devices), buffer_size)
        elif workers is None:
            self._steps, self._element_spec = split_steps(dataset, len(devices), buffer_size)
        elif worker_input.reads_its_own(dataset):
            own = worker_input.own_batches(dataset, workers, where)
            self._steps, self._element_spec = split_steps(own, len(devices), buffer_size)
        else:
            worker_input.check_same_batches(dataset, workers, where)
            own_replicas = slice(workers.first_replica, workers.first_replica + len(devices))
            self._steps, self._element_spec = split_steps(dataset, workers.num_replicas, buffer_size, own_replicas)
        self._workers = workers
        self._reads_its_own = per_replica_batches or worker_input.reads_its_own(dataset)
        if workers is not None and self._reads_its_own:
            self._align(workers, ends_with, where)
        self._devices = component_devices(
            self._element_spec, devices if options.experimental_fetch_to_device else [""] * len(devices))
        self._buffer_size = buffer_size

    def _align(self, workers: WorkerGroup, ends_with: str, where: str) -> None:
        """Lets the workers, each of which reads data of its own, end together."""
        self._steps, self._element_spec, end_together = worker_input.aligned(
            self._steps, self._element_spec, workers, ends_with, where)
        if not end_together:
            self._agreed_end = ends_with

    @classmethod
    def from_function(cls, dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
                      devices: Sequence[str], options: tf.distribute.InputOptions | None = None,
                      input_context: tf.distribute.InputContext | None = None, *,
                      workers: WorkerGroup | None = None,
                      ends_with: str = worker_input.LONGEST) -> "DistributedDataset":
        """Distributes per-replica batches: n consecutive elements make one step of n replicas.

        Where a finite dataset ends in the middle of a step, the replicas that are left without an element get one
        with zero rows. Elements that hold scalars have no rows; such an end raises when it is reached.

        Args:
            dataset_fn: Called once with the input context; returns a `tf.data.Dataset` of per-replica batches.
            devices: The device of each replica, in their order.
            options: As for the class.
            input_context: What `dataset_fn` is given; by default one pipeline for each worker.
            workers: As for the class.
            ends_with: As for the class.

        Raises:
            TypeError: `dataset_fn` is not callable or returns no `tf.data.Dataset`, and as for the class.
            ValueError, NotImplementedError: As for the class.
            tf.errors.InvalidArgumentError: On iteration, at an end as above.
        """
        if not callable(dataset_fn):
            raise TypeError(
                f"`distribute_datasets_from_function`: `dataset_fn` is {_named(dataset_fn)}. It must be a function "
                "of a `tf.distribute.InputContext` that returns a dataset. Pass a dataset itself to "
                "`experimental_distribute_dataset`.")
        if input_context is None:
            input_context = tf.distribute.InputContext(
                num_input_pipelines=1 if workers is None else workers.size,
                input_pipeline_id=0 if workers is None else workers.rank,
                num_replicas_in_sync=len(devices) if workers is None else workers.num_replicas)
        return cls(dataset_fn(input_context), devices, options, per_replica_batches=True, workers=workers,
                   ends_with=ends_with)

    @property
    def element_spec(self) -> Any:
        """The spec of an element: a nest of the specs of `PerReplica` values, or plain specs for one replica."""
        return self._element_spec

    def cardinality(self) -> tf.Tensor:
        """The number of steps, an int64 scalar, or `tf.data.INFINITE_CARDINALITY`, `tf.data.UNKNOWN_CARDINALITY`."""
        return tf.constant(tf.data.UNKNOWN_CARDINALITY) if self._agreed_end else self._steps.cardinality()

    def __len__(self) -> int:
        count = int(self.cardinality())
        if count < 0:
            kind = "infinite" if count == tf.data.INFINITE_CARDINALITY else "unknown"
            raise TypeError(f"DistributedDataset: the number of steps is {kind}. `len` needs a known one. Ask "
                            "`cardinality()`, or state it with `.apply(tf.data.experimental.assert_cardinality(n))`.")
        return count

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> DistributedIterator:
        """A new iterator, which starts at the first element.

        Raises:
            RuntimeError: Called inside `strategy.run`.
        """
        refuse_in_replica_context("iter(distributed_dataset)")
        return DistributedIterator.over(self._steps, self._element_spec, self._devices, self._buffer_size,
                                        self._agreed_end, self._workers, self._reads_its_own)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Calls `state = reduce_func(state, element)` for every element and returns the last state.

        Args:
            initial_state: A nest of tensors; states keep its structure, dtypes and shapes.
            reduce_func: Called once for each element, or traced once inside `tf.function`.
        """
        iterator = iter(self)

        def step(element: tf.experimental.Optional, state: Any) -> tuple[tf.experimental.Optional, Any]:
            state = reduce_func(state, element.get_value())
            return iterator.get_next_as_optional(), state

        start = (iterator.get_next_as_optional(), initial_state)
        return tf.while_loop(lambda element, state: element.has_value(), step, start, parallel_iterations=1)[1]

    def _enumerated(self, start: int | tf.Tensor) -> "DistributedDataset":
        """The same dataset with elements (index, element), the index an int64 scalar."""
        numbered = copy.copy(self)
        first = tf.cast(start, tf.int64)
        numbered._steps = self._steps.scan(first, lambda index, step: (index + 1, (index, *step)))
        numbered._element_spec = (tf.TensorSpec([], tf.int64), self._element_spec)
        numbered._devices = ("", *self._devices)
        return numbered


def _check_dataset(dataset: Any, where: str) -> None:
    if isinstance(dataset, tf.data.Dataset):
        return
    if isinstance(dataset, tf.distribute.DistributedDataset):
        raise TypeError(f"{where}: the dataset is distributed already. A dataset can be distributed once. Use it as "
                        "it is, or pass the `tf.data.Dataset` it was made of.")
    if isinstance(dataset, tf.data.Iterator):
        fix = "Pass the dataset and not an iterator over it."
    elif callable(dataset):
        fix = "Pass what it returns, or use `distribute_datasets_from_function`."
    elif hasattr(dataset, "__next__"):
        fix = ("Wrap the function that makes it, `tf.data.Dataset.from_generator(fn, output_signature=...)"
               ".batch(global_batch_size)`.")
    else:
        fix = "Wrap it, `tf.data.Dataset.from_tensor_slices(x).batch(global_batch_size)`."
    raise TypeError(f"{where}: got {_named(dataset)}. Expected a `tf.data.Dataset`. {fix}")


def _checked_options(options: Any, where: str) -> tf.distribute.InputOptions:
    if options is None:
        return tf.distribute.InputOptions()
    if not isinstance(options, tf.distribute.InputOptions):
        raise TypeError(f"{where}: `options` is {_named(options)}. Expected a `tf.distribute.InputOptions` or None.")
    if options.experimental_replication_mode != tf.distribute.InputReplicationMode.PER_WORKER:
        raise NotImplementedError(
            f"{where}: `experimental_replication_mode` is {options.experimental_replication_mode}. One pipeline "
            "feeds all replicas of a process, so that each element is read once. Use PER_WORKER.")
    if options.experimental_place_dataset_on_device:
        raise NotImplementedError(
            f"{where}: `experimental_place_dataset_on_device` is True. Datasets run on the host, and their elements "
            "are copied to the devices. Leave it out.")
    size = options.experimental_per_replica_buffer_size
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"{where}: `experimental_per_replica_buffer_size` is {size!r}. Expected a number of steps "
                         "to prepare ahead, 0 for none.")
    return options


def _named(value: Any) -> str:
    return f"an object of type `{type(value).__module__}.{type(value).__qualname__}`"


def _for_stmt(dataset: DistributedDataset, *loop: Any) -> None:
    """AutoGraph's `for` over a dataset: that over an iterator, which knows `break` and `return`."""
    for_stmt(iter(dataset), *loop)


def _enumerate(dataset: DistributedDataset, start: int = 0) -> Any:
    return enumerate(dataset, start) if tf.executing_eagerly() else dataset._enumerated(start)


def _enumerate_iterator(iterator: DistributedIterator, start: int = 0) -> Any:
    if tf.executing_eagerly():
        return enumerate(iterator, start)
    raise NotImplementedError(
        "`enumerate(iterator)` inside `tf.function`: the loop would be unrolled without end while it is traced. "
        "Enumerate the distributed dataset, or count in a variable.")


for_loop_registry.register(DistributedDataset, _for_stmt)
enumerate_registry.register(DistributedDataset, _enumerate)
enumerate_registry.register(DistributedIterator, _enumerate_iterator)
