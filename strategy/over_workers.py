"""What is combined outside of the replicas when there are several workers: each has brought together its own part.

Every function takes the workers, or None where there is one: then the part is the whole.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Sequence

import tensorflow as tf

from ..collective import Exchange, ReduceOp, WorkerGroup
from ..collective.buckets import num_bytes
from ..collective.reduce_op import combine_slices
from ..collective.sites import place_of
from . import worker_runtime


@contextlib.contextmanager
def naming_the_peer(workers: WorkerGroup | None) -> Iterator[None]:
    """Turns the error of a collective that was closed into one that names the worker at fault.

    Raises:
        PeerError: Another worker failed, now or before.
    """
    if workers is None or not tf.executing_eagerly():
        yield
        return
    worker_runtime.check()
    try:
        yield
    except tf.errors.OpError as error:
        worker_runtime.check_after(error)
        raise


def what(kind: str, op: ReduceOp | None, tensor: tf.Tensor, name: str) -> Exchange:
    """Says what an exchange outside of the replicas is."""
    return Exchange(kind, op.name if op else "", tensor.dtype.name, "ring", num_bytes(tensor.shape, tensor.dtype),
                    (name,))


def reduced(workers: WorkerGroup | None, op: ReduceOp, part: tf.Tensor, name: str) -> tf.Tensor:
    """Reduces every worker's `part`; MEAN adds, the caller divides."""
    if workers is None:
        return part
    op = ReduceOp.SUM if op is ReduceOp.MEAN else op
    with naming_the_peer(workers):
        return workers.reduce(op, [part], what("all-reduce", op, part, name), _place())[0]


def reduced_parts(workers: WorkerGroup, op: ReduceOp, parts: Sequence[Sequence[tf.Tensor]], name: str
                  ) -> list[tf.Tensor]:
    """Reduces tensors of one dtype over the replicas of all workers, in one exchange; MEAN divides by all.

    Args:
        workers: The workers.
        op: How to reduce.
        parts: By replica of this process: its tensors.
        name: For error texts.
    """
    with naming_the_peer(workers):
        return workers.reduce_parts(op, parts, what("all-reduce", op, parts[0][0], name), _place())


def all_parts(workers: WorkerGroup | None, parts: Sequence[Sequence[tf.Tensor]], name: str,
              one_per_worker: bool = False) -> list[Sequence[tf.Tensor]]:
    """Everybody's lists of tensors, in the order of all replicas, or of the workers."""
    if workers is None:
        return list(parts)
    counts = [1] * workers.size if one_per_worker else None
    with naming_the_peer(workers):
        return list(workers.gather(parts, what("all-gather", None, parts[0][0], name), _place(), counts))


def broadcast(workers: WorkerGroup | None, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor:
    """The tensor of worker `root`."""
    if workers is None:
        return tensor
    with naming_the_peer(workers):
        return workers.broadcast([tensor], root, what("broadcast", None, tensor, name), _place())[0]


def joined_slices(workers: WorkerGroup | None, slices: tf.IndexedSlices, name: str) -> tf.IndexedSlices:
    """Every worker's rows side by side."""
    if workers is None:
        return slices
    parts = all_parts(workers, [[slices.values, slices.indices]], name, one_per_worker=True)
    joined = combine_slices(ReduceOp.SUM, [tf.IndexedSlices(*part) for part in parts], name)
    return tf.IndexedSlices(joined.values, joined.indices, slices.dense_shape)


def total_gradient(workers: WorkerGroup | None, gradient: Any, name: str) -> Any:
    """The sum of every worker's gradient of one variable; None where there is none."""
    if gradient is None or workers is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return joined_slices(workers, gradient, name)
    return reduced(workers, ReduceOp.SUM, tf.convert_to_tensor(gradient), name)


def _place() -> str:
    return place_of(None if tf.executing_eagerly() else tf.compat.v1.get_default_graph())
