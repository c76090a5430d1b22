"""Reducing and gathering per-replica values outside of the replicas: `Strategy.reduce` and `Strategy.gather`.

Here all components are at hand, so this is plain arithmetic on them, in the order of the replicas.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import tensorflow as tf

from ..collective import Member, ReduceOp, WorkerGroup, agree
from ..collective.all_gather import all_components, but_axis, checked_axis, same_bits
from ..collective.options import is_integer
from ..collective.reduce_op import combine, combine_slices, mean_of_total
from . import over_workers
from .arguments import check_num_components
from .invariance import is_equal_on_all_replicas
from .replica_scope import ReplicaScope
from .values import Mirrored, PerReplica, components

_BY_AXIS = {
    ReduceOp.SUM: tf.reduce_sum,
    ReduceOp.MEAN: tf.reduce_sum,
    ReduceOp.MIN: tf.reduce_min,
    ReduceOp.MAX: tf.reduce_max,
    ReduceOp.PROD: tf.reduce_prod,
}


def combine_components(op: ReduceOp, value: Any, size: int, where: str, workers: WorkerGroup | None = None) -> Any:
    """Reduces a value elementwise over its components, see `combine_all`."""
    return combine_all(op, [value], size, where, workers)[0]


def combine_all(op: ReduceOp, values: Sequence[Any], size: int, where: str, workers: WorkerGroup | None = None
                ) -> list[Any]:
    """Reduces each value elementwise over its components; between workers all dense ones of a dtype travel together.

    Args:
        op: How to reduce.
        values: Per-replica values, or single ones, each of which stands for equal ones on this process's replicas.
        size: Number of replicas in this process.
        where: The caller, for error texts.
        workers: The workers, each of which brings the components of its own replicas; None if there is one.

    Raises:
        ValueError: SUM or PROD of a single value while there are several replicas, None, unequal shapes, or another
            number of components than there are replicas.
        TypeError: The components' dtypes differ, or the op means nothing for the dtype.
    """
    results: list[Any] = [None] * len(values)
    together: dict[tf.DType, dict[int, list[tf.Tensor]]] = {}
    for index, value in enumerate(values):
        parts = _parts(op, value, size, where, workers)
        if isinstance(parts[0], tf.IndexedSlices):
            results[index] = _combined_slices(op, parts, where, workers)
            continue
        tensors = [_dense(part, where) for part in parts]
        dtype = tensors[0].dtype
        op.check_dtype(dtype, f"`{where}`")
        _check_dtypes(tensors, where)
        _check_shapes(tensors, where, "with `axis=None`")
        if workers is not None and not isinstance(value, Mirrored):
            together.setdefault(dtype, {})[index] = tensors
        elif len(tensors) == 1:
            results[index] = tf.cast(tensors[0], op.result_dtype(dtype)) if dtype.is_integer else tensors[0]
        else:
            results[index] = combine(op, tensors)
    for own in together.values():
        assert workers is not None
        by_replica = list(zip(*own.values(), strict=True))
        for index, reduced in zip(own, over_workers.reduced_parts(workers, op, by_replica, where), strict=True):
            results[index] = reduced
    return results


def _combined_slices(op: ReduceOp, parts: Sequence[Any], where: str, workers: WorkerGroup | None) -> tf.IndexedSlices:
    if workers is None:
        return combine_slices(op, parts, f"`{where}`")
    op.check_sparse(f"`{where}`")
    local = combine_slices(ReduceOp.SUM, parts, f"`{where}`")
    joined = over_workers.joined_slices(workers, local, where)
    if op is ReduceOp.SUM:
        return joined
    return tf.IndexedSlices(mean_of_total(joined.values, workers.num_replicas), joined.indices, joined.dense_shape)


def combine_along(op: ReduceOp, value: Any, axis: int | Sequence[int], size: int, where: str,
                  workers: WorkerGroup | None = None) -> Any:
    """Reduces a value over its components and along `axis`; MEAN divides by what all components really have."""
    parts = [_dense(part, where) for part in _parts(op, value, size, where, workers)]
    op.check_dtype(parts[0].dtype, f"`{where}`")
    _check_dtypes(parts, where)
    axes = [checked_reduction_axis(parts[0], one, where) for one in _axes(axis, where)]
    if len(set(axes)) < len(axes):
        raise ValueError(f"`{where}`: `axis` is {axis!r}, which names an axis twice. Name each axis once.")
    reduced = [_BY_AXIS[op](part, axis=axes) for part in parts]
    _check_shapes(reduced, where, f"after reducing along {axis}")
    total = over_workers.reduced(workers, op, combine(ReduceOp.SUM if op is ReduceOp.MEAN else op, reduced), where)
    if op is not ReduceOp.MEAN:
        return total
    counts = [tf.reduce_prod(tf.gather(tf.shape(part, tf.int64), axes)) for part in parts]
    return mean_of_total(total, over_workers.reduced(workers, ReduceOp.SUM, tf.add_n(counts), f"{where}: rows"))


def gather_components(value: Any, axis: int, size: int, workers: WorkerGroup | None = None) -> tf.Tensor:
    """Concatenates the components along `axis`, in the order of the replicas; one value is returned as it is.

    Raises:
        ValueError: A scalar, None, no such axis, components that differ elsewhere than along `axis`, or another number
            of components than there are replicas.
        TypeError: The components' dtypes differ.
        NotImplementedError: IndexedSlices.
    """
    parts = [_dense(part, "gather") for part in _components_of(value, size, "gather")]
    axis = checked_axis(parts[0], axis, "gather")
    _check_dtypes(parts, "gather")
    for replica, part in enumerate(parts[1:], start=1):
        if not but_axis(part.shape, axis).is_compatible_with(but_axis(parts[0].shape, axis)):
            raise ValueError(f"`gather`: replica {replica} has shape {part.shape}, replica 0 has {parts[0].shape}. "
                             f"Only the sizes along axis {axis} may differ.")
    if workers is not None:
        own = [[part] for part in _expanded(parts, size)]
        parts = [part for part, in over_workers.all_parts(workers, own, "`gather`")]
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis)


def gather_local_results(member: Member, value: Any) -> tuple[Any, ...]:
    """Every replica's `value`, a nest, where each replica has its own at hand: in `merge_call`.

    Synchronisation: every replica calls.
    """
    flat = tf.nest.flatten(value, expand_composites=True)
    numbers = [index for index, leaf in enumerate(flat) if tf.is_tensor(leaf)]
    results = []
    for own in all_components(member, [tf.convert_to_tensor(flat[index]) for index in numbers]):
        leaves = list(flat)
        for index, tensor in zip(numbers, own, strict=True):
            leaves[index] = tensor
        results.append(tf.nest.pack_sequence_as(value, leaves, expand_composites=True))
    return tuple(results)


def equal_arguments(variable: Any, scope: ReplicaScope | None, call: str, arguments: Any) -> Any:
    """The arguments of an update of `variable`, after making sure that they are equal for all copies.

    Arguments that are equal by construction cost nothing, others are compared. Copies that need not be equal, as those
    of ON_READ variables and of Keras's gradient accumulators, take anything.

    Synchronisation: in a replica every replica must call, except where the arguments are equal by construction.

    Raises:
        ValueError: Components are seen to differ, or an argument is an ON_READ variable.
        tf.errors.InvalidArgumentError: The same, found when the step runs.
    """
    if variable.synchronization is tf.VariableSynchronization.ON_READ or variable._is_sum:
        return arguments
    where = f"Variable {variable.name!r}: {call} got a per-replica value"
    advice = "All copies are updated alike: reduce the value first, with `reduce_to` or `all_reduce`."

    for leaf in tf.nest.flatten(arguments):
        if isinstance(leaf, tf.Variable) and leaf.synchronization is tf.VariableSynchronization.ON_READ \
                and isinstance(leaf, tf.distribute.DistributedValues):
            raise ValueError(f"Variable {variable.name!r}: {call} got the variable {leaf.name!r}, of which each "
                             "replica has its own value (synchronization ON_READ). Pass its value outside of the "
                             "replicas, `read_value()`.")

    def in_replica(leaf: Any) -> Any:
        assert scope is not None
        if not isinstance(leaf, tf.Tensor) or scope.is_traced_once and is_equal_on_all_replicas(leaf):
            return leaf
        return agree(scope.member, leaf, where, advice)

    def from_outside(leaf: Any) -> Any:
        if not isinstance(leaf, PerReplica) or isinstance(leaf, Mirrored):
            return leaf
        parts = [tf.nest.flatten(part, expand_composites=True) for part in leaf.values]
        pairs = [pair for part in parts[1:] for pair in zip(parts[0], part)]
        same = [same_bits(*pair) for pair in pairs if tf.is_tensor(pair[0])]
        if tf.executing_eagerly() and not all(same) \
                or not all(one is other or np.array_equal(one, other) for one, other in pairs if not tf.is_tensor(one)):
            raise ValueError(f"{where} whose components differ: {leaf}. {advice}")
        with tf.control_dependencies([tf.debugging.Assert(one, [f"{where} whose components differ. {advice}"])
                                      for one in same if not tf.executing_eagerly()]):
            return tf.nest.map_structure(lambda part: tf.identity(part) if tf.is_tensor(part) else part, leaf,
                                         expand_composites=True)

    if scope is None:
        return tf.nest.map_structure(from_outside, arguments)
    return tf.nest.map_structure(in_replica, arguments, expand_composites=True)


def sum_of_gradients(gradients: Sequence[Any]) -> Any:
    """The sum over the replicas of a gradient that each has; None where there is none, lookups' stay sparse."""
    parts = [gradient for gradient in gradients if gradient is not None]
    if not parts:
        return None
    if all(isinstance(part, tf.IndexedSlices) for part in parts):
        return combine_slices(ReduceOp.SUM, parts, "`strategy.run`")
    return tf.add_n([tf.convert_to_tensor(part) for part in parts])


def _parts(op: ReduceOp, value: Any, size: int, where: str, workers: WorkerGroup | None = None) -> Sequence[Any]:
    is_per_replica = isinstance(value, tf.distribute.DistributedValues)
    parts = _components_of(value, size, where)
    if len(parts) < size and op in (ReduceOp.SUM, ReduceOp.PROD):
        if op is ReduceOp.SUM and isinstance(value, (int, float)) and value == 0:
            return parts
        raise ValueError(
            f"`{where}`: {op.name} of the single value {value!r} over {size} replicas. It could mean the value itself "
            "or once per replica. Pass a per-replica value (what `strategy.run` returns), or use MEAN.")
    # Equal components: their mean, minimum and maximum is any of them.
    if isinstance(value, Mirrored) and is_per_replica and op in (ReduceOp.MEAN, ReduceOp.MIN, ReduceOp.MAX):
        return parts[:1]
    return parts if workers is None else _expanded(parts, size)


def _expanded(parts: Sequence[Any], size: int) -> Sequence[Any]:
    """One component for each replica of this process: one value is that of all."""
    return list(parts) * size if len(parts) < size else parts


def _components_of(value: Any, size: int, where: str) -> Sequence[Any]:
    check_num_components(value, size, f"`{where}`: the value")
    parts = components(value) if isinstance(value, tf.distribute.DistributedValues) else (value,)
    for replica, part in enumerate(parts):
        if part is None:
            whose = f"replica {replica}'s value" if len(parts) > 1 else "the value"
            raise ValueError(f"`{where}`: {whose} is None. A step that returns nothing returns None. Return a tensor "
                             "from it, or leave the value out.")
    return parts


def _dense(part: Any, where: str) -> tf.Tensor:
    if isinstance(part, tf.IndexedSlices):
        raise NotImplementedError(f"`{where}`: tf.IndexedSlices have no single axis here. Use `tf.convert_to_tensor`.")
    if isinstance(part, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(f"`{where}`: got a {type(part).__name__}. Turn it into a dense tensor in the step first.")
    return tf.convert_to_tensor(part)


def _axes(axis: Any, where: str) -> list[int]:
    axes = list(axis) if isinstance(axis, (list, tuple)) else [axis]
    if not axes or not all(map(is_integer, axes)):
        raise TypeError(f"`{where}`: `axis` is {axis!r}. Expected None, an integer, or a list or tuple of integers.")
    return [int(one) for one in axes]


def checked_reduction_axis(tensor: tf.Tensor, axis: int, where: str) -> int:
    """The non-negative form of `axis`, after checking that `tensor` has it."""
    rank = tensor.shape.rank
    if rank is None:
        return axis
    if not -rank <= axis < rank:
        raise ValueError(f"`{where}`: `axis` is {axis} for a value of shape {tensor.shape}. "
                         + (f"Expected {-rank} to {rank - 1}." if rank else "A scalar has no axis: use `axis=None`."))
    return axis % rank


def _check_dtypes(tensors: Sequence[tf.Tensor], where: str) -> None:
    for replica, tensor in enumerate(tensors[1:], start=1):
        if tensor.dtype != tensors[0].dtype:
            raise TypeError(f"`{where}`: replica {replica} has dtype {tensor.dtype.name}, replica 0 has "
                            f"{tensors[0].dtype.name}. All must have one dtype: use `tf.cast` in the step.")


def _check_shapes(tensors: Sequence[tf.Tensor], where: str, when: str) -> None:
    for replica, tensor in enumerate(tensors[1:], start=1):
        if not tensor.shape.is_compatible_with(tensors[0].shape):
            raise ValueError(f"`{where}`: {when} replica {replica} has shape {tensor.shape}, replica 0 has "
                             f"{tensors[0].shape}. Components are combined element by element and need one shape. "
                             "Pass the axis, or axes, along which sizes differ, such as `axis=0` for rows.")
