"""What `keras.distribution.set_distribution` does with a distribution of ours: its strategy becomes the current one.

Keras's TensorFlow backend reads the distribution that is set, and does nothing with it. Models, optimizers and
variables ask `tf.distribute.get_strategy()` when they are made. So, while a distribution of ours is set, its strategy
is set too, as with `tf.distribute.experimental_set_strategy`; `scope()` of a distribution sets it and puts the one
before back.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable

import keras
import tensorflow as tf

_ATTRIBUTE = "distribution"


class _OfThread(threading.local):
    """The strategy that was set because its distribution was."""

    strategy: tf.distribute.Strategy | None = None


_set = _OfThread()


def install(strategy_of: Callable[[Any], tf.distribute.Strategy | None]) -> None:
    """Lets `set_distribution` make strategies current.

    The place is where Keras keeps the distribution: who has imported `set_distribution` by name before goes through it
    too.

    Args:
        strategy_of: Gives the strategy of a distribution of ours, None for anything else.

    Raises:
        RuntimeError: Keras keeps the distribution elsewhere than the release that Lockstep was written for.
    """
    state = getattr(keras.distribution.set_distribution, "__globals__", {}).get("global_state")
    original = getattr(state, "set_global_attribute", None)
    if getattr(original, "_lockstep_sets_strategies", False):
        return
    if original is None:
        raise RuntimeError(f"DataParallel: Keras {keras.__version__} keeps the current distribution elsewhere than "
                           "Keras 3.15, so that models would be trained on one device. Install Keras 3.15, or use "
                           "`lockstep.MirroredStrategy`.")

    @functools.wraps(original)
    def set_global_attribute(name: str, value: Any) -> None:
        if name == _ATTRIBUTE:
            _make_current(strategy_of(value))
        original(name, value)

    setattr(set_global_attribute, "_lockstep_sets_strategies", True)
    setattr(state, "set_global_attribute", set_global_attribute)


def _make_current(strategy: tf.distribute.Strategy | None) -> None:
    current = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    was_set = current is not None and current is _set.strategy
    if strategy is current or (strategy is None and not was_set):
        return  # Nothing to do, or a strategy that others have set.
    if current is not None and not was_set:
        raise RuntimeError("`keras.distribution.set_distribution`: called inside the scope of a strategy, with a "
                           "lockstep.DataParallel, which has a strategy of its own. Leave that scope, and write "
                           "`with data_parallel.scope():` instead of it.")
    tf.distribute.experimental_set_strategy(strategy)
    _set.strategy = strategy
