"""Actions that keep a model: the best checkpoint, and exports."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from .actions import Best
from .checks import positive

_EXPORT = re.compile(r"step_(\d+)")


class BestCheckpoint:
    """Keeps the state of the best step, apart from the run's checkpoints: `trainer.load(name)` reads it back.

        Trainer(..., model_dir="run", state={"model": model}, eval_actions=[BestCheckpoint("accuracy", mode="max")])

    It belongs to a trainer with `model_dir`, and writes `model_dir/name`. Synchronisation: every worker calls.

    >>> lockstep.training.BestCheckpoint("accuracy", mode="highest")
    Traceback (most recent call last):
    ...
    ValueError: `BestCheckpoint`: `mode` is 'highest'. Expected 'min' or 'max'.

    Args:
      output: The output that is compared.
      mode: "min" if smaller is better, "max" if larger is.
      name: The name of the folder.
      min_delta: By how much a value must be better to count.

    Raises:
      ValueError: `mode` is another one.
    """

    def __init__(self, output: str, mode: str = "min", name: str = "best", min_delta: float = 0.0) -> None:
        self._best = Best("BestCheckpoint", output, mode, min_delta)
        self._name = name
        self._trainer: Any = None

    def attach(self, trainer: Any) -> None:
        """The trainer begins.

        Raises:
          ValueError: It keeps nothing.
        """
        if not trainer.is_kept:
            raise ValueError("`BestCheckpoint`: the trainer keeps nothing. Give it `model_dir` and `state`.")
        self._trainer = trainer

    def __call__(self, step: int, outputs: Mapping[str, float]) -> None:
        if self._trainer is None:
            raise RuntimeError("`BestCheckpoint`: called without a trainer. Pass it to one, as an action.")
        if self._best.improves(outputs):
            self._trainer.save(self._name)

    def state(self) -> float:
        """What a run that is continued restores."""
        return self._best.state()

    def restore(self, state: float) -> None:
        """Inverse of `state`."""
        self._best.restore(state)


class Export:
    """Exports a model on the chief: after each call, or after the best one.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export = lockstep.training.Export(os.mkdir, folder, best_of="loss")
    ...     for step, loss in ((10, 0.5), (20, 0.7), (30, 0.4)):
    ...         export(step, {"loss": loss})
    ...     os.listdir(folder)
    ['step_000000030']

    Args:
      write: Writes an export to the path that it is given, such as `model.export`, or
        `lambda path: model.save(path + ".keras")`; everything that it makes begins with that path.
      folder: Where the exports stand, each as `step_...`; it is made if it does not exist.
      keep: How many are kept, the newest.
      best_of: An output: only what improves it is exported.
      mode: "min" if a smaller output is better, "max" if a larger one is.

    Raises:
      ValueError: `keep` or `mode` is another one.
    """

    def __init__(self, write: Callable[[str], Any], folder: str | os.PathLike[str], keep: int = 1,
                 best_of: str | None = None, mode: str = "min") -> None:
        self._write, self._folder = write, os.fspath(folder)
        self._keep = positive("Export", "keep", keep)
        self._best = None if best_of is None else Best("Export", best_of, mode)
        self._is_chief = True

    def attach(self, trainer: Any) -> None:
        """The trainer begins."""
        self._is_chief = trainer.is_chief

    def __call__(self, step: int, outputs: Mapping[str, float]) -> None:
        if self._best is not None and not self._best.improves(outputs) or not self._is_chief:
            return
        unfinished = os.path.join(self._folder, "unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        os.makedirs(unfinished)
        name = f"step_{step:09d}"
        self._write(os.path.join(unfinished, name))
        self._remove(name)
        for made in os.listdir(unfinished):
            os.rename(os.path.join(unfinished, made), os.path.join(self._folder, made))
        os.rmdir(unfinished)
        exports = {found.group() for found in map(_EXPORT.match, os.listdir(self._folder)) if found}
        for old in sorted(exports)[:-self._keep]:
            self._remove(old)

    def _remove(self, name: str) -> None:
        """Removes an export."""
        for found in os.listdir(self._folder):
            if found.startswith(name):
                path = os.path.join(self._folder, found)
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    def state(self) -> float | None:
        """What a run that is continued restores."""
        return None if self._best is None else self._best.state()

    def restore(self, state: float | None) -> None:
        """Inverse of `state`."""
        if self._best is not None and state is not None:
            self._best.restore(state)
