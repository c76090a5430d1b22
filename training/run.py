"""What a run keeps in its folder, so that it can be killed at any moment and go on exactly.

    model_dir/checkpoints/    model, optimizer, step, position in the data, random streams, and what was called
    model_dir/log.jsonl       a line for each loop of steps
    model_dir/settings.json   what must not change from one start to the next
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Callable, Mapping, Sequence

import tensorflow as tf
from absl import logging

from ..collective.options import is_integer
from ..strategy import Strategy
from . import own_values
from .actions import Action
from .batch_source import BatchSource
from .call_record import Call, CallRecord
from .checkpoints import Checkpoints
from .run_log import RunLog

_OWN_NAMES = ("step", "data", "random_streams")
_CHECKPOINTS = "checkpoints"
_FOLDER = re.compile(r"[\w-]+")


class Run:
    """A run and its folder.

    Args:
        strategy: Whose replicas train.
        model_dir: The folder; None keeps nothing.
        state: What checkpoints hold of the user's, by name: models, optimizers, variables.
        settings: What the run was started with, of the types that JSON knows; a start with others is refused.
        save_every: Steps between two checkpoints; None writes one at the end of each call of `train`.
        keep: How many checkpoints are kept.
        actions: Those with `state()` and `restore(state)` go on where they were too.

    Attributes:
        calls: What the program has called.

    Raises:
        ValueError: The arguments do not fit together, or the folder holds a run with other settings.
        OSError: The folder cannot be written to.
    """

    def __init__(self, strategy: tf.distribute.Strategy, model_dir: str | None, state: Mapping[str, Any] | None,
                 settings: Mapping[str, Any] | None, save_every: int | None, keep: int,
                 actions: Sequence[Action] = ()):
        self.calls = CallRecord()
        self._actions: list[Any] = [action for action in actions if hasattr(action, "state")]
        self._checkpoints: Checkpoints | None = None
        self._log = RunLog(None)
        self._save_every = save_every
        self._is_ready = model_dir is None
        self._is_following = False
        for name, value in (("save_every", save_every), ("keep", keep)):
            if value is not None and (not is_integer(value) or value < 1):
                raise ValueError(f"`Trainer`: `{name}` is {value!r}. Expected an integer of 1 or more.")
        if model_dir is None:
            if state is not None or save_every is not None or settings is not None:
                raise ValueError("`Trainer`: `state`, `save_every` and `settings` are for a run that is kept. Give "
                                 "`model_dir`, the folder for it, too.")
            return
        if not state or any(name in _OWN_NAMES or not name.isidentifier() for name in state):
            raise ValueError(f"`Trainer`: `state` is {state!r}. Expected a dict of what checkpoints shall hold, such "
                             f"as {{'model': model, 'optimizer': optimizer}}, with other names than {_OWN_NAMES}.")
        if not isinstance(strategy, Strategy):
            raise ValueError(f"`Trainer`: `model_dir` with a {type(strategy).__name__}, whose input and random streams "
                             "cannot be saved. Use a strategy of Lockstep.")
        self._state, self._random_streams = dict(state), strategy.random_streams
        self._strategy, self._model_dir = strategy, os.fspath(model_dir)
        self._checkpoints = Checkpoints(os.path.join(model_dir, _CHECKPOINTS), keep, strategy)
        if strategy.is_chief:
            _check_settings(os.path.join(model_dir, "settings.json"), dict(settings or {}))
            self._log = RunLog(os.path.join(model_dir, "log.jsonl"))

    @property
    def is_kept(self) -> bool:
        """Whether there is a folder."""
        return self._checkpoints is not None

    @property
    def is_written(self) -> bool:
        """Whether this process writes checkpoints of the run."""
        return self._checkpoints is not None and not self._is_following

    def resume(self, trace: Callable[[], Any], step: tf.Variable, source: BatchSource) -> None:
        """Goes on where the newest checkpoint stands, the first time that it is called.

        Args:
            trace: Traces the step, so that everything that it makes is there to be restored.
            step: The counter.
            source: The position in the data.
        """
        if self._is_ready:
            return
        assert self._checkpoints is not None
        self._is_ready = True
        trace()
        facts = self._checkpoints.restore(self._everything(step, source))
        if facts is None:
            self._log.cut(0)
            return
        own_values.restore(self._keras_variables(), facts["own_values"])
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
        """How many steps are left until the next checkpoint is due, None if none is."""
        return None if self._save_every is None else self._save_every - step % self._save_every

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is to be written after this step."""
        return self._save_every is not None and step % self._save_every == 0

    def save(self, step: tf.Variable, source: BatchSource) -> None:
        """Writes a checkpoint. Synchronisation: every worker calls."""
        if self._checkpoints is None or self._is_following:
            return
        facts = {"replicas": self._strategy.num_replicas_in_sync, "data": source.position(),
                 "calls": self.calls.to_json(), "log_size": self._log.size,
                 "actions": [action.state() for action in self._actions],
                 "own_values": own_values.values_of(self._keras_variables()) if self._strategy.num_workers == 1 else []}
        self._checkpoints.save(int(step.read_value()), self._everything(step, source), facts)

    def finish(self) -> None:
        """Returns when the last checkpoint is complete. Synchronisation: every worker calls."""
        if self._checkpoints is not None and not self._is_following:
            self._checkpoints.finish()

    def save_as(self, name: str, step: int) -> None:
        """Writes the user's state to a folder of its own. Synchronisation: every worker calls."""
        apart = self._apart("save", name)
        apart.save(step, self._users_state(), {"step": step})
        apart.finish()

    def load(self, name: str) -> int:
        """Reads what `save_as` wrote; returns its step. Synchronisation: every worker calls."""
        facts = self._apart("load", name).restore(self._users_state())
        if facts is None:
            raise ValueError(f"`load`: there is nothing to read in {os.path.join(self._model_dir, name)}. Expected "
                             f"what `save({name!r})` writes.")
        return int(facts["step"])

    def _apart(self, where: str, name: str) -> Checkpoints:
        if not _FOLDER.fullmatch(name) or name == _CHECKPOINTS:
            raise ValueError(f"`{where}`: `name` is {name!r}. Expected the name of a folder of its own, of letters, "
                             f"digits, '_' and '-', other than {_CHECKPOINTS!r}.")
        return Checkpoints(os.path.join(self._model_dir, name), 1, self._strategy)

    # Following a run that another process trains.

    def begin_following(self, where: str) -> None:
        """From now on this process reads checkpoints and writes none.

        Raises:
            ValueError: It has trained, or trains with others.
        """
        if self._is_ready and not self._is_following:
            raise ValueError(f"`{where}`: this trainer has trained. Make another one that only evaluates.")
        if self._strategy.num_workers > 1:
            raise ValueError(f"`{where}`: the strategy belongs to {self._strategy.num_workers} workers. Evaluate in a "
                             "process of its own, such as the task 'evaluator' of TF_CONFIG.")
        self._is_ready = self._is_following = True
        self._log = RunLog(os.path.join(self._model_dir, "evaluations.jsonl"))

    def newest(self) -> int | None:
        """The step of the newest checkpoint."""
        assert self._checkpoints is not None
        return self._checkpoints.newest()

    def load_checkpoint(self, step: int) -> bool:
        """Reads the user's state from the run's checkpoint of a step; False if it is gone."""
        assert self._checkpoints is not None
        return self._checkpoints.read_part(step, self._users_state())

    def log(self, call: Call, step: int, rows: int, outputs: Mapping[str, float]) -> None:
        """Adds a line to the log."""
        self._log.write(call.kind, step, rows, outputs)

    def _everything(self, step: tf.Variable, source: BatchSource) -> dict[str, Any]:
        return {**self._users_state(), "step": step, "data": source.iterator, "random_streams": self._random_streams}

    def _users_state(self) -> dict[str, Any]:
        return {**self._state, **self._lists_of_keras()}

    def _lists_of_keras(self) -> dict[str, list[tf.Variable]]:
        """What a Keras object tracks leaves out its seeds and metrics: its lists of variables have all."""
        return {f"{name}_{kind}": [variable.value for variable in getattr(value, kind)]
                for name, value in self._state.items() if _is_kerass(value)
                for kind in ("variables", "metrics_variables") if hasattr(value, kind)}

    def _keras_variables(self) -> list[tf.Variable]:
        return [variable for listed in self._lists_of_keras().values() for variable in listed]


def _is_kerass(value: Any) -> bool:
    """Whether a value is a model, layer, optimizer or the like of Keras."""
    return any(kind.__module__.startswith("keras.") for kind in type(value).__mro__) and hasattr(value, "variables")


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
