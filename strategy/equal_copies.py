"""After a step that failed: copies of a variable that some replicas had written, and others not, are made equal again.

On one device a step that fails leaves what it had written. Here replicas fail at different moments, and the copies of
one variable may have come to different values. All of them take replica 0's then, which is what one device might have.
"""

from __future__ import annotations

import contextlib
from typing import Iterable, Iterator

import tensorflow as tf
from absl import logging

from ..collective.all_gather import same_bits
from .mirrored_variable import MirroredVariable


@contextlib.contextmanager
def after_failure(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """If what it encloses fails, outside of all traces, the copies of the strategy's variables are made equal."""
    try:
        yield
    except Exception:
        if tf.executing_eagerly():
            make_equal(strategy.extended.mirrored_variables)
        raise


def make_equal(variables: Iterable[MirroredVariable]) -> list[str]:
    """Gives copies that differ the first one's value; returns the names of their variables, and logs them."""
    mended = []
    for variable in variables:
        first, *others = variable.values
        value = first.read_value()
        differing = [copy for copy in others if not bool(same_bits(value, tf.convert_to_tensor(copy.read_value())))]
        for copy in differing:
            with tf.device(copy.device):
                copy.assign(value)
        if differing:
            mended.append(variable.name)
    if mended:
        more = f" and {len(mended) - 3} more" if len(mended) > 3 else ""
        logging.warning("strategy.run: the step failed when some replicas had written %s%s and others had not. All "
                        "copies have the first replica's value now.", ", ".join(map(repr, sorted(mended)[:3])), more)
    return mended
