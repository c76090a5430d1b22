"""Keras's losses, optimizers and layers: what takes their place in a step that several replicas run.

Every function gets the original and its arguments, see corrections.py.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Sequence

import tensorflow as tf

from ..collective import CollectiveMismatchError, ReduceOp, all_reduce
from ..collective.all_gather import all_components
from . import corrections, replica_scope
from .aggregation import averaging_weight
from .invariance import is_given_from_outside


class _State(threading.local):
    """What a replacement tells another further down: the rows of the replica's part of the batch."""

    rows: tf.Tensor | None = None


_state = _State()


def _sum(*tensors: tf.Tensor) -> list[tf.Tensor]:
    """Sums over the replicas; no gradient flows through them."""
    scope = replica_scope.current()
    assert scope is not None
    return all_reduce(scope.member, ReduceOp.SUM, [tf.stop_gradient(tensor) for tensor in tensors],
                      scope.strategy.options)


# Losses.


def reduce_values(original: Callable[..., Any], values: Any, sample_weight: Any = None,
                  reduction: Any = "sum_over_batch_size") -> Any:
    if reduction not in ("sum_over_batch_size", "mean", "mean_with_sample_weight") or len(values.shape) == 0:
        return original(values, sample_weight, reduction)
    total = tf.reduce_sum(values)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        own = tf.reduce_sum(tf.cast(sample_weight, tf.float32))
    else:
        own = tf.cast(tf.size(values), tf.float32)
    divisor, = _sum(own)
    return tf.math.divide_no_nan(total, tf.cast(divisor, total.dtype))


def apply_mask(original: Callable[..., Any], sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
    weights = original(sample_weight, mask, dtype, reduction)
    if mask is None or reduction not in ("mean", "sum_over_batch_size"):
        return weights
    # The original has multiplied by the replica's own total / valid.
    mask = tf.cast(mask, tf.float32)
    own_total, own_valid = tf.cast(tf.size(mask), tf.float32), tf.reduce_sum(mask)
    total, valid = _sum(own_total, own_valid)
    own = tf.math.divide_no_nan(own_valid, own_total)
    return weights * tf.cast(own * tf.math.divide_no_nan(total, valid), weights.dtype)


def unscale_loss(original: Callable[..., Any], value: Any) -> Any:
    value = tf.convert_to_tensor(value)
    if len(value.shape) == 0:
        return _sum(value)[0]
    # With reduction "none" it is a vector, of which the caller takes the mean.
    total, count = _sum(tf.reduce_sum(value), tf.cast(tf.size(value), value.dtype))
    return tf.math.divide_no_nan(total, count)


def compute_loss(original: Callable[..., Any], self: Any, x: Any = None, y: Any = None, y_pred: Any = None,
                 *args: Any, **kwargs: Any) -> Any:
    leaves = [leaf for leaf in tf.nest.flatten([x, y_pred, y])
              if hasattr(leaf, "shape") and tf.TensorShape(leaf.shape).rank != 0]
    before, _state.rows = _state.rows, _num_rows(leaves[0]) if leaves else None
    try:
        return original(self, x, y, y_pred, *args, **kwargs)
    finally:
        _state.rows = before


def _num_rows(batch: Any) -> tf.Tensor:
    if isinstance(batch, tf.RaggedTensor):
        return batch.nrows()
    return batch.dense_shape[0] if isinstance(batch, tf.SparseTensor) else tf.shape(batch)[0]


def additional_loss(original: Callable[..., Any], self: Any, loss: Any) -> Any:
    if _state.rows is None:
        return original(self, loss)
    rows = tf.cast(_state.rows, tf.float32)
    share = tf.math.divide_no_nan(rows, _sum(rows)[0])
    total = tf.reduce_sum(loss)
    return total * tf.cast(share, total.dtype)


# Optimizers.


def clip_gradients(original: Callable[..., Any], self: Any, grads: Any) -> Any:
    if not (self.clipnorm or self.global_clipnorm or self.clipvalue):
        return original(self, grads)
    present = [(grad, None) for grad in grads if grad is not None]
    reduced = iter(self._all_reduce_sum_gradients(present) if present else [])
    clipped = original(self, [None if grad is None else next(reduced)[0] for grad in grads])
    for grad in clipped:
        if grad is not None:
            grad._lockstep_is_reduced = True
    return clipped


def all_reduce_sum_gradients(original: Callable[..., Any], self: Any, grads_and_vars: Any) -> Any:
    _check_scope(self)
    pairs = list(grads_and_vars)
    is_whole = _are_whole(self, pairs)
    rest = [pair for pair, whole in zip(pairs, is_whole) if not whole]
    reduced = iter(original(self, rest) if rest else [])
    return [pair if whole else (next(reduced)[0], pair[1]) for pair, whole in zip(pairs, is_whole)]


def add_variable_from_reference(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    _check_scope(self)
    return original(self, *args, **kwargs)


def _check_scope(optimizer: Any) -> None:
    scope = replica_scope.current()
    assert scope is not None
    if optimizer._distribution_strategy is not scope.strategy:
        raise ValueError(f"Keras optimizer {optimizer.name!r}: it was not made under the scope of the strategy that "
                         "runs the step, so its variables have no copy on the replicas. Make it under "
                         "`strategy.scope()`.")


def _are_whole(optimizer: Any, pairs: list[tuple[Any, Any]]) -> list[bool]:
    """Which gradients are those of all replicas already: reduced, or given from outside of the step."""
    scope = replica_scope.current()
    assert scope is not None
    grads = [grad for grad, _ in pairs]
    is_reduced = [getattr(grad, "_lockstep_is_reduced", False) for grad in grads]
    if "given gradients" in corrections.disabled or all(is_reduced):
        return is_reduced
    if scope.is_traced_once:
        is_given = [isinstance(grad, tf.Tensor) and is_given_from_outside(grad) for grad in grads]
    else:
        # One after another, replicas share Python objects: what is one object on all was made outside.
        own = tf.constant([id(grad) for grad in grads], tf.int64)
        names = tf.constant([getattr(variable, "name", "") for _, variable in pairs], tf.string)
        everybody = [list(map(tf.get_static_value, parts)) for parts in all_components(scope.member, [own, names])]
        _check_same_variables(optimizer, [names for _, names in everybody])
        is_given = [tf.executing_eagerly() and len(set(ids)) == 1 for ids in zip(*(ids for ids, _ in everybody))]
    return [reduced or given for reduced, given in zip(is_reduced, is_given)]


def _check_same_variables(optimizer: Any, names: Sequence[Any]) -> None:
    """Raises CollectiveMismatchError where the replicas have gradients of different variables.

    Args:
        optimizer: For the error text.
        names: By replica: the names of the variables, "" where they are not known.
    """
    everybody = [[name.decode() for name in own] for own in names]
    for replica, own in enumerate(everybody):
        other, more = next(((other, theirs) for other, theirs in enumerate(everybody) if set(theirs) - set(own)
                            or len(theirs) > len(own)), (0, own))
        if more is not own:
            lacking = ", ".join(repr(name) for name in more if name and name not in own)
            what = f"no gradient of {lacking}, of which replica {other} has one" if lacking else \
                f"gradients of {len(own)} variables, replica {other} of {len(more)}"
            raise CollectiveMismatchError(
                f"Keras optimizer {optimizer.name!r}: replica {replica} has {what}. Every replica must have gradients "
                "of the same variables: let the loss of each depend on all of them, or leave a variable out on all.")


def check_finite(original: Callable[..., Any], self: Any, grads: Any) -> Any:
    scope = replica_scope.current()
    assert scope is not None
    finite = tf.cast(original(self, grads), tf.int32)
    return tf.cast(all_reduce(scope.member, ReduceOp.MIN, [finite], scope.strategy.options)[0], tf.bool)


# Layers.


def next_seed(original: Callable[..., Any], self: Any, ordered: bool = True) -> Any:
    seed = original(self, ordered)
    replica = tf.distribute.get_replica_context()
    if replica is None:
        return seed
    folded = tf.random.fold_in(tf.cast(seed, tf.int64), replica.replica_id_in_sync_group)
    return tf.cast(folded, seed.dtype)


def normalize(original: Callable[..., Any], self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    if not training or self.synchronized:
        return original(self, inputs, training, mask)
    counted = tf.shape(inputs)[0] if mask is None else tf.reduce_sum(tf.cast(mask, tf.float32))
    with averaging_weight(tf.cast(counted, tf.float32)):
        return original(self, inputs, training, mask)


def moments(original: Callable[..., Any], self: Any, inputs: Any, mask: Any) -> Any:
    mean, variance = original(self, inputs, mask)
    if self.synchronized or mask is not None:
        return mean, variance
    has_rows = tf.shape(inputs)[0] > 0  # Statistics of no rows would make the gradients of scale and offset NaN.
    return (tf.where(has_rows, mean, tf.zeros_like(mean)), tf.where(has_rows, variance, tf.ones_like(variance)))
