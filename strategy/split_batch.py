"""How a global batch becomes one part for each replica: pure functions of tensors.

`DistributedDataset` runs them in the last stage of its pipeline, after every transformation of the user's.

    split_batch({"x": tf.range(7)}, 4)  # {"x": [0, 1]}  {"x": [2, 3]}  {"x": [4, 5]}  {"x": [6]}

The rule: B rows over n replicas give parts whose sizes differ by at most one, larger parts first, rows in order.
With B = q·n + e (0 <= e < n), replica r starts at row r·q + min(r, e) and gets q + 1 rows if r < e, else q. Fewer
rows than replicas leave the last replicas with parts of zero rows.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_BATCH_IT = "Batch the dataset with `.batch(global_batch_size)` before distributing it."
_NONE_SPEC = type(tf.type_spec_from_value(None))
_LEAF_SPECS = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)


def split_batch(batch: Any, num_replicas: int) -> tuple[Any, ...]:
    """Splits a global batch into one part for each replica.

    Where the number of rows is static and a multiple of `num_replicas`, so is the number of rows of the parts. Where
    it is static and no multiple, the parts' rows are unknown to tracing, so that all parts have one spec.

    Synchronisation: none, it reads local tensors only.

    Args:
        batch: A nest of dense, ragged or sparse tensors of any dtype, shape [B, ...] with one B for all. None stays
            None.
        num_replicas: How many parts, 1 or more.

    Returns:
        A tuple of `num_replicas` nests like `batch`; part sizes as the module says.

    Raises:
        TypeError: A leaf is no dense, ragged or sparse tensor.
        ValueError: There is no tensor, a leaf is a scalar, or leaves have different static row counts.
        tf.errors.InvalidArgumentError: The same two, where only running tells (unknown rank, unknown rows).
    """
    leaves = tf.nest.flatten(batch)
    check_batch_spec(tf.nest.map_structure(tf.type_spec_from_value, batch), "`split_batch`")
    rows = checked_rows(leaves)
    if num_replicas == 1:
        return (batch,)
    if isinstance(rows, int) and rows % num_replicas:
        # Hides the number from shape inference: else the parts would have different static shapes.
        rows = tf.compat.v1.placeholder_with_default(tf.constant(rows, tf.int64), shape=[])
    bounds = part_bounds(rows, num_replicas)
    return tuple(
        tf.nest.pack_sequence_as(batch, [slice_rows(leaf, start, limit) for leaf in leaves])
        for start, limit in bounds)


def part_bounds(rows: int | tf.Tensor, num_replicas: int) -> list[tuple[Any, Any]]:
    """First row and row after the last of each replica's part, for `rows` an int or an int64 scalar."""
    whole, extra = rows // num_replicas, rows % num_replicas
    smaller = min if isinstance(rows, int) else tf.minimum
    starts = [replica * whole + smaller(extra, replica) for replica in range(num_replicas + 1)]
    starts[0] = 0
    return list(zip(starts, starts[1:]))


def slice_rows(leaf: Any, start: Any, limit: Any) -> Any:
    """Rows `start` to `limit` (exclusive) of one dense, ragged or sparse tensor; None stays None."""
    if leaf is None:
        return None
    if not isinstance(leaf, tf.SparseTensor):
        return leaf[start:limit]
    index = leaf.indices[:, 0]
    inside = tf.logical_and(index >= tf.cast(start, tf.int64), index < tf.cast(limit, tf.int64))
    shift = tf.one_hot(0, tf.size(leaf.dense_shape), on_value=tf.cast(start, tf.int64), dtype=tf.int64)
    return tf.SparseTensor(
        indices=tf.boolean_mask(leaf.indices, inside) - shift,
        values=tf.boolean_mask(leaf.values, inside),
        dense_shape=_with_rows(leaf, limit - start))


def without_rows(element: Any) -> Any:
    """`element` with zero rows: what a replica gets for which there is no data.

    Raises:
        tf.errors.InvalidArgumentError: When it runs, and a leaf turns out to be a scalar, which has no rows to drop.
    """
    return tf.nest.map_structure(_without_rows, element)


def relaxed_rows(spec: Any) -> Any:
    """`spec`, a nest of the specs of tensors, with the number of rows unknown."""
    return tf.nest.map_structure(_relaxed, spec)


def check_batch_spec(spec: Any, where: str) -> None:
    """Checks before anything runs that elements of `spec` can be split into rows.

    Args:
        spec: A nest of `tf.TypeSpec`s, the `element_spec` of a dataset.
        where: The name of the caller, the first words of the error.

    Raises:
        TypeError: A leaf is no dense, ragged or sparse tensor.
        ValueError: There is no tensor, a leaf is a scalar, or leaves have different static row counts.
    """
    check_row_specs(spec, where)
    counts = set()
    for leaf in tf.nest.flatten(spec):
        if is_none(leaf):
            continue
        if leaf.shape.rank == 0:
            raise ValueError(
                f"{where}: an element holds a scalar, {leaf}, in {spec}. A global batch is split along its first "
                f"dimension, and a scalar has none. {_BATCH_IT}")
        if leaf.shape.rank is not None and leaf.shape[0] is not None:
            counts.add(leaf.shape[0])
    if len(counts) > 1:
        raise ValueError(
            f"{where}: the tensors of one element have {sorted(counts)} rows, in {spec}. All must have the same "
            f"number, one row for each example. {_BATCH_IT}")


def check_row_specs(spec: Any, where: str) -> None:
    """Checks that the leaves of `spec` are tensors that may have rows; arguments as for `check_batch_spec`.

    Raises:
        TypeError: A leaf is no dense, ragged or sparse tensor.
        ValueError: There is no tensor.
    """
    leaves = [leaf for leaf in tf.nest.flatten(spec) if not is_none(leaf)]
    if not leaves:
        raise ValueError(
            f"{where}: elements of {spec} hold no tensor. There must be one to split. Check the dataset.")
    for leaf in leaves:
        if not isinstance(leaf, _LEAF_SPECS):
            raise TypeError(
                f"{where}: an element holds {leaf}. Only dense, ragged and sparse tensors can be split into rows. "
                "Turn it into one of them with `.map(...)`.")


def checked_rows(leaves: list[Any]) -> int | tf.Tensor:
    """The number of rows that all leaves have: an int where tracing may know it, else an int64 scalar.

    Checks what `check_batch_spec` could not see, when it runs.
    """
    leaves = [leaf for leaf in leaves if leaf is not None]
    statics = [leaf.shape[0] if leaf.shape.rank is not None else None for leaf in leaves]
    known = next((count for count in statics if count is not None), None)
    first = known if known is not None else _num_rows(leaves[0])
    for leaf, static in list(zip(leaves, statics))[0 if known is not None else 1:]:
        if static is None:
            rows = _num_rows(leaf)
            tf.debugging.Assert(rows == first, [
                "DistributedDataset: the tensors of one element have different numbers of rows:", first, rows,
                "All must have the same number, one row for each example. " + _BATCH_IT])
    return first


def is_none(spec: tf.TypeSpec) -> bool:
    """Whether `spec` stands for None in a dataset's element."""
    return isinstance(spec, _NONE_SPEC)


def _num_rows(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows(out_type=tf.int64)
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    shape = tf.shape(leaf, out_type=tf.int64)
    if leaf.shape.rank is not None:
        return shape[0]
    check = tf.debugging.Assert(tf.rank(leaf) > 0, [
        "DistributedDataset: an element holds a scalar. A global batch is split along its first dimension, and a "
        "scalar has none. " + _BATCH_IT])
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(shape)[0]


def _without_rows(leaf: Any) -> Any:
    if not isinstance(leaf, tf.Tensor) or leaf.shape.rank not in (None, 0):
        return slice_rows(leaf, 0, 0)
    check = tf.debugging.Assert(tf.rank(leaf) > 0, [
        "DistributedDataset: the dataset ended in the middle of a step, and the replicas that are left without an "
        "element cannot get one of zero rows, because the elements hold scalars. Every replica needs an element in "
        "every step. Batch the dataset in `dataset_fn`, or let its length be a multiple of the number of replicas."])
    with tf.control_dependencies([check] if check is not None else []):
        leaf = tf.identity(leaf)
    return leaf if leaf.shape.rank == 0 else leaf[:0]


def _with_rows(leaf: tf.SparseTensor, rows: Any) -> tf.Tensor:
    """The dense shape of `leaf` with another number of rows; dimensions that were static stay so."""
    if leaf.shape.rank is None:
        return tf.concat([[tf.cast(rows, tf.int64)], leaf.dense_shape[1:]], axis=0)
    dims = [leaf.dense_shape[axis] if dim is None else dim for axis, dim in enumerate(leaf.shape)]
    return tf.stack([tf.cast(dim, tf.int64) for dim in [rows, *dims[1:]]])


def _relaxed(spec: Any) -> Any:
    if is_none(spec) or spec.shape.rank in (None, 0):
        return spec
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(
            shape=shape, dtype=spec.dtype, ragged_rank=spec.ragged_rank, row_splits_dtype=spec.row_splits_dtype)
    return type(spec)(shape=shape, dtype=spec.dtype)
