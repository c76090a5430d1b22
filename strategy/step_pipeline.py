"""From a user's dataset to a dataset of steps: the pipelines behind `DistributedDataset`.

A step is a flat tuple of tensors: the components of an element whose leaves are `PerReplica` values, leaf by leaf,
replica by replica. `pack` makes the element of it again.

    steps, element_spec = split_steps(tf.data.Dataset.range(8).batch(4), num_replicas=2, buffer_size=1)
    for step in steps:
        pack(element_spec, step)  # PerReplica of rows [0, 1] and [2, 3], then of [4, 5] and [6, 7]

Both pipelines come after everything of the user's. They prefetch before they split, and their last stage keeps
nothing back: an iterator's state then does not depend on the number of replicas, so that a checkpoint that was
written on four can be restored on two. That is what `scan` with an unused state is for; TensorFlow would turn `map`
into a parallel map with a buffer of its own, and add another prefetch behind it.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import tensorflow as tf

from . import worker_runtime
from .split_batch import is_none, relaxed_rows, split_batch, without_rows
from .values import PerReplica, PerReplicaSpec, rows_vary


def split_steps(dataset: tf.data.Dataset, num_replicas: int, buffer_size: int,
                own: slice = slice(None)) -> tuple[tf.data.Dataset, Any]:
    """Steps from global batches: each element of `dataset` is split over the replicas, see `split_batch`.

    Args:
        dataset: The global batches.
        num_replicas: Among how many replicas they are split.
        buffer_size: How many batches are prepared ahead.
        own: The replicas whose parts the steps hold.

    Returns:
        The dataset of steps, and the spec of the elements that `pack` makes.
    """
    spec = None

    def split(batch: Any) -> Any:
        nonlocal spec
        element = joined_parts(split_batch(batch, num_replicas)[own])
        spec = tf.nest.map_structure(tf.type_spec_from_value, element)
        return element

    steps = _scan_flat(_prefetched(dataset, buffer_size), split)
    return steps, spec


def grouped_steps(dataset: tf.data.Dataset, num_replicas: int, buffer_size: int) -> tuple[tf.data.Dataset, Any]:
    """Steps from per-replica batches: `num_replicas` consecutive elements of `dataset` make one step.

    Where the dataset may end in the middle of a step, the replicas without an element get one of zero rows, and the
    number of rows is unknown in the spec.

    Returns:
        The dataset of steps, and the spec of the elements that `pack` makes.
    """
    spec = dataset.element_spec
    if num_replicas == 1:
        return _scan_flat(_prefetched(dataset, buffer_size), lambda element: element), spec
    components = tf.nest.flatten(spec, expand_composites=True)
    cardinality = int(dataset.cardinality())
    complete = cardinality == tf.data.INFINITE_CARDINALITY or (cardinality >= 0 and cardinality % num_replicas == 0)

    def wrap(element: Any) -> Any:
        return tf.raw_ops.OptionalFromValue(components=flat_components(element))

    def unwrap(wrapped: tf.Tensor) -> Any:
        def part(replica: int) -> list[tf.Tensor]:
            return tf.raw_ops.OptionalGetValue(
                optional=wrapped[replica],
                output_types=[component.dtype for component in components],
                output_shapes=[component.shape for component in components])

        first = part(0)
        parts = [first]
        for replica in range(1, num_replicas):
            if complete:
                parts.append(part(replica))
            else:
                parts.append(tf.cond(
                    replica < tf.size(wrapped),
                    lambda replica=replica: part(replica),
                    lambda: flat_components(without_rows(pack(spec, first)))))
        part_spec = spec if complete else relaxed_rows(spec)
        return joined_parts([pack(part_spec, flat) for flat in parts])

    # Optionals, since batches of unequal size cannot be batched themselves.
    wrapped = _scan(dataset, wrap).batch(num_replicas)
    steps = _prefetched(_scan_flat(wrapped, lambda element: unwrap(element[0])), buffer_size)
    part_spec = spec if complete else relaxed_rows(spec)
    element_spec = tf.nest.map_structure(
        lambda leaf: leaf if is_none(leaf) else PerReplicaSpec(*[leaf] * num_replicas), part_spec)
    return steps, element_spec


def empty_step(element_spec: Any) -> tuple[tf.Tensor, ...]:
    """A step of zero rows. Dimensions after the first that are not known have size 1."""
    leaves = [None if is_none(spec) else PerReplica([_no_rows(part) for part in spec.value_specs])
              if isinstance(spec, PerReplicaSpec) else _no_rows(spec) for spec in tf.nest.flatten(element_spec)]
    return tuple(flat_components(leaves))


def _no_rows(spec: Any) -> Any:
    dims = [] if spec.shape.rank in (None, 0) else [0, *(1 if dim is None else dim for dim in spec.shape[1:])]
    if isinstance(spec, tf.RaggedTensorSpec):
        values = tf.zeros([0, *dims[spec.ragged_rank + 1:]], spec.dtype)
        splits = [tf.zeros([1], spec.row_splits_dtype)] * spec.ragged_rank
        return tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(tf.zeros([0, len(dims)], tf.int64), tf.zeros([0], spec.dtype), dims)
    return tf.zeros(dims, spec.dtype)


def relaxed_parts(element_spec: Any) -> Any:
    """`element_spec` with the numbers of rows unknown."""
    return tf.nest.map_structure(
        lambda spec: PerReplicaSpec(*map(relaxed_rows, spec.value_specs)) if isinstance(spec, PerReplicaSpec)
        else relaxed_rows(spec), element_spec)


def flat_components(element: Any) -> list[tf.Tensor]:
    """The tensors that an element consists of, composite tensors and per-replica values taken apart."""
    return [tensor for tensor in tf.nest.flatten(element, expand_composites=True) if tensor is not None]


def pack(element_spec: Any, flat: Sequence[tf.Tensor]) -> Any:
    """The element of `element_spec` that consists of the tensors `flat`.

    On several workers, parts whose number of rows the spec does not know are marked, see `rows_vary`.
    """
    element = tf.nest.pack_sequence_as(element_spec, flat, expand_composites=True)
    if worker_runtime.current() is not None and tf.executing_eagerly():
        for leaf, spec in zip(tf.nest.flatten(element), tf.nest.flatten(element_spec), strict=True):
            parts = zip(leaf.values, spec.value_specs) if isinstance(leaf, PerReplica) else [(leaf, spec)]
            for part, part_spec in parts:
                if part is not None and part_spec.shape.rank and part_spec.shape[0] is None:
                    rows_vary(part)
    return element


def joined_parts(parts: Sequence[Any]) -> Any:
    """Joins one element for each replica into an element of per-replica values; one part stays as it is."""
    if len(parts) == 1:
        return parts[0]
    return tf.nest.map_structure(lambda *leaves: None if leaves[0] is None else PerReplica(leaves), *parts)


def _prefetched(dataset: tf.data.Dataset, buffer_size: int) -> tf.data.Dataset:
    return dataset.prefetch(buffer_size) if buffer_size else dataset


def _scan_flat(dataset: tf.data.Dataset, fn: Callable[[Any], Any]) -> tf.data.Dataset:
    """Like `_scan`, the results as flat tuples of tensors."""
    return _scan(dataset, lambda element: tuple(flat_components(fn(element))))


def _scan(dataset: tf.data.Dataset, fn: Callable[[Any], Any]) -> tf.data.Dataset:
    """`dataset.map(fn)` that holds no element back, see the module."""

    def stage(unused: tf.Tensor, element: Any) -> tuple[tf.Tensor, Any]:
        result = fn(element)
        return unused, result if isinstance(result, tuple) else (result,)

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.scan(tf.constant(0), stage).with_options(options)
