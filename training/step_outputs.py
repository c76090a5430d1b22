"""What a step returns: summed over the replicas, added up over the steps, averaged at the end.

The driver's loop (`loop.py`) calls `on_replica` with what the user's step returned, and `totals`
with the sum over the sync group; `averages` turns the totals of many steps into the reported
numbers.

The laws, for a step that sees `n` rows in all replicas together:

    output     on replica r           of the step               of many steps
    scalar     a share s_r            v = sum of s_r            sum of n·v / sum of n
    vector     one value per row      sum of all values, / n    sum of all values / sum of n
    rows       leading dimension      n                         sum of n

So per-row losses [1, 2, 3, 4] and then [10] give 4.0 as scalar shares and as vectors. All sums run in
float64, in the order of the steps. No rows at all give 0.

    outputs = StepOutputs("train_step")
    per_replica = strategy.run(lambda batch: outputs.on_replica(step(batch), batch), args=(batch,))
    totals += outputs.totals(strategy.reduce("SUM", per_replica, axis=None))
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

_NUMBERS = "a real number: floating, integer or bool"


class StepOutputs:
    """The outputs of one step function: their names, found in the first trace, and their sums."""

    def __init__(self, step_name: str) -> None:
        """Starts without names.

        Args:
          step_name: What error messages call the step, "train_step" or "eval_step".
        """
        self._step_name = step_name
        # Key -> whether it is a vector, in the order of the step's dict.
        self._kinds: dict[str, bool] | None = None

    def on_replica(self, outputs: Any, batch: Any) -> dict[str, Any]:
        """Makes a replica's outputs summable; called in replica context.

        Args:
          outputs: What the step returned: a dict of scalars and vectors.
          batch: What the step was given, for its number of rows.

        Returns:
          A nest of float64 tensors, whose sum over the replicas `totals` takes: "rows", a scalar,
          and "outputs", a dict with the scalar for a scalar and [sum, count] for a vector.

        Raises:
          TypeError: `outputs` is no dict, a key is no string or a value is no number.
          ValueError: A value is neither scalar nor vector, or the batch has no rows.
        """
        if not isinstance(outputs, Mapping):
            raise TypeError(
                f"`{self._step_name}`: returned {type(outputs).__name__} ({outputs!r}). Expected a dict of "
                "scalars and vectors. Return `{\"loss\": loss}`, or `{}` when there is nothing to report."
            )
        summable = {}
        for key, value in outputs.items():
            number = self._number(key, value)
            if number.shape.rank == 1:
                count = tf.size(number, out_type=tf.int64)
                number = tf.stack([tf.reduce_sum(number), tf.cast(count, tf.float64)])
            summable[key] = number
        return {"rows": tf.cast(num_rows(batch, self._step_name), tf.float64), "outputs": summable}

    def totals(self, summed: Mapping[str, Any]) -> tf.Tensor:
        """What one step adds to the totals: a float64 vector, of one length in all steps.

        Args:
          summed: The sum over the replicas of what `on_replica` returned.

        Returns:
          The rows n, then for each key n·v and n of a scalar, the sum and the count of a vector.

        Raises:
          ValueError: An earlier trace, or step, returned other keys or other kinds.
        """
        rows, outputs = summed["rows"], summed["outputs"]
        self._remember({key: output.shape.rank == 1 for key, output in outputs.items()})
        parts = [tf.reshape(rows, [1])]
        for key in self._kinds or ():
            output = outputs[key]
            parts.append(output if output.shape.rank == 1 else tf.stack([rows * output, rows]))
        return tf.concat(parts, axis=0)

    def averages(self, totals: Sequence[float]) -> dict[str, float]:
        """The averages over all steps that were added up.

        Args:
          totals: A sum of what `totals` returned, with one step at least.

        Returns:
          A float for each output, in the order of the step's dict.

        Raises:
          ValueError: A vector has not one value for each row.
        """
        rows, *rest = [float(number) for number in totals]
        averages = {}
        for key, total, count in zip(self._kinds or (), rest[::2], rest[1::2]):
            if count != rows:
                raise ValueError(
                    f"`{self._step_name}`: the vector {key!r} has {count:.0f} values, the batches have {rows:.0f} "
                    "rows. Expected one value for each row. Return a scalar share, as `average_loss` makes it, "
                    "for anything else."
                )
            averages[key] = total / rows if rows else 0.0
        return averages

    def _number(self, key: Any, value: Any) -> tf.Tensor:
        """A step's output as a float64 scalar or vector."""
        where = f"`{self._step_name}`: the output {key!r}"
        if not isinstance(key, str):
            raise TypeError(f"{where} has a key of type {type(key).__name__}. Expected strings as keys. Rename it.")
        try:
            tensor = tf.convert_to_tensor(value)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{where} is {value!r}, a {type(value).__name__}. Expected a scalar or a vector, {_NUMBERS}. "
                "Convert it, or leave it out."
            ) from error
        if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
            raise TypeError(
                f"{where} is of {tensor.dtype.name}. Expected {_NUMBERS}. Convert it, or leave it out."
            )
        if tensor.shape.rank not in (0, 1):
            raise ValueError(
                f"{where} has shape {tensor.shape}. Expected a scalar, this replica's share, or a vector with one "
                "value for each row. Reduce it over the other dimensions; `tf.ensure_shape` fixes an unknown rank."
            )
        return tf.cast(tensor, tf.float64)

    def _remember(self, kinds: dict[str, bool]) -> None:
        """Keeps the keys and kinds of the first step, and refuses others afterwards."""
        if self._kinds is None:
            self._kinds = kinds
        elif self._kinds != kinds:
            raise ValueError(
                f"`{self._step_name}`: returned {_listed(kinds)} after {_listed(self._kinds)}. Expected the same "
                "keys, each scalar or vector as before, in every step. Return all keys always, 0 where one has "
                "no value."
            )


def num_rows(batch: Any, step_name: str) -> tf.Tensor:
    """The number of rows in a replica's part of a batch, a scalar integer tensor.

    Rows are the leading dimension of the first part of the batch that has one. Ragged and sparse
    tensors count as dense ones do.

    Args:
      batch: A nest of tensors.
      step_name: What the error message calls the step.

    Raises:
      ValueError: No part of the batch has a leading dimension.
    """
    for part in tf.nest.flatten(batch):
        if isinstance(part, tf.RaggedTensor):
            return part.nrows(out_type=tf.int64)
        if isinstance(part, tf.SparseTensor):
            return part.dense_shape[0]
        if tf.is_tensor(part) and part.shape.rank != 0:
            return tf.shape(part, out_type=tf.int64)[0]
    raise ValueError(
        f"`{step_name}`: its batch has no rows: {tf.nest.map_structure(_shape, batch)}. Expected tensors of shape "
        "[rows, ...]. Batch the dataset."
    )


def _shape(part: Any) -> str:
    return f"shape {part.shape}" if tf.is_tensor(part) else repr(part)


def _listed(kinds: Mapping[str, bool]) -> str:
    return "{" + ", ".join(f"{'vector' if kinds[key] else 'scalar'} {key!r}" for key in sorted(kinds)) + "}"
