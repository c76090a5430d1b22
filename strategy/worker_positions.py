"""Where the workers stand in data of their own: one checkpoint holds the positions of all, and each restores its own.

    saved = by_worker(workers, state)     # every worker's state, a vector of strings that is the same on all
    state = own(workers, saved)           # this worker's, after a restart
"""

from __future__ import annotations

from typing import Any, Mapping

import tensorflow as tf

from ..collective import WorkerGroup
from . import over_workers

_READ_ALIKE = ("Restore into the same input: the same policy, and as many workers where each reads data of its own. Or "
               "leave the iterator out of the checkpoint, and start at the beginning of the data.")


def by_worker(workers: WorkerGroup, state: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """All workers' states of an iterator, a vector of strings.

    Synchronisation: every worker calls.
    """
    packed = tf.io.serialize_tensor(tf.stack([tf.io.serialize_tensor(state[key]) for key in sorted(state)]))
    parts = over_workers.all_parts(workers, [[packed]], "DistributedIterator: every worker's position",
                                   one_per_worker=True)
    return tf.stack([part for part, in parts])


def are_by_worker(saved: tf.Tensor) -> bool:
    """Whether a checkpoint holds what `by_worker` makes, and not one position for all."""
    return saved.shape.rank == 1


def check_one_for_all(saved: tf.Tensor) -> None:
    """Raises ValueError where the checkpoint holds a position for each worker, and this iterator has the position of
    all."""
    if are_by_worker(saved):
        raise ValueError(
            f"DistributedIterator: the checkpoint holds the positions of {saved.shape[0]} workers, each of which read "
            f"data of its own, and this iterator reads what all read. {_READ_ALIKE}")


def own(workers: WorkerGroup, saved: tf.Tensor, state: Mapping[str, tf.Tensor]) -> dict[str, Any]:
    """This worker's state of an iterator.

    Args:
        workers: The workers.
        saved: What `by_worker` has made.
        state: A state of the same iterator, for the names and dtypes.

    Raises:
        ValueError: The checkpoint holds one position for all, or those of another number of workers.
    """
    if not are_by_worker(saved):
        raise ValueError("DistributedIterator: the checkpoint holds one position for all workers, and here each reads "
                         f"data of its own. {_READ_ALIKE}")
    if saved.shape[0] != workers.size:
        raise ValueError(f"DistributedIterator: the checkpoint holds the positions of {saved.shape[0]} workers, each "
                         f"of which read data of its own, and here are {workers.size}. {_READ_ALIKE}")
    parts = tf.io.parse_tensor(saved[workers.rank], tf.string)
    return {key: tf.io.parse_tensor(part, state[key].dtype) for key, part in zip(sorted(state), tf.unstack(parts))}
