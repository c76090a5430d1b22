"""`ReduceOnPlateau`: an action that lowers the learning rate where an output no longer improves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from absl import logging

from .actions import Best
from .checks import positive


class ReduceOnPlateau:
    """Multiplies the learning rate of an optimizer when an output has not improved for a number of steps.

    >>> optimizer = keras.optimizers.SGD(0.5)
    >>> reduce = lockstep.training.ReduceOnPlateau(optimizer, "loss", patience=20, factor=0.5)
    >>> for step, loss in ((10, 1.0), (20, 0.5), (30, 0.6), (40, 0.7), (50, 0.5)):
    ...     reduce(step, {"loss": loss})
    >>> float(optimizer.learning_rate)
    0.25

    Args:
      optimizer: A Keras optimizer whose learning rate is a number.
      output: The output.
      patience: After how many steps without an improvement, since the best one or the last reduction.
      factor: What the learning rate is multiplied with, above 0 and below 1.
      min_learning_rate: It is not made smaller than this.
      mode: "min" if smaller is better, "max" if larger is.
      min_delta: By how much a value must be better to count.

    Raises:
      ValueError: A number or `mode` is another one, or the learning rate is a schedule.
    """

    def __init__(self, optimizer: Any, output: str, patience: int, factor: float = 0.1,
                 min_learning_rate: float = 0.0, mode: str = "min", min_delta: float = 0.0) -> None:
        self._patience = positive("ReduceOnPlateau", "patience", patience)
        if not 0.0 < factor < 1.0:
            raise ValueError(f"`ReduceOnPlateau`: `factor` is {factor!r}. Expected a number above 0 and below 1.")
        if not hasattr(getattr(optimizer, "_learning_rate", None), "assign"):
            raise ValueError(f"`ReduceOnPlateau`: the learning rate of {type(optimizer).__name__} is a schedule, or it "
                             "is no optimizer of Keras. Give it a number as learning rate.")
        self._optimizer, self._factor, self._smallest = optimizer, factor, min_learning_rate
        self._best = Best("ReduceOnPlateau", output, mode, min_delta)
        self._since = 0

    def __call__(self, step: int, outputs: Mapping[str, float]) -> None:
        if self._best.improves(outputs):
            self._since = step
        if step - self._since < self._patience:
            return
        self._since = step
        before = float(self._optimizer.learning_rate)
        after = max(before * self._factor, self._smallest)
        if after < before:
            self._optimizer.learning_rate = after
            logging.info("ReduceOnPlateau: after step %d the learning rate is %g, it was %g.", step, after, before)

    def state(self) -> dict[str, float]:
        """What a run that is continued restores; the learning rate itself is in the optimizer's state."""
        return {"best": self._best.state(), "since": self._since}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        self._best.restore(state["best"])
        self._since = state["since"]
