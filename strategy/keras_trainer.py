"""Keras's trainer: what takes the place of its functions under a strategy with several replicas.

Every function gets the original and its arguments, see corrections.py.
"""

from __future__ import annotations

import threading
from typing import Any, Callable

import tensorflow as tf

from . import replica_scope
from .distributed_dataset import DistributedDataset
from .split_batch import split_batch
from .step_pipeline import joined_parts
from .values import PerReplica, PerReplicaSpec, is_distributed, rows_vary


def metrics_result(original: Callable[..., Any], self: Any) -> Any:
    scope = replica_scope.current()
    assert scope is not None
    scope.strategy.extended.reporting_model = self
    return original(self)


def reduce_per_replica(original: Callable[..., Any], values: Any, strategy: Any, reduction: str) -> Any:
    if _replicates(strategy) and strategy.extended.workers is not None and reduction == "concat":
        return tf.nest.map_structure(lambda value: _joined(strategy, value), values)
    reduced = original(values, strategy, reduction)
    if not _replicates(strategy):
        return reduced
    model, strategy.extended.reporting_model = strategy.extended.reporting_model, None
    if model is None or reduction != "auto" or not isinstance(reduced, dict):
        return reduced
    return {**reduced, **{name: value for name, value in model.get_metrics_result().items() if name in reduced}}


def _joined(strategy: Any, value: Any) -> Any:
    """The predictions of all workers' replicas, in the order of the rows; of scalars one for each replica."""
    is_scalar = strategy.experimental_local_results(value)[0].shape.rank == 0
    return strategy.gather(strategy.run(lambda one: one[None], args=(value,)) if is_scalar else value, axis=0)


def make_function(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if self.jit_compile and _replicates(self.distribute_strategy):
        raise ValueError(
            "`jit_compile=True` under a strategy with several replicas: XLA cannot compile the exchange between the "
            "replicas. Compile the model with `jit_compile=False`, or train on one replica.")
    return original(self, *args, **kwargs)


def make_train_function(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    _check_scopes(self)
    for variable in self.trainable_variables if _replicates(self.distribute_strategy) else ():
        if getattr(variable.value, "distribute_strategy", None) is not self.distribute_strategy:
            raise ValueError(f"Keras model {self.name!r}: its variable {variable.path!r} was not made under the "
                             f"strategy's scope, so it has no copy on the replicas. {_ONE_SCOPE}")
    return original(self, *args, **kwargs)


def symbolic_build(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    _refuse_in_step(self)
    if self.optimizer is not None and not self.optimizer.built:
        _check_scopes(self)
    return original(self, *args, **kwargs)


def build_from_specs(original: Callable[..., Any], self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
    if iterator is None or not _is_ours(self.distribute_strategy):
        return original(self, iterator, data_batch)
    specs = tf.nest.map_structure(lambda spec: spec.value_specs[0] if isinstance(spec, PerReplicaSpec) else spec,
                                  iterator._distributed_dataset.element_spec)
    return original(self, None, specs)


def is_tf_dataset(original: Callable[..., Any], x: Any) -> bool:
    return original(x) or isinstance(x, DistributedDataset)


_ONE_SCOPE = "Build the model and call `compile`, with an optimizer made there, under one `strategy.scope()`."


def _refuse_in_step(model: Any) -> None:
    if replica_scope.is_running():
        raise RuntimeError(f"Keras model {model.name!r}: `fit`, `evaluate`, `predict` or one of their kind was called "
                           "inside `strategy.run`. They run their own steps on all replicas, and a replica cannot "
                           "start replicas. Call them outside, on a model that was made under `strategy.scope()`.")


def _check_scopes(model: Any) -> None:
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    strategies = model.distribute_strategy, getattr(optimizer, "_distribution_strategy", model.distribute_strategy)
    if strategies[0] is not strategies[1] and any(map(_replicates, strategies)):
        built, made = ("under a scope" if _replicates(strategy) else "outside" for strategy in strategies)
        raise ValueError(f"Keras model {model.name!r}: it was built {built} and its optimizer was made {made}, of "
                         f"another strategy or of none. {_ONE_SCOPE}")


class _OneBatch(threading.local):
    """Whether `predict_on_batch` runs."""

    is_given = False


_one_batch = _OneBatch()


def predict_on_batch(original: Callable[..., Any], self: Any, x: Any) -> Any:
    before, _one_batch.is_given = _one_batch.is_given, True
    try:
        return original(self, x)
    finally:
        _one_batch.is_given = before


def make_splitting_function(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    _refuse_in_step(self)
    original(self, *args, **kwargs)
    for name in ("train_function", "test_function", "predict_function"):
        function = getattr(self, name)
        if function is not None and not hasattr(function, "_lockstep_splits") and _replicates(self.distribute_strategy):
            setattr(self, name, _splitting(function, self.distribute_strategy))


def _splitting(function: Callable[..., Any], strategy: Any) -> Callable[..., Any]:
    """A step function of Keras that splits the plain batches of `train_on_batch` and its like."""
    def split(batches: Any) -> Any:
        if isinstance(batches, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            return function(batches)
        if isinstance(batches, list) and not _one_batch.is_given:  # `predict` takes its batches from the data itself.
            return function(batches)
        parts = (_split(batch, strategy) for batch in batches)
        return function(list(parts) if isinstance(batches, list) else parts)

    split._lockstep_splits = True  # type: ignore[attr-defined]
    return split


def _split(batch: Any, strategy: Any) -> Any:
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    if any(is_distributed(leaf) or isinstance(leaf, tf.experimental.Optional) for leaf in leaves):
        return batch
    tensors = tf.nest.map_structure(lambda leaf: leaf if leaf is None or tf.is_tensor(leaf)
                                    or isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor))
                                    else tf.convert_to_tensor(leaf), batch)
    first = strategy.extended.first_replica
    parts = split_batch(tensors, strategy.num_replicas_in_sync)
    parts = parts[first:first + len(strategy.extended.worker_devices)]
    if strategy.extended.workers is None:
        return joined_parts(parts)
    return tf.nest.map_structure(
        lambda *leaves: None if leaves[0] is None else PerReplica([*map(rows_vary, leaves)]), *parts)


def _is_ours(strategy: Any) -> bool:
    return hasattr(strategy.extended, "replica_pins")


def _replicates(strategy: Any) -> bool:
    return _is_ours(strategy) and strategy.num_replicas_in_sync > 1
