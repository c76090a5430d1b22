"""What two workers of two replicas read, by case; `worker_input_test.py` says what they should.

A case returns this worker's steps: by step, by local replica, the rows. What it raises is told instead. The arguments
are a folder for files that all see, and the cases, all by default.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Sequence

import tensorflow as tf

import lockstep
from programs.input_positions import POSITIONS
from programs.worker_data import CASES, Policy, case, own, parts, plain, steps, text_files, with_policy


def any_row(*row: Any) -> bool:
    return True


def unequal(rank: int, known: bool) -> tf.data.Dataset:
    """Six rows on worker 0 and three on worker 1, each in batches of two: in steps of one row."""
    rows = tf.data.Dataset.range(10 * rank, 10 * rank + (3 if rank else 6)).map(lambda x: tf.cast(x, tf.float32))
    return own(lambda _: (rows if known else rows.filter(any_row)).batch(2), rank)


# What every worker reads.


@case
def even_batches(strategy: lockstep.Strategy, rank: int) -> Any:
    return steps(strategy, tf.data.Dataset.range(8).batch(4))


@case
def a_partial_last_batch(strategy: lockstep.Strategy, rank: int) -> Any:
    return steps(strategy, tf.data.Dataset.range(10).batch(4))


@case
def one_row(strategy: lockstep.Strategy, rank: int) -> Any:
    return steps(strategy, tf.data.Dataset.range(1).batch(4))


@case
def a_shuffle_without_a_seed(strategy: lockstep.Strategy, rank: int) -> Any:
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(16).shuffle(16).batch(5))
    return [[parts(strategy, element) for element in dataset] for _ in range(2)]


@case
def the_policy_data(strategy: lockstep.Strategy, rank: int) -> Any:
    return steps(strategy, with_policy(tf.data.Dataset.range(8).batch(4), Policy.DATA))


@case
def endless_data(strategy: lockstep.Strategy, rank: int) -> Any:
    return steps(strategy, tf.data.Dataset.range(6).repeat().batch(4), 4)


@case
def generators(strategy: lockstep.Strategy, rank: int) -> Any:
    spec = tf.TensorSpec([], tf.int32)
    return steps(strategy, tf.data.Dataset.from_generator(lambda: iter(range(6)), output_signature=spec).batch(4))


@case
def different_numbers_of_batches(strategy: lockstep.Strategy, rank: int) -> Any:
    return steps(strategy, tf.data.Dataset.range(8 - 4 * rank).batch(4))


def nest(x: Any) -> Any:
    """For rows of positive numbers: one component of each kind."""
    return {"ragged": tf.RaggedTensor.from_row_lengths(tf.range(tf.reduce_sum(x)), x), "words": tf.strings.as_string(x),
            "sparse": tf.sparse.from_dense(x[:, None] * [1, 0]), "nothing": None, "matrix": x[:, None] * [1, 2]}


@case
def nests(strategy: lockstep.Strategy, rank: int) -> Any:
    return steps(strategy, tf.data.Dataset.from_tensor_slices(tf.range(1, 6)).batch(4).map(nest))


# What each worker reads for itself.


@case
def the_policy_off(strategy: lockstep.Strategy, rank: int) -> Any:
    return steps(strategy, own(lambda rank: tf.data.Dataset.range(10 * rank, 10 * rank + 8).batch(4), rank))


@case
def the_policy_hint(strategy: lockstep.Strategy, rank: int) -> Any:
    hint = tf.data.experimental.SHARD_HINT
    return steps(strategy, with_policy(tf.data.Dataset.range(8).shard(hint, hint).batch(4), Policy.HINT))


@case
def three_files_for_two_workers(strategy: lockstep.Strategy, rank: int) -> Any:
    return steps(strategy, with_policy(tf.data.TextLineDataset(text_files(3)).batch(2), Policy.FILE))


@case
def one_file_for_two_workers(strategy: lockstep.Strategy, rank: int) -> Any:
    return steps(strategy, with_policy(tf.data.TextLineDataset(text_files(1)).batch(2), Policy.FILE))


@case
def one_file_that_all_read(strategy: lockstep.Strategy, rank: int) -> Any:
    return steps(strategy, tf.data.TextLineDataset(text_files(1)).batch(2))


@case
def no_files_to_shard(strategy: lockstep.Strategy, rank: int) -> Any:
    return steps(strategy, with_policy(tf.data.Dataset.range(8).batch(4), Policy.FILE))


@case
def unequal_lengths(strategy: lockstep.Strategy, rank: int) -> Any:
    return {f"{known} {ends_with}": steps(strategy, unequal(rank, known), ends_with=ends_with)
            for known in (True, False) for ends_with in ("longest", "shortest")}


@case
def endless_data_on_one_worker(strategy: lockstep.Strategy, rank: int) -> Any:
    def dataset() -> tf.data.Dataset:
        rows = tf.data.Dataset.range(10 * rank, 10 * rank + 2)
        return own(lambda rank: (rows if rank else rows.repeat()).batch(2), rank)

    return {"longest": steps(strategy, dataset(), 4), "shortest": steps(strategy, dataset(), ends_with="shortest")}


@case
def endless_data_of_their_own(strategy: lockstep.Strategy, rank: int) -> Any:
    return steps(strategy, own(lambda rank: tf.data.Dataset.range(rank, rank + 2).repeat().batch(2), rank), 3)


@case
def nests_of_unequal_lengths(strategy: lockstep.Strategy, rank: int) -> Any:
    rows = tf.data.Dataset.from_tensor_slices(tf.range(1, 3 if rank else 5))
    return steps(strategy, own(lambda _: rows.filter(any_row).batch(4).map(nest), rank))


@case
def batches_from_a_function(strategy: lockstep.Strategy, rank: int) -> Any:
    seen = []

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        seen.append([context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync,
                     int(context.get_per_replica_batch_size(8))])
        return tf.data.Dataset.range(14).shard(context.num_input_pipelines, context.input_pipeline_id).batch(2)

    dataset = strategy.distribute_datasets_from_function(dataset_fn)
    return [seen, [parts(strategy, element) for element in dataset]]


# Losses: every loop gives the means over the rows that all workers have in a step.


def mean(x: Any) -> Any:
    return lockstep.average_loss(x)


@case
def means_in_a_python_loop(strategy: lockstep.Strategy, rank: int) -> Any:
    def means(known: bool) -> list[float]:
        dataset = strategy.experimental_distribute_dataset(unequal(rank, known))
        step = tf.function(mean)
        return [float(strategy.reduce("SUM", strategy.run(step, args=(batch,)))) for batch in dataset]

    return [means(known) for known in (True, False)]


@case
def means_in_a_loop_of_a_function(strategy: lockstep.Strategy, rank: int) -> Any:
    @tf.function
    def epoch(dataset: Any) -> Any:
        means = tf.TensorArray(tf.float32, 0, dynamic_size=True)
        for batch in dataset:
            means = means.write(means.size(), strategy.reduce("SUM", strategy.run(mean, args=(batch,))))
        return means.stack()

    return [plain(epoch(strategy.experimental_distribute_dataset(unequal(rank, known)))) for known in (True, False)]


@case
def enumerated_steps(strategy: lockstep.Strategy, rank: int) -> Any:
    @tf.function
    def numbers(dataset: Any) -> Any:
        found = tf.TensorArray(tf.float32, 0, dynamic_size=True)
        for index, batch in enumerate(dataset):
            total = strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(batch,)))
            found = found.write(found.size(), 100 * tf.cast(index, tf.float32) + total)
        return found.stack()

    return [plain(numbers(strategy.experimental_distribute_dataset(unequal(rank, known)))) for known in (True, False)]


@case
def cardinalities(strategy: lockstep.Strategy, rank: int) -> Any:
    return [int(strategy.experimental_distribute_dataset(unequal(rank, known)).cardinality())
            for known in (True, False)]


@case
def means_of_optionals(strategy: lockstep.Strategy, rank: int) -> Any:
    @tf.function
    def next_mean(iterator: Any) -> Any:
        element = iterator.get_next_as_optional()
        if element.has_value():
            return strategy.reduce("SUM", strategy.run(mean, args=(element.get_value(),)))
        return -1.0

    def means(known: bool) -> list[float]:
        iterator = iter(strategy.experimental_distribute_dataset(unequal(rank, known)))
        return [float(next_mean(iterator)) for _ in range(8)]

    return [means(known) for known in (True, False)]


for position in POSITIONS:
    case(position)


@case
def other_random_numbers_on_one_worker(strategy: lockstep.Strategy, rank: int) -> Any:
    """The last case: from here on the workers' seeds differ."""
    if rank:
        tf.random.uniform([])
    return [sorted(sum(sum(steps(strategy, dataset), []), [])) for dataset in (
        tf.data.Dataset.range(8).shuffle(8, seed=1).batch(8), tf.data.Dataset.range(8).shuffle(8).batch(8))]


def main(names: Sequence[str]) -> None:
    from testing.logical_devices import ask_for_logical_cpus
    from testing.workers import report

    ask_for_logical_cpus(int(os.environ["LOCKSTEP_TEST_REPLICAS"]))
    strategy = lockstep.MultiWorkerMirroredStrategy(options=lockstep.CollectiveOptions(timeout_seconds=60))
    rank = strategy.extended.workers.rank
    if strategy.is_chief:
        for number, path in enumerate(text_files(4)):
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(f"{number} {line}\n" for line in range(2))
    strategy.barrier("the files are there")
    for name in names or CASES:
        try:
            report(name, CASES[name](strategy, rank))
        except (ValueError, tf.errors.OpError) as error:
            report(name, [type(error).__name__, str(error)])
    strategy.barrier("end")


if __name__ == "__main__":
    main(sys.argv[2:])
