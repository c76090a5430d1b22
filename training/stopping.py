"""Actions that end a training: one that no longer improves, or that has gone wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .actions import Best
from .checks import positive


class EarlyStopping:
    """Asks to stop when an output has not improved for a number of steps.

    >>> stop = lockstep.training.EarlyStopping("loss", patience=20)
    >>> [stop(step, {"loss": loss}) for step, loss in ((10, 1.0), (20, 0.5), (30, 0.6), (40, 0.7))]
    [False, False, False, True]

    Args:
      name: The output.
      patience: How many steps without an improvement are too many, 1 or more.
      min_delta: By how much a value must be better to count.
      mode: "min" if smaller is better, "max" if larger is.

    Raises:
      ValueError: `patience` or `mode` is another one.
    """

    def __init__(self, name: str, patience: int, min_delta: float = 0.0, mode: str = "min") -> None:
        self._patience = positive("EarlyStopping", "patience", patience)
        self._best = Best("EarlyStopping", name, mode, min_delta)
        self._best_step = 0

    def __call__(self, step: int, outputs: Mapping[str, float]) -> bool:
        if self._best.improves(outputs):
            self._best_step = step
        return step - self._best_step >= self._patience

    def state(self) -> dict[str, float]:
        """What a run that is continued restores."""
        return {"best": self._best.state(), "best_step": self._best_step}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        self._best.restore(state["best"])
        self._best_step = state["best_step"]


class StopOnNaN:
    """Raises as soon as an output of the step is not finite.

    Among the `actions` of a `Trainer` it has every replica look at its own outputs in each step: the error then names
    the first step, the output and the replica, and the variables that are not finite by then.

    >>> check = lockstep.training.StopOnNaN()
    >>> check(10, {"loss": 0.5})
    >>> check(20, {"loss": float("nan")})
    Traceback (most recent call last):
    ...
    FloatingPointError: `StopOnNaN`: after step 20 the output 'loss' is nan. ...
    """

    def __call__(self, step: int, outputs: Mapping[str, float]) -> None:
        for name, value in outputs.items():
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"`StopOnNaN`: after step {step} the output {name!r} is {value}. The loop before it was finite. "
                    "Lower the learning rate, clip gradients, or look at the rows of this loop.")
