"""The law of the loss: a replica's share of the mean over the global batch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..collective import ReduceOp, all_reduce
from . import replica_scope


def average_loss(per_example_loss: Any, sample_weight: Any = None, regularization_losses: Any = None) -> tf.Tensor:
    """Returns this replica's share of the mean loss over all rows that the sync group really has.

    The shares SUM to the mean over the global batch, and gradients of the share, SUM-reduced, are the gradient of that
    mean, for every split of the batch: even, partial, or with replicas that have no rows. Weights multiply and the
    denominator counts elements (Keras's rule for `sum_over_batch_size`): the mean of losses l with weights w over n
    elements is sum(w * l) / n. Outside of `strategy.run` it is that mean itself.

    Synchronisation: every replica must call; the number of elements is all-reduced.

    >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> rows = lockstep.PerReplica((tf.constant([1.0, 2.0]), tf.constant([4.0])))
    >>> weights = lockstep.PerReplica((tf.constant([1.0, 0.0]), tf.constant([1.0])))
    >>> shares = strategy.run(tf.function(lambda l, w: lockstep.average_loss(l, w)), args=(rows, weights))
    >>> round(float(strategy.reduce("SUM", shares)), 4)
    1.6667

    Args:
        per_example_loss: Losses of this replica's rows, any shape (typically [B]) and floating dtype; may hold no
            elements.
        sample_weight: Weights, of a shape that broadcasts to that of `per_example_loss`. A shape [B] against losses
            [B, ...] is extended to the right.
        regularization_losses: Scalars that depend only on variables, such as `model.losses`; each counts once, not
            once per replica.

    Returns:
        A scalar of the losses' dtype; sums are made in float32 for half precision. 0 where no replica has rows.

    Raises:
        TypeError: The losses are not floating.
        ValueError: The weights do not broadcast to the losses.
    """
    losses = tf.convert_to_tensor(per_example_loss)
    if not losses.dtype.is_floating:
        raise TypeError(f"`average_loss`: the losses have dtype {losses.dtype.name}. Losses are floating numbers. Use "
                        "`tf.cast(losses, tf.float32)`.")
    wide = tf.float32 if losses.dtype in (tf.float16, tf.bfloat16) else losses.dtype
    weighted = tf.cast(losses, wide)
    if sample_weight is not None:
        weighted *= _broadcast_weights(tf.cast(tf.convert_to_tensor(sample_weight), wide), losses)
    scope = replica_scope.current()
    count = tf.size(losses, tf.int64)
    num_replicas = 1
    if scope is not None:
        num_replicas = scope.member.size
        count, = all_reduce(scope.member, ReduceOp.SUM, [count], scope.strategy.options)
    share = tf.math.divide_no_nan(tf.reduce_sum(weighted), tf.cast(count, wide))
    for loss in [] if regularization_losses is None else tf.nest.flatten(regularization_losses):
        share += tf.cast(loss, wide) / num_replicas
    return tf.cast(share, losses.dtype)


def _broadcast_weights(weights: tf.Tensor, losses: tf.Tensor) -> tf.Tensor:
    """The weights, of a shape that multiplies `losses` without changing their shape."""
    shape = losses.shape
    if weights.shape.rank is None or shape.rank is None:
        missing = tf.maximum(tf.rank(losses) - tf.rank(weights), 0)
        weights = tf.reshape(weights, tf.concat([tf.shape(weights), tf.ones([missing], tf.int32)], 0))
        return tf.broadcast_to(weights, tf.shape(losses))
    weights = tf.reshape(weights, tf.concat([tf.shape(weights), tf.ones([shape.rank - weights.shape.rank], tf.int32)],
                                            0)) if 0 < weights.shape.rank < shape.rank else weights
    pairs = zip(weights.shape, shape if weights.shape.rank else [])
    if weights.shape.rank > shape.rank or any(have not in (None, 1) and want is not None and have != want
                                              for have, want in pairs):
        raise ValueError(f"`average_loss`: weights of shape {weights.shape} for losses of shape {shape}. Pass one "
                         "weight for each row, or for each element.")
    # Where sizes are known only when it runs, the losses must not be stretched to the weights.
    return weights if shape.is_fully_defined() else tf.broadcast_to(weights, tf.shape(losses))
