"""Looking at a step's outputs on each replica: what is not finite fails the step, with its name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

_TEXT = re.compile(r"not finite: step (\d+), replica (\d+), output (.*?), end of name")


def checks(outputs: Mapping[str, Any], step: tf.Tensor) -> list[tf.Operation]:
    """Ops that fail a replica's step if an output of it is not finite.

    Args:
        outputs: What the step returned on this replica.
        step: The number of the step, the first being 1; an integer scalar.
    """
    made = []
    context = tf.distribute.get_replica_context()
    for key, value in outputs.items():
        value = tf.convert_to_tensor(value)
        if value.dtype.is_floating:
            text = tf.strings.join(["not finite: step ", tf.strings.as_string(step), ", replica ",
                                    tf.strings.as_string(context.replica_id_in_sync_group),
                                    f", output {key}, end of name"])
            made.append(tf.debugging.Assert(tf.reduce_all(tf.math.is_finite(value)), [text]))
    return made


def named(error: tf.errors.OpError, variables: Sequence[tf.Variable]) -> FloatingPointError | None:
    """What a failed check says; None if the error is none of a check.

    Args:
        error: Of a loop of steps.
        variables: Those of the loop, of which the first that are not finite are named.
    """
    found = _TEXT.search(error.message or "")
    if found is None:
        return None
    step, replica, output = found.groups()
    spoiled = [variable.name for variable in variables if variable.dtype.is_floating
               and not bool(tf.reduce_all(tf.math.is_finite(variable.read_value())))]
    now = f"Not finite by now: {', '.join(spoiled[:3])}{f' and {len(spoiled) - 3} more' * (len(spoiled) > 3)}. " \
        if spoiled else "All variables are finite. "
    return FloatingPointError(
        f"`StopOnNaN`: in step {step} the output {output!r} of replica {replica} is not finite. {now}Lower the "
        "learning rate, clip gradients, or look at the rows of this step.")
