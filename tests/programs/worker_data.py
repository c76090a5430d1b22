"""What the programs on input share: the registry of cases, datasets of the workers' own, and parts as plain values."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

import numpy as np
import tensorflow as tf

import lockstep

Policy = tf.data.experimental.AutoShardPolicy
FOLDER = sys.argv[1] if len(sys.argv) > 1 else ""
CASES: dict[str, Callable[[lockstep.Strategy, int], Any]] = {}


def case(function: Callable[[lockstep.Strategy, int], Any]) -> Callable[[lockstep.Strategy, int], Any]:
    CASES[function.__name__] = function
    return function


def with_policy(dataset: tf.data.Dataset, policy: Any) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def plain(value: Any) -> Any:
    if isinstance(value, tf.SparseTensor):
        return [plain(tf.sparse.to_dense(value)), value.dense_shape.numpy().tolist()]
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    if isinstance(value, tf.Tensor):
        value = value.numpy()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    return value.decode() if isinstance(value, bytes) else value


def parts(strategy: lockstep.Strategy, element: Any) -> list[Any]:
    """The local replicas' parts of an element."""
    return [plain(part) for part in strategy.experimental_local_results(element)]


def steps(strategy: lockstep.Strategy, dataset: tf.data.Dataset, count: int | None = None, **more: Any) -> list[Any]:
    iterator = iter(strategy.experimental_distribute_dataset(dataset, **more))
    if count is not None:
        return [parts(strategy, next(iterator)) for _ in range(count)]
    return [parts(strategy, element) for element in iterator]


def text_files(count: int) -> list[str]:
    """Files of two lines: "0 0" and "0 1", "1 0" and "1 1", and so on."""
    return [os.path.join(FOLDER, f"{number}.txt") for number in range(count)]


def own(dataset_of_rank: Callable[[int], tf.data.Dataset], rank: int) -> tf.data.Dataset:
    """A dataset of the worker's own."""
    return with_policy(dataset_of_rank(rank), Policy.OFF)
