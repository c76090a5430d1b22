"""What a run keeps in its folder, so that it can be killed at any moment and go on exactly.

    model_dir/checkpoints/    model, optimizer, step, position in the data, random streams, and what was called
    model_dir/log.jsonl       a line for each loop of steps
    model_dir/settings.json   what must not change from one start to the next
    model_dir/NAME/           states that the program has kept apart
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from ..strategy import Strategy
from . import own_values
from .actions import Action
from .batch_source import BatchSource
from .call_record import Call
from .checkpoints import Checkpoints
from .checks import positive
from .followed_run import FollowedRun
from .run import Run
from .run_log import RunLog
from .users_state import UsersState

_OWN_NAMES = ("step", "data", "random_streams")
_CHECKPOINTS = "checkpoints"
_FOLDER = re.compile(r"[\w-]+")


def make_run(strategy: tf.distribute.Strategy, model_dir: str | None, state: Mapping[str, Any] | None,
             settings: Mapping[str, Any] | None, save_every: int | None, keep: int, actions: Sequence[Action]) -> Run:
    """The run that a trainer is asked for: one that is kept where there is a folder.

    Args:
        strategy: Whose replicas train.
        model_dir: The folder; None keeps nothing.
        state: What checkpoints hold of the user's, by name: models, optimizers, variables.
        settings: What the run was started with, of the types that JSON knows; a start with others is refused.
        save_every: Steps between two checkpoints; None writes one at the end of each call of `train`.
        keep: How many checkpoints are kept.
        actions: Those with `state()` and `restore(state)` go on where they were too.

    Raises:
        ValueError: The arguments do not fit together, or the folder holds a run with other settings.
        OSError: The folder cannot be written to.
    """
    if save_every is not None:
        positive("Trainer", "save_every", save_every)
    positive("Trainer", "keep", keep)
    if model_dir is None:
        if state is not None or save_every is not None or settings is not None:
            raise ValueError("`Trainer`: `state`, `save_every` and `settings` are for a run that is kept. Give "
                             "`model_dir`, the folder for it, too.")
        return Run()
    users_state = UsersState(state, _OWN_NAMES)
    if not isinstance(strategy, Strategy):
        raise ValueError(f"`Trainer`: `model_dir` with a {type(strategy).__name__}, whose input and random streams "
                         "cannot be saved. Use a strategy of Lockstep.")
    return KeptRun(strategy, os.fspath(model_dir), users_state, dict(settings or {}), save_every, keep, actions)


class KeptRun(Run):
    """A run and its folder; the arguments are those of `make_run`, checked."""

    is_written = True

    def __init__(self, strategy: Strategy, model_dir: str, state: UsersState, settings: dict[str, Any],
                 save_every: int | None, keep: int, actions: Sequence[Action]):
        super().__init__()
        self._strategy, self._model_dir, self._state = strategy, model_dir, state
        self._save_every = save_every
        self._actions: list[Any] = [action for action in actions if hasattr(action, "state")]
        self._is_resumed = False
        self._checkpoints = Checkpoints(os.path.join(model_dir, _CHECKPOINTS), keep, strategy)
        self._checkpoints.make_directory()
        if strategy.is_chief:
            _check_settings(os.path.join(model_dir, "settings.json"), settings)
        self._log = RunLog(os.path.join(model_dir, "log.jsonl") if strategy.is_chief else None)

    def resume(self, trace: Callable[[], Any], step: tf.Variable, source: BatchSource) -> None:
        if self._is_resumed:
            return
        self._is_resumed = True
        trace()
        facts = self._checkpoints.restore(self._everything(step, source))
        if facts is None:
            self._log.cut(0)
            return
        own_values.restore(self._state.keras_variables, facts["own_values"])
        source.take_position(facts["data"])
        self.calls.restore(facts["calls"])
        self._log.cut(facts["log_size"])
        for action, kept in zip(self._actions, facts["actions"]):
            action.restore(kept)
        logging.info("Trainer: goes on after step %d.", int(step.read_value()))
        now = self._strategy.num_replicas_in_sync
        if facts["replicas"] != now:
            logging.warning(
                "Trainer: goes on with %d replicas where there were %d. State, step and the position in the data are "
                "those of the run; sums are rounded in another order, and each replica draws other random numbers.",
                now, facts["replicas"])

    def steps_to_save(self, step: int) -> int | None:
        return None if self._save_every is None else self._save_every - step % self._save_every

    def is_due(self, step: int) -> bool:
        return self._save_every is not None and step % self._save_every == 0

    def save(self, step: tf.Variable, source: BatchSource) -> None:
        is_alone = self._strategy.num_workers == 1
        facts = {"replicas": self._strategy.num_replicas_in_sync, "data": source.position(),
                 "calls": self.calls.to_json(), "log_size": self._log.size,
                 "actions": [action.state() for action in self._actions],
                 "own_values": own_values.values_of(self._state.keras_variables) if is_alone else []}
        self._checkpoints.save(int(step.read_value()), self._everything(step, source), facts)

    def finish(self) -> None:
        self._checkpoints.finish()

    def log(self, call: Call, step: int, rows: int, outputs: Mapping[str, float]) -> None:
        self._log.write(call.kind, step, rows, outputs)

    def save_apart(self, name: str, step: int) -> None:
        """Writes the user's state to a folder of its own. Synchronisation: every worker calls."""
        apart = self._apart("save", name)
        apart.make_directory()
        apart.save(step, self._state.to_save(), {"step": step})
        apart.finish()

    def load(self, name: str) -> int:
        """Reads what `save_apart` wrote; returns its step. Synchronisation: every worker calls."""
        facts = self._apart("load", name).restore(self._state.to_save())
        if facts is None:
            raise ValueError(f"`load`: there is nothing to read in {os.path.join(self._model_dir, name)}. Expected "
                             f"what `save({name!r})` writes.")
        return int(facts["step"])

    def followed(self, where: str) -> FollowedRun:
        """The same run as one that another process trains.

        Raises:
            ValueError: This process trains it, or belongs to several workers.
        """
        if self._is_resumed:
            raise ValueError(f"`{where}`: this trainer has trained. Make another one that only evaluates.")
        if self._strategy.num_workers > 1:
            raise ValueError(f"`{where}`: the strategy belongs to {self._strategy.num_workers} workers. Evaluate in a "
                             "process of its own, such as the task 'evaluator' of TF_CONFIG.")
        return FollowedRun(self._model_dir, self._checkpoints, self._state)

    def _apart(self, where: str, name: str) -> Checkpoints:
        if not _FOLDER.fullmatch(name) or name == _CHECKPOINTS:
            raise ValueError(f"`{where}`: `name` is {name!r}. Expected the name of a folder of its own, of letters, "
                             f"digits, '_' and '-', other than {_CHECKPOINTS!r}.")
        return Checkpoints(os.path.join(self._model_dir, name), 1, self._strategy)

    def _everything(self, step: tf.Variable, source: BatchSource) -> dict[str, Any]:
        return {**self._state.to_save(), "step": step, "data": source.iterator,
                "random_streams": self._strategy.random_streams}


def _check_settings(path: str, settings: dict[str, Any]) -> None:
    """Keeps the settings of a new run, and compares those of one that goes on."""
    if not os.path.exists(path):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(settings, file)
        return
    with open(path, encoding="utf-8") as file:
        before = json.load(file)
    differing = [f"{name} was {before.get(name)!r} and is {settings.get(name)!r}"
                 for name in sorted({*before, *settings}) if before.get(name) != settings.get(name)]
    if differing:
        raise ValueError(f"`Trainer`: {os.path.dirname(path)} holds a run with other settings: {', '.join(differing)}. "
                         "Start it as it was, or choose another `model_dir`.")
