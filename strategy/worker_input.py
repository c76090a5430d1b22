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

import re
from typing import Any

import tensorflow as tf
from absl import logging

from ..collective import ReduceOp, WorkerGroup
from . import over_workers, worker_runtime
from ._tf import state_of_op_seeds
from .split_batch import is_none, split_batch
from .step_pipeline import empty_step, relaxed_parts

# What TensorFlow writes around the message of a failed op.
_OF_AN_OP = re.compile(r"^\{\{.*?\}\} | \[Op:\w+\] name:.*$|: goo\.gle/\w+\s*$")

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
    own = tf.stack([tf.cast(dataset.cardinality(), tf.int64), state_of_op_seeds()])
    parts = over_workers.all_parts(workers, [[own]], f"{where}: number of batches", one_per_worker=True)
    counts, seeds = zip(*(part.numpy().tolist() for part, in parts))
    if len(set(seeds)) > 1:
        logging.warning("%s: the workers have drawn different random numbers so far. If the dataset draws any without "
                        "a seed of its own, as `shuffle(n)` does, it is another one on each worker: rows are read "
                        "twice, and others never. Give it a seed, or draw the same numbers on all workers.", where)
    if len(set(counts)) > 1:
        raise ValueError(
            f"{where}: the workers' datasets have different numbers of batches, by worker {list(counts)}. With the "
            f"policy {_policy(dataset).name} every worker reads the same global batches, and takes its part of each. "
            "If each worker reads data of its own (`dataset.shard(...)`), say so: set "
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

    parts = dataset.flat_map(in_parts)
    count = int(dataset.cardinality())
    if count == tf.data.UNKNOWN_CARDINALITY:
        return parts
    total = count if count == tf.data.INFINITE_CARDINALITY else count * workers.size
    return parts.apply(tf.data.experimental.assert_cardinality(total))


def _sharded(dataset: tf.data.Dataset, policy: Any, workers: WorkerGroup, where: str) -> tf.data.Dataset:
    """The worker's files or shards; what TensorFlow would tell one worker at its first element, all are told here."""
    spec = dataset.element_spec
    flat = _flat_specs(spec)
    sharded = dataset
    try:
        variant = tf.raw_ops.AutoShardDataset(
            input_dataset=tf.data.experimental.to_variant(dataset), num_workers=workers.size, index=workers.rank,
            output_types=[component.dtype for component in flat], output_shapes=[component.shape for component in flat],
            auto_shard_policy=int(policy.value), num_replicas=workers.num_replicas)
        sharded = tf.data.experimental.from_variant(variant, spec)
        first = next(iter(sharded.take(1)), None)
        outcome = "no data" if first is None else ""
    except tf.errors.OpError as error:
        outcome = _OF_AN_OP.sub("", (error.message or type(error).__name__).split("\n")[0])
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


def aligned(steps: tf.data.Dataset, element_spec: Any, workers: WorkerGroup, ends_with: str, where: str
            ) -> tuple[tf.data.Dataset, Any, bool]:
    """Lets all workers' steps end together, where their numbers are known.

    Synchronisation: every worker calls.

    Args:
        steps: This worker's steps.
        element_spec: The spec of the elements that they make.
        workers: The workers.
        ends_with: `LONGEST` or `SHORTEST`.
        where: The caller, for texts.

    Returns:
        The steps; the spec of their elements, of any number of rows unless no worker's steps end; and whether all end
        together. If not, the steps never end, and each has one more component: whether it is one of the worker's own,
        see `agreed_step`.
    """
    counts = _of_all_workers(steps.cardinality(), workers, f"{where}: number of steps")
    if set(counts) == {tf.data.INFINITE_CARDINALITY}:
        return steps, element_spec, True
    element_spec = relaxed_parts(element_spec)
    empty = empty_step(element_spec)
    if tf.data.UNKNOWN_CARDINALITY in counts:
        own_steps = steps.scan(True, lambda is_own, step: (is_own, (*step, is_own)))
        others = tf.data.Dataset.from_tensors((*empty, False)).repeat()
        return own_steps.concatenate(others), element_spec, False
    lengths = [float("inf") if count == tf.data.INFINITE_CARDINALITY else count for count in counts]
    own, total = lengths[workers.rank], (max if ends_with == LONGEST else min)(lengths)
    if total == float("inf"):
        missing = 0 if own == total else tf.data.INFINITE_CARDINALITY
    else:
        missing = int(total - min(own, total))
    # Also where nothing is missing: then the shapes that are known are the same on all workers.
    steps = steps.concatenate(tf.data.Dataset.from_tensors(empty).repeat(missing))
    return (steps.take(int(total)) if own > total else steps), element_spec, True


def agreed_step(steps: tf.data.Iterator, ends_with: str) -> tf.experimental.Optional:
    """The next step, of the worker's own or of zero rows, or nothing: as all workers together decide.

    Synchronisation: every worker calls.

    Args:
        steps: What `aligned` has made of steps that do not end together.
        ends_with: `LONGEST` or `SHORTEST`.
    """
    runtime = worker_runtime.current()
    assert runtime is not None
    *step, is_own = steps.get_next()
    op = ReduceOp.MAX if ends_with == LONGEST else ReduceOp.MIN
    name = "input: whether a worker has another step"
    goes_on = over_workers.reduced(runtime.group, op, tf.cast(is_own, tf.int32), name) > 0
    there = tf.experimental.Optional.from_value(tuple(step))
    nothing = tf.experimental.Optional.empty(tuple(steps.element_spec[:-1]))
    if tf.executing_eagerly():
        return there if bool(goes_on) else nothing
    return tf.cond(goes_on, lambda: there, lambda: nothing)


def _of_all_workers(count: Any, workers: WorkerGroup, name: str) -> list[int]:
    own = tf.convert_to_tensor(count, tf.int64)
    return [int(part) for part, in over_workers.all_parts(workers, [[own]], name, one_per_worker=True)]


def _policy(dataset: tf.data.Dataset) -> Any:
    return dataset.options().experimental_distribute.auto_shard_policy
