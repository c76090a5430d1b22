"""Strategies and values for tests."""

from __future__ import annotations

from typing import Any, Sequence

import tensorflow as tf

import lockstep


def mirrored(num_replicas: int, **options: Any) -> lockstep.MirroredStrategy:
    """A strategy of `num_replicas` logical CPUs."""
    return lockstep.MirroredStrategy([f"CPU:{index}" for index in range(num_replicas)],
                                     lockstep.CollectiveOptions(**options) if options else None)


def own(*values: Any, dtype: Any = None) -> lockstep.PerReplica:
    """A value of its own for each replica."""
    return lockstep.PerReplica([tf.constant(value, dtype) for value in values])


def split_rows(strategy: lockstep.Strategy, rows: Sequence[Any], dtype: Any = tf.float32) -> Any:
    """A batch's rows split over the replicas, sizes differing by at most one."""
    size = strategy.num_replicas_in_sync
    tensor = tf.convert_to_tensor(rows, dtype)
    sizes = [len(rows) // size + (index < len(rows) % size) for index in range(size)]
    parts = tf.split(tensor, sizes)
    return parts[0] if size == 1 else lockstep.PerReplica(parts)


def values_of(strategy: lockstep.Strategy, value: Any) -> list[Any]:
    """What each replica has, as Python lists and numbers."""
    return [part.numpy().tolist() if hasattr(part, "numpy") else part
            for part in strategy.experimental_local_results(value)]


def replica_context() -> Any:
    """The current replica context."""
    return tf.distribute.get_replica_context()


def assert_works(strategy: lockstep.Strategy) -> None:
    """Asserts that a step with an exchange gives the right numbers, whatever was run before."""
    size = strategy.num_replicas_in_sync
    total = strategy.run(tf.function(lambda x: replica_context().all_reduce("SUM", x)),
                         args=(own(*[float(index) for index in range(size)]),))
    assert values_of(strategy, total) == [size * (size - 1) / 2] * size
