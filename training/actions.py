"""Actions: plain functions of the step and its outputs that a trainer calls after each loop of training steps.

    def report(step, outputs):
        if step % 100 == 0:
            print(step, outputs["loss"])

    Trainer(..., actions=[report, EarlyStopping("loss", patience=500)])

One that returns True asks the trainer to stop; on several workers all stop after the same step. One with `state()` and
`restore(state)` has its state kept in checkpoints, as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Action = Callable[[int, Mapping[str, float]], Any]


def taken(action: Action, step: int, outputs: Mapping[str, float]) -> bool:
    """Calls an action; whether it asks to stop.

    Raises:
      Exception: What the action raises, with a note that names it.
    """
    try:
        return action(step, outputs) is True
    except Exception as error:
        name = getattr(action, "__name__", type(action).__name__)
        error.add_note(f"Raised by the action {name!r} of a Trainer, after step {step}.")
        raise


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
        if patience < 1:
            raise ValueError(f"`EarlyStopping`: `patience` is {patience!r}. Expected 1 or more steps.")
        if mode not in ("min", "max"):
            raise ValueError(f"`EarlyStopping`: `mode` is {mode!r}. Expected 'min' or 'max'.")
        self._name, self._patience, self._min_delta = name, patience, min_delta
        self._sign = 1.0 if mode == "min" else -1.0
        self._best = math.inf
        self._best_step = 0

    def __call__(self, step: int, outputs: Mapping[str, float]) -> bool:
        value = self._sign * _output(outputs, self._name, "EarlyStopping")
        if value < self._best - self._min_delta:
            self._best, self._best_step = value, step
        return step - self._best_step >= self._patience

    def state(self) -> dict[str, float]:
        """What a run that is continued restores."""
        return {"best": self._best, "best_step": self._best_step}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        self._best, self._best_step = state["best"], state["best_step"]


class StopOnNaN:
    """Raises as soon as an output of the step is not finite.

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


def _output(outputs: Mapping[str, float], name: str, where: str) -> float:
    if name not in outputs:
        raise KeyError(f"`{where}`: the step returns no {name!r}, but {', '.join(map(repr, outputs)) or 'nothing'}.")
    return outputs[name]
