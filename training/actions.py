"""Actions: plain functions of the step and its outputs that a trainer calls after each loop of training steps.

    def report(step, outputs):
        if step % 100 == 0:
            print(step, outputs["loss"])

    Trainer(..., actions=[report, EarlyStopping("loss", patience=500)])

One that returns True asks the trainer to stop; on several workers all stop after the same step. An action may also have

    state(), restore(state)    its state, kept in checkpoints as JSON
    attach(trainer)            called once, before anything runs
    end()                      called at the end of each call of `train`, however it ends
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from .checks import positive

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


class Best:
    """The best value so far of one output.

    Args:
      where: The class of the action, for error texts.
      name: The output.
      mode: "min" if smaller is better, "max" if larger is.
      min_delta: By how much a value must be better to count.

    Raises:
      ValueError: `mode` is another one.
    """

    def __init__(self, where: str, name: str, mode: str, min_delta: float = 0.0) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f"`{where}`: `mode` is {mode!r}. Expected 'min' or 'max'.")
        self._where, self._name, self._min_delta = where, name, min_delta
        self._sign = 1.0 if mode == "min" else -1.0
        self._best = math.inf

    def improves(self, outputs: Mapping[str, float]) -> bool:
        """Whether the output is better than all before; it is the best then. NaN never is.

        Raises:
          KeyError: There is no such output.
        """
        if self._name not in outputs:
            raise KeyError(f"`{self._where}`: the step returns no {self._name!r}, but "
                           f"{', '.join(map(repr, outputs)) or 'nothing'}.")
        value = self._sign * outputs[self._name]
        is_better = value < self._best - self._min_delta
        if is_better:
            self._best = value
        return is_better

    def state(self) -> float:
        """What `restore` takes."""
        return self._best

    def restore(self, best: float) -> None:
        """Inverse of `state`."""
        self._best = best


class Every:
    """Calls another action now and then.

    >>> report = lockstep.training.Every(100, lambda step, outputs: print(step, outputs))
    >>> for step in (60, 120, 180, 240):
    ...     stops = report(step, {"loss": 0.5})
    120 {'loss': 0.5}
    240 {'loss': 0.5}

    Args:
      steps: Called after the first loop that ends at, or has passed, each multiple of so many steps.
      action: The action; its `state`, `restore`, `attach` and `end` are passed on.

    Raises:
      ValueError: `steps` is no positive integer.
    """

    def __init__(self, steps: int, action: Action) -> None:
        self._steps, self._action, self._last = positive("Every", "steps", steps), action, 0

    def __call__(self, step: int, outputs: Mapping[str, float]) -> Any:
        before, self._last = self._last, step
        return self._action(step, outputs) if step // self._steps > before // self._steps else None

    def state(self) -> dict[str, Any]:
        """What a run that is continued restores."""
        return {"last": self._last, "action": called(self._action, "state")}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        self._last = state["last"]
        called(self._action, "restore", state["action"])

    def attach(self, trainer: Any) -> None:
        """The trainer begins."""
        called(self._action, "attach", trainer)

    def end(self) -> None:
        """A call of `train` ends."""
        called(self._action, "end")


def called(action: Action, method: str, *args: Any) -> Any:
    """Calls a method that an action may have."""
    found = getattr(action, method, None)
    return None if found is None else found(*args)
