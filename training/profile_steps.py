"""`ProfileSteps`: an action that records TensorFlow's profile of some steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from .checks import positive


class ProfileSteps:
    """Records TensorFlow's profile of a window of steps on the chief, for TensorBoard's profile page.

    The window begins after the first loop that ends at `first` or later, and ends with the one that reaches `last`, or
    with the call of `train`.

    >>> lockstep.training.ProfileSteps("profile", first=20, last=10)
    Traceback (most recent call last):
    ...
    ValueError: `ProfileSteps`: `last` is 10, and `first` 20. Expected a later step.

    Args:
      folder: Where the profile is written; it is made.
      first: After which step the window begins, 1 or more.
      last: After which step it ends.

    Raises:
      ValueError: The numbers are no window.
    """

    def __init__(self, folder: str | os.PathLike[str], first: int, last: int) -> None:
        self._folder = os.fspath(folder)
        self._first, self._last = positive("ProfileSteps", "first", first), positive("ProfileSteps", "last", last)
        if last <= first:
            raise ValueError(f"`ProfileSteps`: `last` is {last}, and `first` {first}. Expected a later step.")
        self._is_chief, self._is_recording, self._is_over = True, False, False

    def attach(self, trainer: Any) -> None:
        """The trainer begins."""
        self._is_chief = trainer.is_chief

    def __call__(self, step: int, outputs: Mapping[str, float]) -> None:
        if self._is_recording and step >= self._last:
            self.end()
        elif not self._is_recording and not self._is_over and self._is_chief and self._first <= step < self._last:
            tf.profiler.experimental.start(self._folder)
            self._is_recording = True

    def end(self) -> None:
        """A call of `train` ends."""
        if self._is_recording:
            tf.profiler.experimental.stop()
            self._is_recording, self._is_over = False, True
