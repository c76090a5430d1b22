"""Input on several workers: which rows each one takes, and what happens where their data end at different times.

`tf.data.experimental.AutoShardPolicy` of the dataset's options decides:

    AUTO, DATA   every worker reads the global batches, and takes its replicas' rows of each: every step is one global
                 batch, split as on one process; nobody waits for anybody
    FILE, HINT   TensorFlow gives each worker files, or what `shard(SHARD_HINT)` says, of its own
    OFF          each worker reads its own data, which its program has chosen

With data of their own, a worker's batch of B rows makes as many steps as there are workers, so that together they take
a global batch in each step; and the workers may end at different times. Then those that have ended go on with zero
rows, or all stop with the first, as `ends_with` says.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl import logging

from ..collective import ReduceOp, WorkerGroup
from . import over_workers, worker_runtime
from .split_batch import is_none, split_batch

LONGEST = "longest"
SHORTEST = "shortest"

_Policy = tf.data.experimental.AutoShardPolicy


def reads_its_own(dataset: tf.data.Dataset) -> bool:
    """Whether each worker reads data of its own, by the dataset's policy."""
    return _policy(dataset) in (_Policy.OFF, _Policy.FILE, _Policy.HINT)


def check_same_batches(dataset: tf.data.Dataset, workers: WorkerGroup, where: str) -> None:
    """Checks that all workers have the same number of global batches, as far as it is known.

    Synchronisation: every worker calls.

    Raises:
        ValueError: They have not.
    """
    logging.info("%s: policy %s: every worker reads the global batches and takes its replicas' rows.", where,
                 _policy(dataset).name)
    counts = _of_all_workers(dataset.cardinality(), workers, f"{where}: number of batches")
    if len(set(counts)) > 1:
        raise ValueError(
            f"{where}: the workers' datasets have different numbers of batches, by worker {counts}. With the policy "
            f"{_policy(dataset).name} every worker reads the same global batches, and takes its part of each. If each "
            "worker reads data of its own (`dataset.shard(...)`), say so: set "
            "`options.experimental_distribute.auto_shard_policy` to OFF.")


def own_batches(dataset: tf.data.Dataset, workers: WorkerGroup, where: str) -> tf.data.Dataset:
    """This worker's batches, each a worker's part of a global batch in size.

    Synchronisation: every worker calls.

    Raises:
        ValueError: The files, or the hints, cannot be shared out; on all workers alike.
    """
    policy = _policy(dataset)
    logging.info("%s: policy %s: worker %d of %d reads its own data.", where, policy.name, workers.rank, workers.size)
    if policy is not _Policy.OFF:
        dataset = _sharded(dataset, policy, workers, where)

    def in_parts(*batch: Any) -> tf.data.Dataset:
        element = batch[0] if len(batch) == 1 else batch
        first, *others = [tf.data.Dataset.from_tensors(part) for part in split_batch(element, workers.size)]
        for other in others:
            first = first.concatenate(other)
        return first

    return dataset.flat_map(in_parts)


def _sharded(dataset: tf.data.Dataset, policy: Any, workers: WorkerGroup, where: str) -> tf.data.Dataset:
    """The worker's files or shards; what TensorFlow would tell one worker at its first element, all are told here."""
    spec = dataset.element_spec
    flat = _flat_specs(spec)
    variant = tf.raw_ops.AutoShardDataset(
        input_dataset=tf.data.experimental.to_variant(dataset), num_workers=workers.size, index=workers.rank,
        output_types=[component.dtype for component in flat], output_shapes=[component.shape for component in flat],
        auto_shard_policy=int(policy.value), num_replicas=workers.num_replicas)
    sharded = tf.data.experimental.from_variant(variant, spec)
    try:
        first = next(iter(sharded.take(1)), None)
        outcome = "no data" if first is None else ""
    except tf.errors.OpError as error:
        outcome = (error.message or type(error).__name__).split("\n")[0]
    outcomes = [part.numpy().decode() for part, in over_workers.all_parts(
        workers, [[tf.constant(outcome)]], f"{where}: first element", one_per_worker=True)]
    if any(outcomes):
        listed = "; ".join(f"{worker}: {text or 'has data'}" for worker, text in zip(workers.names, outcomes))
        raise ValueError(f"{where}: the policy {policy.name} leaves a worker without data. {listed}. Use the policy "
                         "AUTO, which gives every worker its rows of each batch, or at least as many files as workers.")
    return sharded


def _flat_specs(spec: Any) -> list[tf.TensorSpec]:
    """What a dataset's variant holds for an element: composite tensors travel as variants."""
    return [leaf if isinstance(leaf, tf.TensorSpec) else tf.TensorSpec(None, tf.variant)
            for leaf in tf.nest.flatten(spec) if not is_none(leaf)]


def aligned(steps: tf.data.Dataset, empty: tuple[tf.Tensor, ...], workers: WorkerGroup, ends_with: str,
            where: str) -> tuple[tf.data.Dataset, bool]:
    """Lets all workers' steps end together, where their numbers are known.

    Synchronisation: every worker calls.

    Args:
        steps: This worker's steps.
        empty: A step of zero rows.
        workers: The workers.
        ends_with: `LONGEST` or `SHORTEST`.
        where: The caller, for texts.

    Returns:
        The steps, and whether they end together: if not, each step must be agreed, see `agreed_step`.
    """
    counts = _of_all_workers(steps.cardinality(), workers, f"{where}: number of steps")
    if tf.data.UNKNOWN_CARDINALITY in counts:
        return steps.concatenate(tf.data.Dataset.from_tensors(empty).take(0)), False
    lengths = [float("inf") if count == tf.data.INFINITE_CARDINALITY else count for count in counts]
    own, total = lengths[workers.rank], (max if ends_with == LONGEST else min)(lengths)
    if own == float("inf") and total == own:
        return steps, True
    missing = -1 if total == float("inf") else max(int(total - own), 0)
    filler = tf.data.Dataset.from_tensors(empty).repeat(missing)
    steps = steps.concatenate(filler)
    return (steps if total >= own else steps.take(int(total))), True


def agreed_step(optional: tf.experimental.Optional, empty: tuple[tf.Tensor, ...], ends_with: str
                ) -> tf.experimental.Optional:
    """The next step, or a step of zero rows, or nothing: as all workers together decide.

    Synchronisation: every worker calls.
    """
    runtime = worker_runtime.current()
    assert runtime is not None
    has = tf.cast(optional.has_value(), tf.int32)
    op = ReduceOp.MAX if ends_with == LONGEST else ReduceOp.MIN
    goes_on = over_workers.reduced(runtime.group, op, has, "input: whether a worker has another step") > 0
    spec = optional.element_spec

    def step() -> tf.experimental.Optional:
        return tf.cond(optional.has_value(), optional.get_value, lambda: empty)

    if tf.executing_eagerly():
        return tf.experimental.Optional.from_value(tuple(step())) if bool(goes_on) \
            else tf.experimental.Optional.empty(spec)
    return tf.cond(goes_on, lambda: tf.experimental.Optional.from_value(tuple(step())),
                   lambda: tf.experimental.Optional.empty(spec))


def _of_all_workers(count: Any, workers: WorkerGroup, name: str) -> list[int]:
    own = tf.convert_to_tensor(count, tf.int64)
    return [int(part) for part, in over_workers.all_parts(workers, [[own]], name, one_per_worker=True)]


def _policy(dataset: tf.data.Dataset) -> Any:
    return dataset.options().experimental_distribute.auto_shard_policy
