"""The reduce ops and what each means for a list of components."""

from __future__ import annotations

import enum
from typing import Sequence

import tensorflow as tf


class ReduceOp(enum.Enum):
    """How values of several replicas become one.

    Everywhere a `ReduceOp` is taken, its name in any case ("sum") and `tf.distribute.ReduceOp` are taken too.

    >>> lockstep.ReduceOp.of("sum") is lockstep.ReduceOp.of(tf.distribute.ReduceOp.SUM)
    True
    """

    SUM = "SUM"
    MEAN = "MEAN"
    MIN = "MIN"
    MAX = "MAX"
    PROD = "PROD"

    @classmethod
    def of(cls, value: "ReduceOp | tf.distribute.ReduceOp | str") -> "ReduceOp":
        """Returns the reduce op that `value` names.

        Raises:
            ValueError: `value` names no reduce op.
        """
        if isinstance(value, cls):
            return value
        name = value if isinstance(value, str) else getattr(value, "name", None)
        if isinstance(name, str) and name.upper() in cls.__members__:
            return cls[name.upper()]
        raise ValueError(f"`reduce_op`: got {value!r}. Expected one of {', '.join(cls.__members__)}.")

    def check_dtype(self, dtype: tf.DType, where: str) -> None:
        """Raises TypeError where the op means nothing for `dtype`: `bool` has MIN and MAX (and, or), strings none."""
        if dtype == tf.bool and self in (ReduceOp.MIN, ReduceOp.MAX):
            return
        if dtype.is_complex and self in (ReduceOp.MIN, ReduceOp.MAX):
            raise TypeError(f"{where}: {self.name} of {dtype.name}. Complex numbers have no order. Use SUM or MEAN.")
        if not (dtype.is_floating or dtype.is_integer or dtype.is_complex):
            hint = "Use MIN (and) or MAX (or), or cast to a number." if dtype == tf.bool else "Cast to a number first."
            raise TypeError(f"{where}: {self.name} of {dtype.name}. {self.name} needs numbers. {hint}")

    def result_dtype(self, dtype: tf.DType) -> tf.DType:
        """The dtype of the result: that of the operands; float64 for the MEAN of integers, as in tf.distribute."""
        return tf.float64 if self is ReduceOp.MEAN and dtype.is_integer else dtype

    def check_sparse(self, where: str) -> None:
        """Raises TypeError where the op cannot be told from sparse rows alone: all but SUM and MEAN."""
        if self not in (ReduceOp.SUM, ReduceOp.MEAN):
            raise TypeError(f"{where}: {self.name} of tf.IndexedSlices. Only SUM and MEAN are defined for sparse rows. "
                            "Use `tf.convert_to_tensor` first.")


def combine(op: ReduceOp, parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Reduces equally shaped tensors, adding in the order of `parts` so that the result is the same on every run."""
    if parts[0].dtype == tf.bool:
        stacked = tf.stack(list(parts))
        return tf.reduce_all(stacked, 0) if op is ReduceOp.MIN else tf.reduce_any(stacked, 0)
    if op in (ReduceOp.SUM, ReduceOp.MEAN):
        # The MEAN of integers adds in its own dtype: the sum of three times 200 is no uint8.
        parts = [tf.cast(part, op.result_dtype(part.dtype)) for part in parts]
        total = tf.add_n(parts) if len(parts) > 1 else parts[0]
        return mean_of_total(total, len(parts)) if op is ReduceOp.MEAN else total
    pairwise = {ReduceOp.MIN: tf.minimum, ReduceOp.MAX: tf.maximum, ReduceOp.PROD: tf.multiply}[op]
    result = parts[0]
    for part in parts[1:]:
        result = pairwise(result, part)
    return result


def mean_of_total(total: tf.Tensor, count: int | tf.Tensor) -> tf.Tensor:
    """`total / count` in the dtype of `ReduceOp.result_dtype`."""
    total = tf.cast(total, ReduceOp.MEAN.result_dtype(total.dtype))
    if isinstance(count, int):
        # Grappler makes the division by a constant a multiplication with 1 / count: 49 / 7 would not be 7. It leaves
        # this division alone.
        return tf.math.divide_no_nan(total, tf.constant(count, total.dtype))
    return total / tf.cast(count, total.dtype)


def combine_slices(op: ReduceOp, parts: Sequence[tf.IndexedSlices], where: str) -> tf.IndexedSlices:
    """Joins sparse gradients: rows are kept side by side (duplicates add up when applied); row counts may differ.

    Raises:
        TypeError: The op is neither SUM nor MEAN, the only ones that can be told from the rows alone.
    """
    op.check_sparse(where)
    values = tf.concat([part.values for part in parts], 0)
    if op is ReduceOp.MEAN:
        values = mean_of_total(values, len(parts))
    return tf.IndexedSlices(values, tf.concat([part.indices for part in parts], 0), parts[0].dense_shape)
