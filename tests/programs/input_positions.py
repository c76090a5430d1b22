"""Iterators that are saved in the middle of an epoch and restored, by case; `input.py` runs them after its own."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

import lockstep
from programs.worker_data import FOLDER, Policy, own, parts, text_files, with_policy


def saved_and_restored(strategy: lockstep.Strategy, dataset: Any, name: str) -> Any:
    """The second step, read after it was saved and again when it is restored into a new iterator; and the rest."""
    iterator = iter(dataset)
    next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).write(os.path.join(FOLDER, name))
    second = parts(strategy, next(iterator))
    other = iter(dataset)
    for _ in range(2):
        next(other)
    tf.train.Checkpoint(iterator=other).read(path).assert_consumed()
    return [second, [parts(strategy, element) for element in other]]


def the_position_in_what_all_read(strategy: lockstep.Strategy, rank: int) -> Any:
    dataset = tf.data.Dataset.range(12).shuffle(12, seed=3, reshuffle_each_iteration=False).batch(4)
    return saved_and_restored(strategy, strategy.experimental_distribute_dataset(dataset), "all")


def the_position_in_data_of_their_own(strategy: lockstep.Strategy, rank: int) -> Any:
    def dataset(rank: int) -> tf.data.Dataset:
        return tf.data.Dataset.range(10 * rank, 10 * rank + 12 - 4 * rank).batch(4)

    return saved_and_restored(strategy, strategy.experimental_distribute_dataset(own(dataset, rank)), "own")


def the_position_in_files(strategy: lockstep.Strategy, rank: int) -> Any:
    dataset = with_policy(tf.data.TextLineDataset(text_files(4)).batch(2), Policy.FILE)
    return saved_and_restored(strategy, strategy.experimental_distribute_dataset(dataset), "files")


def the_position_in_batches_from_a_function(strategy: lockstep.Strategy, rank: int) -> Any:
    dataset = strategy.distribute_datasets_from_function(
        lambda context: tf.data.Dataset.range(16).shard(2, context.input_pipeline_id).batch(1))
    return saved_and_restored(strategy, dataset, "function")


def the_position_of_others(strategy: lockstep.Strategy, rank: int) -> Any:
    """Positions of each worker's own into what all read, and the other way round."""
    alike = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4))
    apart = strategy.experimental_distribute_dataset(own(lambda rank: tf.data.Dataset.range(8).batch(4), rank))
    found = []
    for name, source, target in (("apart", apart, alike), ("alike", alike, apart)):
        path = tf.train.Checkpoint(iterator=iter(source)).write(os.path.join(FOLDER, name))
        try:
            tf.train.Checkpoint(iterator=iter(target)).read(path)
        except ValueError as error:
            found.append(str(error))
    return found


def the_position_in_a_generator(strategy: lockstep.Strategy, rank: int) -> Any:
    spec = tf.TensorSpec([], tf.int32)
    dataset = tf.data.Dataset.from_generator(lambda: iter(range(6)), output_signature=spec).batch(2)
    iterator = iter(strategy.experimental_distribute_dataset(own(lambda _: dataset, rank)))
    tf.train.Checkpoint(iterator=iterator).write(os.path.join(FOLDER, "generator"))


POSITIONS = (
    the_position_in_what_all_read,
    the_position_in_data_of_their_own,
    the_position_in_files,
    the_position_in_batches_from_a_function,
    the_position_of_others,
    the_position_in_a_generator,
)
