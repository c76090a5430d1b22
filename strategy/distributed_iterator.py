"""The iterator over a distributed dataset: steps of one part for each replica, in Python and inside `tf.function`.

    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    checkpoint = tf.train.Checkpoint(iterator=iterator, model=model)
    train(iterator)  # a tf.function; the iterator of the next epoch does not trace it again
    checkpoint.save(path)  # restored, it goes on at the next row

It reads one `tf.data` iterator over the steps that `step_pipeline` makes.
"""

from __future__ import annotations

from typing import Any, Sequence

import tensorflow as tf

from ..collective import WorkerGroup
from . import worker_input, worker_positions
from .device_buffer import DeviceBuffer, place
from .distributed_optional import DistributedOptional, DistributedOptionalSpec
from .epoch_start import EpochStart, restore_state, state_of
from .step_pipeline import pack

# Under which a checkpoint keeps the steps that wait on devices; where each worker has a position of its own, all of it.
_WAITING = "STEPS_ON_DEVICES"

# Under which a checkpoint keeps the state of the iterator over the steps.
_STEPS = "STEPS"

# Under which a checkpoint keeps the state at the start of the epoch.
_START = "EPOCH_START"

# A Python loop over an iterator inside `tf.function` unrolls without end; nobody unrolls so many steps on purpose.
_MAX_NEXT_CALLS_WHILE_TRACING = 1000


class DistributedIterator(tf.distribute.DistributedIterator, tf.data.Iterator):
    """An iterator whose elements hold one part for each replica.

    `iter(distributed_dataset)` makes it. It can be passed to a `tf.function`, which another iterator over the same
    dataset does not trace again, and to `tf.train.Checkpoint`, which saves and restores its position exactly: also in
    the middle of an epoch, with shuffling, and with steps prepared ahead. The number of replicas may differ between
    saving and restoring, unless steps wait on GPUs or come from `distribute_datasets_from_function`. Where each worker
    reads data of its own, a checkpoint holds the positions of all, and is restored onto as many workers. Datasets with
    state that TensorFlow cannot save (`from_generator`, random ops that are not stateless) raise when saved.

    Synchronisation: see `DistributedDataset`; where each worker reads data of its own, all must save. One caller at a
    time.

    Args:
        steps: An iterator over steps, flat tuples of tensors.
        spec: What elements they make, and where these belong.
        buffer: Steps that wait on the devices, or None.
        workers: The workers, where each has a position of its own; else None.
        start: Its state when it was made; None inside `tf.function`.
    """

    def __init__(self, steps: tf.data.Iterator, spec: "DistributedIteratorSpec", buffer: DeviceBuffer | None = None,
                 workers: WorkerGroup | None = None, start: EpochStart | None = None):
        super().__init__()
        self._steps = steps
        self._spec = spec
        self._buffer = buffer
        self._num_traced_next_calls = 0
        self._workers = workers
        self._start = start

    @classmethod
    def over(cls, dataset: tf.data.Dataset, element_spec: Any, devices: Sequence[str],
             buffer_size: int, agreed_end: str = "", workers: WorkerGroup | None = None,
             reads_its_own: bool = False) -> "DistributedIterator":
        """A new iterator over a dataset of steps.

        Args:
            dataset: The steps, flat tuples of tensors.
            element_spec: The spec of the elements that they make.
            devices: The device of each component of a step, "" for the host.
            buffer_size: How many steps wait on devices other than the host. An iterator made inside `tf.function`
                keeps none.
            agreed_end: How the workers agree on every step, "" if they need not, see `worker_input.agreed_step`.
            workers: The workers, None if there is one.
            reads_its_own: Whether each worker reads data of its own.
        """
        steps = iter(dataset)
        capacity = buffer_size if any(devices) and tf.executing_eagerly() and not agreed_end else 0
        spec = DistributedIteratorSpec(element_spec, devices, capacity, dataset.element_spec, agreed_end)
        buffer = DeviceBuffer.create(dataset.element_spec, devices, capacity) if capacity else None
        # Steps that wait on devices are this worker's too.
        start = EpochStart(dataset, steps) if tf.executing_eagerly() else None
        return cls(steps, spec, buffer, workers if reads_its_own or buffer is not None else None, start)

    @property
    def element_spec(self) -> Any:
        """The spec of an element: a nest of the specs of `PerReplica` values, or plain specs for one replica."""
        return self._spec.element_spec

    def get_next(self) -> Any:
        """The next element: a nest of `PerReplica` values, parts on the replicas' devices; plain for one replica.

        Raises:
            tf.errors.OutOfRangeError: There is none.
            RuntimeError: Called inside `strategy.run`.
        """
        refuse_in_replica_context("get_next")
        if self._spec.agreed_end:
            return self._agreed_element()
        if self._buffer is not None:
            return pack(self._spec.element_spec, self._buffer.get_next(self._steps))
        return pack(self._spec.element_spec, place(self._steps.get_next(), self._spec.devices))

    def get_next_as_optional(self) -> DistributedOptional:
        """The next element, or nothing at the end, as a value that can be tested inside `tf.function`.

        Raises:
            RuntimeError: Called inside `strategy.run`.
        """
        refuse_in_replica_context("get_next_as_optional")
        if self._buffer is not None:
            optionals = self._buffer.get_next_as_optional(self._steps)
        else:
            optionals = (self._next_step(),)
        specs = [tf.OptionalSpec(optional.element_spec) for optional in optionals]
        return DistributedOptional(
            optionals, DistributedOptionalSpec(self._spec.element_spec, self._spec.devices, specs))

    def _next_step(self) -> tf.experimental.Optional:
        if not self._spec.agreed_end:
            return self._steps.get_next_as_optional()
        return worker_input.agreed_step(self._steps, self._spec.agreed_end)

    def _agreed_element(self) -> Any:
        step = self._next_step()
        if tf.executing_eagerly() and not bool(step.has_value()):
            raise tf.errors.OutOfRangeError(None, None, "DistributedIterator: there is no other element.")
        return pack(self._spec.element_spec, place(step.get_value(), self._spec.devices))

    def __iter__(self) -> "DistributedIterator":
        return self

    def __next__(self) -> Any:
        """The next element. Raises StopIteration at the end; inside `tf.function` OutOfRangeError, when it runs."""
        if not tf.executing_eagerly():
            self._num_traced_next_calls += 1
            if self._num_traced_next_calls > _MAX_NEXT_CALLS_WHILE_TRACING:
                raise RuntimeError(
                    f"DistributedIterator: {_MAX_NEXT_CALLS_WHILE_TRACING} calls of `next` while one `tf.function` "
                    "is traced. A Python loop over an iterator does not end there, since only running reaches the "
                    "end of the data. Loop with `for batch in iterator` under AutoGraph, or count with `tf.range`.")
        try:
            return self.get_next()
        except tf.errors.OutOfRangeError:
            raise StopIteration from None

    @property
    def _type_spec(self) -> "DistributedIteratorSpec":
        return self._spec

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        nothing = tf.constant([], tf.string, shape=[0, 0])
        state = self._own_state(nothing if self._buffer is None else self._buffer.save())
        if self._workers is None:
            return state
        # The rest, the chief's, is not read again, but has the dtypes that every iterator expects.
        return {**state, _WAITING: worker_positions.by_worker(self._workers, state)}

    def _own_state(self, waiting: tf.Tensor) -> dict[str, tf.Tensor]:
        start = tf.constant("") if self._start is None else self._start.state
        # All of it as strings, so that a position of another kind is read, and refused by name.
        return {_STEPS: state_of(self._steps), _WAITING: waiting, _START: start}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> None:
        saved = restored[_WAITING]
        if self._workers is None:
            worker_positions.check_one_for_all(saved)
            state = dict(restored)
        else:
            state = worker_positions.own(self._workers, saved, self._own_state(saved))
        saved, start = state.pop(_WAITING), state.pop(_START)
        restore_state(self._steps, state[_STEPS])
        if self._start is not None:
            self._start.restore(start)
        if self._buffer is not None:
            self._buffer.restore(saved)
        elif saved.shape[0]:
            raise ValueError(
                f"DistributedIterator: the checkpoint holds {saved.shape[0]} steps that waited on GPUs, and this "
                "iterator keeps none there. They would be lost. Restore with the same devices and "
                "`experimental_per_replica_buffer_size`, or write checkpoints with a buffer size of 0.")


class DistributedIteratorSpec(tf.TypeSpec):
    """Type of a `DistributedIterator`: equal for all iterators over one dataset.

    Args:
        element_spec: The spec of the elements.
        devices: The device of each of their flat components, "" for the host.
        capacity: How many steps wait on the devices.
        step_spec: The specs of a step's tensors.
        agreed_end: How the workers agree on every step, "" if they need not.
    """

    __slots__ = ["element_spec", "devices", "agreed_end", "_capacity", "_step_spec"]

    def __init__(self, element_spec: Any, devices: Sequence[str], capacity: int, step_spec: Sequence[tf.TensorSpec],
                 agreed_end: str = ""):
        self.element_spec = element_spec
        self.devices = tuple(devices)
        self._capacity = capacity
        self._step_spec = tuple(step_spec)
        self.agreed_end = agreed_end

    @property
    def value_type(self) -> type:
        return DistributedIterator

    def _serialize(self) -> tuple[Any, ...]:
        return self.element_spec, self.devices, self._capacity, self._step_spec, self.agreed_end

    @property
    def _component_specs(self) -> tuple[Any, ...]:
        num_queues = len(set(self.devices)) if self._capacity else 0
        return tf.data.IteratorSpec(self._step_spec), (tf.TensorSpec([], tf.resource),) * num_queues

    def _to_components(self, value: DistributedIterator) -> tuple[Any, ...]:
        return value._steps, value._buffer.handles if value._buffer is not None else ()

    def _from_components(self, components: tuple[Any, ...]) -> DistributedIterator:
        steps, handles = components
        buffer = None
        if self._capacity:
            buffer = DeviceBuffer(self._step_spec, self.devices, self._capacity, handles)
        return DistributedIterator(steps, self, buffer)


def refuse_in_replica_context(call: str) -> None:
    """Raises RuntimeError inside `strategy.run`, where one replica alone would draw the data of all."""
    if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        raise RuntimeError(
            f"DistributedIterator: `{call}` was called inside `strategy.run`. One call draws the parts of all "
            "replicas. Call it outside, and pass the element: `strategy.run(step, args=(next(iterator),))`.")
