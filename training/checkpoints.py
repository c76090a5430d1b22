"""The checkpoints of a run: folders in one directory, each complete or absent.

    run/checkpoints/step_000000300/state.index, state.data-...    what `tf.train.Checkpoint` writes
                                   facts.json                     what else is to be known, plain JSON

The values are written to memory while the training waits, and from there to disk by a thread of the chief's. There a
checkpoint has another name until it is complete, so one that was cut short is never picked, and is removed by the next.
Before one is restored all of it is read once, which verifies TensorFlow's checksums; one that cannot be read is passed
over, and the one before is taken.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import uuid
from typing import Any, Iterator, Mapping

import tensorflow as tf
from absl import logging

from ..strategy import Strategy, busy

_NAME = re.compile(r"step_(\d+)")
_UNFINISHED = ".unfinished"
_STATE = "state"
_FACTS = "facts.json"


class Checkpoints:
    """The checkpoints in one directory.

    Args:
        directory: See `make_directory`. On several workers all see the same one.
        keep: How many of the newest are kept.
        strategy: Tells who writes, and waits for all.
    """

    def __init__(self, directory: str, keep: int, strategy: Strategy):
        self._directory, self._keep, self._strategy = directory, keep, strategy
        self._memory = f"ram://lockstep/{uuid.uuid4().hex}"
        self._writer: threading.Thread | None = None
        self._problem: Exception | None = None

    def make_directory(self) -> None:
        """Makes the directory, on the chief.

        Raises:
            OSError: It cannot be made or written to.
        """
        if self._strategy.is_chief:
            os.makedirs(self._directory, exist_ok=True)
            if not os.access(self._directory, os.W_OK):
                raise OSError(f"`Trainer`: cannot write to {self._directory}. Choose another `model_dir`.")

    def save(self, step: int, state: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Takes the values that make a checkpoint, and begins to write it; one that is being written is waited for.

        Synchronisation: every worker calls.

        Args:
            step: Names it; one of this step that exists is replaced.
            state: What `tf.train.Checkpoint` takes, by name.
            facts: What else is to be known, of the types that JSON knows.

        Raises:
            OSError: The one before could not be written.
        """
        with busy("saving a checkpoint"):
            self._join()
            with _without_remarks():
                tf.train.Checkpoint(**state).write(os.path.join(self._memory, _STATE))
        if self._strategy.is_chief:
            self._writer = threading.Thread(target=self._write, args=(step, json.dumps(dict(facts))),
                                            name="checkpoint_writer")
            self._writer.start()

    def finish(self) -> None:
        """Returns when the last checkpoint is complete. Synchronisation: every worker calls.

        Raises:
            OSError: It could not be written.
        """
        with busy("saving a checkpoint"):
            self._join()
        self._strategy.barrier("checkpoint written")

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise OSError(f"`Trainer`: a checkpoint could not be written to {self._directory}: {problem}. Make room, "
                          "or choose another `model_dir`.") from problem

    def _write(self, step: int, facts: str) -> None:
        """Writes what is in memory, on a thread of its own, and removes old checkpoints."""
        try:
            final = self._folder(step)
            unfinished = final + _UNFINISHED
            for name in os.listdir(self._directory):
                if name.endswith(_UNFINISHED):
                    shutil.rmtree(os.path.join(self._directory, name))
            os.makedirs(unfinished)
            for name in tf.io.gfile.listdir(self._memory):
                written = os.path.join(unfinished, name)
                tf.io.gfile.copy(os.path.join(self._memory, name), written)
                _sync(written)
            _write_text(os.path.join(unfinished, _FACTS), facts)
            if os.path.exists(final):
                shutil.rmtree(final)
            os.rename(unfinished, final)
            _sync(self._directory)
            for old in self._steps()[:-self._keep]:
                shutil.rmtree(self._folder(old))
        except (OSError, tf.errors.OpError) as error:
            self._problem = error
        finally:
            tf.io.gfile.rmtree(self._memory)

    def restore(self, state: Mapping[str, Any]) -> dict[str, Any] | None:
        """Restores the newest checkpoint that can be read.

        Synchronisation: every worker calls.

        Args:
            state: As for `save`; all variables exist.

        Returns:
            Its facts, None if there is no checkpoint.

        Raises:
            ValueError: The checkpoint is one of something else than `state`.
        """
        readable = -1
        if self._strategy.is_chief:
            readable = next((step for step in reversed(self._steps()) if self._is_readable(step)), -1)
        # All restore what the chief has found: it alone has removed or replaced anything.
        step = int(self._strategy.broadcast(readable))
        if step < 0:
            return None
        folder = self._folder(step)
        with open(os.path.join(folder, _FACTS), encoding="utf-8") as file:
            facts: dict[str, Any] = json.load(file)
        status = tf.train.Checkpoint(**state).read(os.path.join(folder, _STATE))
        try:
            status.assert_consumed()
        except AssertionError as error:
            status.expect_partial()  # TensorFlow would list everything else that does not fit.
            raise ValueError(
                f"`Trainer`: {folder} is a checkpoint of something else: {str(error).splitlines()[0]} Train the same "
                "model with the same optimizer, or choose another `model_dir`.") from error
        return facts

    def newest(self) -> int | None:
        """The step of the newest complete checkpoint, None if there is none."""
        return max(self._steps(), default=None)

    def read_part(self, step: int, state: Mapping[str, Any]) -> bool:
        """Reads those values of a checkpoint that `state` names; variables that are made later get theirs then.

        Returns:
            Whether it was there: another process may have removed it.

        Raises:
            ValueError: The checkpoint has nothing of a part of `state`.
        """
        folder = self._folder(step)
        try:
            status = tf.train.Checkpoint(**state).read(os.path.join(folder, _STATE))
        except (tf.errors.OpError, OSError):
            if os.path.isdir(folder):
                raise
            return False
        status.expect_partial()
        try:
            status.assert_existing_objects_matched()
        except AssertionError as error:
            raise ValueError(f"`Trainer`: {folder} is a checkpoint of something else: {str(error).splitlines()[0]} "
                             "Evaluate the model that is trained.") from error
        return True

    def _steps(self) -> list[int]:
        """The steps of the complete checkpoints, ascending."""
        found = (_NAME.fullmatch(name) for name in _names_in(self._directory))
        return sorted(int(match.group(1)) for match in found if match)

    def _folder(self, step: int) -> str:
        return os.path.join(self._directory, f"step_{step:09d}")

    def _is_readable(self, step: int) -> bool:
        try:
            prefix = os.path.join(self._folder(step), _STATE)
            for name, dtype in tf.train.load_checkpoint(prefix).get_variable_to_dtype_map().items():
                tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype])
            with open(os.path.join(self._folder(step), _FACTS), encoding="utf-8") as file:
                json.load(file)
        except (OSError, ValueError, tf.errors.OpError) as error:
            logging.warning("Trainer: cannot read the checkpoint %s (%s); taking the one before.", self._folder(step),
                            str(error).splitlines()[0])
            return False
        return True


@contextlib.contextmanager
def _without_remarks() -> Iterator[None]:
    """TensorFlow 2.21 logs how many microseconds it took to collect the values, in the middle of a progress bar."""
    before = logging.get_verbosity()
    logging.set_verbosity(min(before, logging.WARNING))
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _names_in(directory: str) -> list[str]:
    return os.listdir(directory) if os.path.isdir(directory) else []


def _write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    _sync(path)


def _sync(path: str) -> None:
    """Makes what is in a file, or the names in a directory, outlast a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
