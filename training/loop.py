"""The inner loop: several steps in one launch of one `tf.function`.

The driver (`trainer.py`) decides how many steps, when, on which data; this file runs them. Between
the two stands one call, as in Orbit: a tensor with the number of steps goes in, a dict of tensors
with the totals comes out.

    loop = make_loop(strategy, train_step, StepOutputs("train_step"), counter)
    result = loop(iter(distributed), tf.constant(100, tf.int64), no_totals())
    result["num_steps"]    # 100, or less where the data ended
    result["totals"]       # what the steps added up to, `.values` the vector
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from . import finite_outputs
from .step_outputs import StepOutputs

Loop: TypeAlias = tf.types.experimental.PolymorphicFunction


def no_totals() -> tf.RaggedTensor:
    """The totals before the first step, whatever the step's outputs will be.

    One zero: added to totals of any length it leaves them as they are.
    """
    return _as_ragged(tf.zeros([1], tf.float64))


def with_totals(totals: Sequence[float]) -> tf.RaggedTensor:
    """The totals of earlier steps, from the numbers of their one row."""
    return _as_ragged(tf.constant(totals, tf.float64))


def _as_ragged(totals: tf.Tensor) -> tf.RaggedTensor:
    """A vector as the one row of a ragged tensor.

    The length of the totals is known after the first trace only. A ragged row has no length in its
    type, so that the same trace takes the one zero of `no_totals` and the full totals.
    """
    return tf.RaggedTensor.from_row_lengths(totals, [tf.size(totals, tf.int64)], validate=False)


def make_loop(
    strategy: tf.distribute.Strategy,
    step: Callable[[Any], Any],
    outputs: StepOutputs,
    counter: tf.Variable | None = None,
    checks_outputs: bool = False,
) -> Loop:
    """Makes the function that runs a number of steps.

    Synchronisation: the loop holds the collectives of the step itself and one small sum of its
    outputs over the sync group; all workers call it with the same number of steps.

    Args:
      strategy: Runs the step on its replicas.
      step: Called on each replica with its part of a batch.
      outputs: Takes what the step returns.
      counter: Raised by one after each step.
      checks_outputs: Whether each replica looks at its outputs, and fails the step where one is not finite; with a
        counter only.

    Returns:
      A `tf.function` of (iterator, number of steps as int64 scalar, totals so far). It returns
      "num_steps", the number of steps that ran, fewer than asked only where the data ended, and
      "totals", with these steps added, one ragged row. It is traced once for all counts and for
      all iterators of one kind, twice when the step makes variables on its first call.
    """

    def replica_step(batch: Any) -> dict[str, Any]:
        returned = step(batch)
        reported = outputs.on_replica(returned, batch)
        if counter is not None:
            checked = finite_outputs.checks(returned, counter + 1) if checks_outputs else []
            # After the step, not beside it; each replica counts in its own copy.
            with tf.control_dependencies([*tf.nest.flatten(reported), *checked]):
                counter.assign_add(1)
        return reported

    def global_step(batch: Any) -> tf.Tensor:
        per_replica = strategy.run(replica_step, args=(batch,))
        return outputs.totals(strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None))

    @tf.function
    def loop(iterator: Any, num_steps: tf.Tensor, totals: tf.RaggedTensor) -> dict[str, Any]:
        def goes_on(done: tf.Tensor, has_data: tf.Tensor, totals: tf.Tensor) -> tf.Tensor:
            return tf.logical_and(done < num_steps, has_data)

        def next_step(
            done: tf.Tensor, has_data: tf.Tensor, totals: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            batch = iterator.get_next_as_optional()
            has_data = batch.has_value()
            done, totals = tf.cond(
                has_data,
                lambda: (done + 1, totals + global_step(batch.get_value())),
                lambda: (done, totals),
            )
            return done, has_data, totals

        done, _, added_up = tf.while_loop(
            goes_on,
            next_step,
            (tf.constant(0, tf.int64), tf.constant(True), totals.values),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), tf.TensorShape([None])),
            # A step starts when the one before has ended: their updates must not mix.
            parallel_iterations=1,
        )
        return {"num_steps": done, "totals": _as_ragged(added_up)}

    return loop
