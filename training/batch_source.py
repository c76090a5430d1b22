"""Batches for the driver: a dataset, distributed once, iterated epoch after epoch.

The driver (`trainer.py`) keeps one for the training data, whose position outlives a call of
`train`, and opens one for each evaluation.

    source = BatchSource(distribute(strategy, dataset, "train_data"), "train_data")
    result = loop(source.begin_loop(), tf.constant(100, tf.int64), totals)
    num_steps = int(result["num_steps"])
    source.end_loop(num_steps, ended=num_steps < 100)    # at the end, starts anew
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class DistributedData:
    """A distributed dataset, and what is known of its length.

    Attributes:
      dataset: A `tf.distribute.DistributedDataset`.
      num_batches: The batches of one epoch, None where they are unknown or endless.
      is_infinite: Whether it is known to have no end.
    """

    dataset: Any
    num_batches: int | None
    is_infinite: bool


def distribute(strategy: tf.distribute.Strategy, data: Any, name: str) -> DistributedData:
    """Distributes a dataset of global batches, unless that is done already.

    Args:
      strategy: Gives each of its replicas its part of a batch.
      data: A `tf.data.Dataset` of global batches or a `tf.distribute.DistributedDataset`.
      name: What error messages call the argument.

    Raises:
      TypeError: `data` is neither.
    """
    check_type(data, name)
    if isinstance(data, tf.data.Dataset):
        cardinality = data.cardinality()
        data = strategy.experimental_distribute_dataset(data)
    else:
        # Not every strategy's distributed dataset tells it.
        cardinality = getattr(data, "cardinality", tf.data.UNKNOWN_CARDINALITY)
        cardinality = cardinality() if callable(cardinality) else cardinality
    count = int(cardinality)
    return DistributedData(data, count if count >= 0 else None, count == tf.data.INFINITE_CARDINALITY)


def check_type(data: Any, name: str) -> None:
    """Raises the TypeError of `distribute`, where `data` is not what that takes."""
    if not isinstance(data, (tf.data.Dataset, tf.distribute.DistributedDataset)):
        raise TypeError(
            f"`{name}`: is a {type(data).__name__} ({data!r}). Expected a `tf.data.Dataset` of global batches, or "
            "what `strategy.experimental_distribute_dataset` returned. For arrays, use "
            "`tf.data.Dataset.from_tensor_slices(arrays).batch(global_batch)`."
        )


class BatchSource:
    """A position in distributed data, which starts anew where the data ends."""

    def __init__(self, data: DistributedData, name: str) -> None:
        """Stands before the first batch.

        Args:
          data: What to iterate.
          name: What error messages call the data, "train_data" or "eval_data".
        """
        self._data = data
        self._name = name
        self._iterator: Any = None
        self._loops_in_epoch = 0
        self._steps_in_epoch = 0

    @property
    def iterator(self) -> Any:
        """The iterator of this epoch; its next batch is the first that no step has seen."""
        if self._iterator is None:
            self._iterator = iter(self._data.dataset)
        return self._iterator

    def begin_loop(self) -> Any:
        """The iterator, for one loop."""
        self._loops_in_epoch += 1
        return self.iterator

    def position(self) -> dict[str, int]:
        """What must be known besides the state of `iterator` to go on here."""
        return {"loops_in_epoch": self._loops_in_epoch, "steps_in_epoch": self._steps_in_epoch}

    def take_position(self, position: Mapping[str, int]) -> None:
        """Goes on where `position` was taken; the state of `iterator` is restored apart."""
        self._loops_in_epoch = position["loops_in_epoch"]
        self._steps_in_epoch = position["steps_in_epoch"]

    def steps_to_end(self, epochs: int) -> int | None:
        """How many batches are left until the data will have ended `epochs` more times.

        None where the number of batches is unknown.
        """
        if self._data.num_batches is None:
            return None
        # After the last batch of an epoch the end itself is still to be found.
        left = self._data.num_batches - self._steps_in_epoch or self._data.num_batches
        return left + (epochs - 1) * self._data.num_batches

    def end_loop(self, num_steps: int, ended: bool) -> None:
        """Notes that a loop took batches, and whether it found the end. Not called when it raised.

        Args:
          num_steps: How many batches were taken.
          ended: Whether the iterator had no more.

        Raises:
          ValueError: The data ended without a single batch.
        """
        self._steps_in_epoch += num_steps
        if not ended:
            return
        # A loop that raised may have taken batches that were not counted.
        is_empty = self._loops_in_epoch == 1 and not num_steps
        self._iterator = None
        self._loops_in_epoch = 0
        self._steps_in_epoch = 0
        if is_empty:
            raise ValueError(
                f"`{self._name}`: ended before its first batch. Expected one batch at least. Look at what the "
                "dataset reads, filters and takes; `drop_remainder=True` drops a dataset smaller than a batch."
            )
