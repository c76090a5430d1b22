"""Values that each replica adds up on its own, such as Keras's metrics: as the replicas have them.

A checkpoint keeps such a variable as the sum over its replicas, which any number of replicas can take. To go on to the
bit, with as many replicas as before, takes what each had: floats add up differently in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from ..strategy import SyncOnReadVariable


def values_of(variables: Iterable[tf.Variable]) -> list[list[Any]]:
    """By variable that each replica has on its own: by replica of this process: its value, as JSON knows it."""
    return [[copy.numpy().tolist() for copy in variable.values] for variable in _own(variables)]


def restore(variables: Iterable[tf.Variable], values: Sequence[Sequence[Any]]) -> None:
    """Gives the replicas their values back, where there are as many as there were."""
    own = _own(variables)
    if [len(variable.values) for variable in own] != [len(parts) for parts in values]:
        return
    for variable, parts in zip(own, values):
        for copy, part in zip(variable.values, parts):
            copy.assign(tf.constant(part, copy.dtype, copy.shape))


def _own(variables: Iterable[tf.Variable]) -> list[SyncOnReadVariable]:
    return [variable for variable in variables if isinstance(variable, SyncOnReadVariable)]
