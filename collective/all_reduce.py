"""All-reduce: options, then the dispatcher, then one plain function per algorithm.

    reduced = all_reduce(member, ReduceOp.SUM, gradients, options)

What each algorithm costs a replica that hands over S bytes in a group of n:

    algorithm   steps                bytes moved per replica       where
    local       2 queue hand-overs   0 (by reference); one reads n x S   replicas of one process
    ring        2(n - 1)             2 S (n - 1) / n               TensorFlow's op over gRPC or shared memory
    nccl        NCCL's choice        2 S (n - 1) / n               GPUs
    naive       as local, a tensor at a time                       tests: the reference
"""

from __future__ import annotations

from typing import Any, Sequence, TypeAlias

import tensorflow as tf

from . import _tf
from .all_gather import all_gather, shape_difference
from .buckets import flattened, num_bytes, plan_buckets, taken_apart
from .device_collectives import ONE_SHAPE, can_reduce, device_all_reduce
from .member import Exchange, Member, Parts
from .options import CollectiveOptions
from .reduce_op import ReduceOp, combine_slices, mean_of_total

Value: TypeAlias = "tf.Tensor | tf.IndexedSlices"


def all_reduce(member: Member, op: ReduceOp, values: Sequence[Value], options: CollectiveOptions) -> list[Value]:
    """Reduces each value over the group; every member gets the same results.

    Synchronisation: every member calls, with values of the same number, dtypes and (dense) shapes.

    Args:
        member: This replica's seat.
        op: How to reduce.
        values: Dense tensors of any shapes and mixed dtypes, or `tf.IndexedSlices`, whose row counts may differ
            between members and may be 0.
        options: Bucket size and algorithm.

    Returns:
        The reduced values, in the order of `values`; differentiable for SUM and MEAN of floats.

    Raises:
        ValueError: A value is None.
        TypeError: The op means nothing for a dtype, or for sparse rows.
        tf.errors.InvalidArgumentError: The shapes of a dense value differ between members.
    """
    where = "all_reduce"
    for index, value in enumerate(values):
        if value is None:
            raise ValueError(f"`{where}`: value {index} of {len(values)} is None. Every value must be a tensor: leave "
                             "variables without a gradient out, the same ones on every replica.")
    values = [value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value) for value in values]
    for value in values:
        op.check_dtype(value.dtype, where)
        if isinstance(value, tf.IndexedSlices):
            op.check_sparse(where)
    if member.size == 1:
        return [value if value.dtype == op.result_dtype(value.dtype) else tf.cast(value, op.result_dtype(value.dtype))
                for value in values]
    results: list[Value | None] = [None] * len(values)
    dense = [index for index, value in enumerate(values) if not isinstance(value, tf.IndexedSlices)]
    labels = [_label(member, values[index], index, len(values)) for index in dense]
    for index, reduced in zip(dense, _dense(member, op, [values[index] for index in dense], options, labels)):
        results[index] = reduced
    for index, value in enumerate(values):
        if isinstance(value, tf.IndexedSlices):
            results[index] = _sparse(member, op, value, options)
    return results


def own_part(member: Member, total: tf.Tensor, tensor: tf.Tensor, axis: int, options: CollectiveOptions) -> tf.Tensor:
    """The gradient of `tensor`, which was joined with everybody's along `axis`.

    Synchronisation: every member calls.

    Args:
        member: This replica's seat.
        total: The gradient of the joined tensor, on this member.
        tensor: What the member has brought.
        axis: The axis.
        options: For the sum over the members.
    """
    summed, = all_reduce(member, ReduceOp.SUM, [tf.convert_to_tensor(total)], options)
    rows = tf.shape(tensor)[axis]
    counts = all_gather(member, tf.reshape(rows, [1]), 0)
    start = tf.reduce_sum(counts[:member.rank])
    return tf.gather(summed, tf.range(start, start + rows), axis=axis)


def choose_algorithm(implementation: str, member: Member) -> str:
    """The algorithm for a group, from `CollectiveOptions.implementation`."""
    on_gpus = all(_is_gpu(device) for device in member.devices)
    if implementation == "nccl" and not on_gpus:
        raise ValueError(f"`all_reduce`: implementation 'nccl' on devices {', '.join(member.devices)}. NCCL reduces "
                         "between GPUs only. Use 'auto', 'local' or 'ring'.")
    if implementation == "naive":
        return "naive"
    if not member.can_use_device_collectives:
        return "local"
    if implementation == "auto":
        return "nccl" if on_gpus else "local"
    return implementation


def _is_gpu(device: str) -> bool:
    return tf.DeviceSpec.from_string(device).device_type == "GPU"


def _label(member: Member, value: tf.Tensor, index: int, count: int) -> str:
    """What an error text calls the reduction of a value."""
    has_name = member.can_use_device_collectives and tf.is_symbolic_tensor(value) and value.op.type != "Placeholder"
    name = value.name if has_name else ""
    if count == 1:
        return f"`all_reduce` of {name}" if name else "`all_reduce`"
    return f"`all_reduce` of value {index} of {count}" + (f", {name}" if name else "")


def _dense(member: Member, op: ReduceOp, tensors: Sequence[tf.Tensor], options: CollectiveOptions,
           labels: Sequence[str]) -> list[tf.Tensor]:
    """Reduces dense tensors bucket by bucket, with the gradient: that of everybody's sum is everybody's sum."""
    if not tensors:
        return []
    algorithm = choose_algorithm(options.implementation, member)
    bucket_bytes = 0 if algorithm == "naive" else options.bucket_bytes

    def reduce(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        results: list[tf.Tensor | None] = [None] * len(tensors)
        for bucket in plan_buckets([(tensor.shape, tensor.dtype) for tensor in tensors], bucket_bytes):
            part = [tensors[index] for index in bucket.indices]
            own = algorithm if algorithm == "naive" or can_reduce(op, bucket.dtype) else "local"
            what = Exchange("all-reduce", op.name, bucket.dtype.name, own, bucket.num_bytes, _names(part))
            told = [labels[index] for index in bucket.indices]
            for index, reduced in zip(bucket.indices, ALGORITHMS[own](member, op, part, what, told)):
                reduced.set_shape(tensors[index].shape)
                results[index] = reduced
        return results

    floats = [tensor.dtype.is_floating or tensor.dtype.is_complex for tensor in tensors]
    if not any(floats):
        return reduce(tensors)

    def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
        if op not in (ReduceOp.SUM, ReduceOp.MEAN):
            raise LookupError(f"`all_reduce`: no gradient is defined for {op.name}. Use SUM or MEAN, or stop the "
                              "gradient with `tf.stop_gradient`.")
        return _dense(member, op, upstream, options, [f"gradient of {label}" for label in labels])

    results = _tf.with_gradient(reduce, gradient, tensors)
    if not tf.executing_eagerly():
        _tf.mark_shared(results)  # The op that carries the gradient has the operands among its inputs.
    return results


def _names(tensors: Sequence[tf.Tensor]) -> tuple[str, ...]:
    if tf.executing_eagerly():
        return tuple(f"shape {tuple(tensor.shape)}" for tensor in tensors)
    return tuple(tensor.name for tensor in tensors)


def _local(member: Member, op: ReduceOp, tensors: Sequence[tf.Tensor], what: Exchange, labels: Sequence[str]
           ) -> list[tf.Tensor]:
    """The bucket's tensors meet as they are: no packing, since they pass by reference."""
    def unequal_shapes(parts: Parts) -> tf.Tensor:
        return tf.strings.join([shape_difference(column, label, ONE_SHAPE)
                                for label, column in zip(labels, zip(*parts, strict=True))])

    # Static shapes of a body are those of all replicas; replicas that run one by one have shapes of their own.
    are_equal = member.can_use_device_collectives and all(tensor.shape.is_fully_defined() for tensor in tensors)
    return member.reduce(op, tensors, what, verdict=None if are_equal else unequal_shapes)


def _ring(member: Member, op: ReduceOp, tensors: Sequence[tf.Tensor], what: Exchange, labels: Sequence[str]
          ) -> list[tf.Tensor]:
    """The bucket's tensors, flattened into one, in TensorFlow's collective op."""
    return taken_apart(device_all_reduce(member, op, flattened(tensors), what, labels[0]), tensors)


ALGORITHMS = {"local": _local, "naive": _local, "ring": _ring, "nccl": _ring}


def _sparse(member: Member, op: ReduceOp, value: tf.IndexedSlices, options: CollectiveOptions) -> tf.IndexedSlices:
    """Sparse rows are gathered: bytes follow the rows that were touched, on every algorithm."""
    what = Exchange("all-reduce", op.name, value.dtype.name, "local", num_bytes(value.values.shape, value.dtype),
                    _names([value.values]))

    def join(parts: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        joined = combine_slices(op, [tf.IndexedSlices(values, indices) for values, indices in parts], "all_reduce")
        return [joined.values, joined.indices]

    def gather(operands: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return member.exchange(operands, join, what, [op.result_dtype(value.dtype), value.indices.dtype])

    def gradient(upstream: tf.Tensor, unused_indices: Any) -> list[tf.Tensor | None]:
        own = own_part(member, upstream, value.values, 0, options)
        return [mean_of_total(own, member.size) if op is ReduceOp.MEAN else own, None]

    if value.dtype.is_floating or value.dtype.is_complex:
        values, indices = _tf.with_gradient(gather, gradient, [value.values, value.indices])
        if not tf.executing_eagerly():
            _tf.mark_shared([values, indices])
    else:
        values, indices = gather([value.values, value.indices])
    values.set_shape([None, *value.values.shape[1:]] if value.values.shape.rank is not None else None)
    indices.set_shape([None])
    return tf.IndexedSlices(values, indices, value.dense_shape)
