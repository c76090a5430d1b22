"""What a trainer evaluates with: steps and data, checked, traced and distributed once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from .actions import Action
from .batch_source import BatchSource, DistributedData, check_type, distribute
from .call_runner import Work
from .checks import check_callable, check_finite
from .keras_steps import metrics_of
from .loop import Loop, make_loop
from .step_outputs import StepOutputs

# How many (steps, and data sets) are kept.
_KEPT = 8


class Evaluations:
    """The evaluations of one trainer.

    Args:
        strategy: Whose replicas run them.
        actions: Called after each.
    """

    def __init__(self, strategy: tf.distribute.Strategy, actions: Sequence[Action]):
        self._strategy, self._actions = strategy, actions
        # Kept, so that an evaluation after every epoch neither traces nor distributes again.
        self._loop = functools.lru_cache(_KEPT)(self._make_loop)
        self._data = functools.lru_cache(_KEPT)(self._distribute)

    def check(self, where: str, eval_step: Any, eval_data: Any) -> None:
        """Checks what a caller gives.

        Raises:
            TypeError: `eval_step` is no function, or `eval_data` no dataset.
            ValueError: The data has no end.
        """
        check_callable(where, "eval_step", eval_step)
        check_type(eval_data, "eval_data")
        check_finite(self._data(eval_data), where, "eval_data", "Cut it with `eval_data.take(num_batches)`")

    def work(self, eval_step: Callable[[Any], Any], eval_data: Any) -> Work:
        """One evaluation, from the start of the data."""
        loop, outputs = self._loop(eval_step)
        source = BatchSource(self._data(eval_data), "eval_data")
        return Work(loop, outputs, source, self._actions, is_training=False, metrics=metrics_of(eval_step))

    def _make_loop(self, eval_step: Callable[[Any], Any]) -> tuple[Loop, StepOutputs]:
        outputs = StepOutputs("eval_step")
        return make_loop(self._strategy, eval_step, outputs), outputs

    def _distribute(self, eval_data: Any) -> DistributedData:
        return distribute(self._strategy, eval_data, "eval_data")
