"""Runs a call of the trainer: loop after loop to its limit, and between two of them what is to be done on the host.

    after each loop of training steps    the log, the actions, whether all workers stop, a checkpoint where one is due
    after an evaluation                  the log, the actions for evaluations
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import tensorflow as tf

from ..strategy import Strategy
from ..strategy.launch_errors import naming_the_replica
from . import finite_outputs
from .actions import Action, taken
from .batch_source import BatchSource
from .call_record import Call
from .limit import Limit
from .loop import Loop, no_totals, with_totals
from .progress import Progress
from .run import Run
from .step_outputs import StepOutputs
from .stop_request import EXIT_STOPPED, StopRequest


class Metrics(Protocol):
    """Numbers that steps add up in variables, such as Keras's metrics."""

    def reset(self) -> None:
        """Begins anew."""

    def result(self) -> dict[str, float]:
        """The numbers now. Synchronisation: every worker calls."""


@dataclasses.dataclass(frozen=True)
class Work:
    """What a call runs.

    Attributes:
        loop: See loop.py.
        outputs: What its totals mean.
        source: Where its batches come from.
        actions: Called after each loop of training steps, or once after an evaluation.
        is_training: Whether it is the run's training.
        metrics: What the steps add up in variables of their own, None if nothing is.
    """

    loop: Loop
    outputs: StepOutputs
    source: BatchSource
    actions: Sequence[Action]
    is_training: bool
    metrics: Metrics | None = None


class CallRunner:
    """Runs the calls of one trainer.

    Args:
        strategy: Whose replicas run the steps.
        step: The counter of training steps.
        kept: What is kept of the run.
        training_source: The position in the training data, for checkpoints.
        progress: Shows how it goes.
        steps_per_loop: The most steps of one loop.
        clock: Tells the time in seconds.
    """

    def __init__(self, strategy: tf.distribute.Strategy, step: tf.Variable, kept: Run, training_source: BatchSource,
                 progress: Progress, steps_per_loop: int, clock: Callable[[], float] = time.monotonic):
        self._strategy, self._step, self._kept = strategy, step, kept
        self._training_source = training_source
        self._progress = progress
        self._steps_per_loop = steps_per_loop
        self._clock = clock

    def run(self, call: Call, work: Work, limit: Limit) -> dict[str, float]:
        """Runs a call to its end, or what an interrupted one has left.

        Returns:
            The averages over all of the call's rows.

        Raises:
            SystemExit: A signal has asked for it; a checkpoint is written.
        """
        if call.result is not None and limit.is_reached(call):
            return call.result
        self._kept.calls.goes_on(call)
        if work.metrics is not None and not call.totals:
            work.metrics.reset()
        with StopRequest(self._strategy, catches_signals=self._kept.is_written) as stop:
            self._progress.start(call.kind, limit.steps_left(call, work.source))
            try:
                while not limit.is_reached(call):
                    rows, outputs = self._run_loop(call, work, limit)
                    if rows is not None:
                        self._end_loop(call, work, limit, rows, outputs, stop)
            finally:
                self._progress.stop()
            call.result = self._reported(work, call.totals)
            if work.is_training:
                self._kept.save(self._step, work.source)
                self._kept.finish()
            else:
                self._log(call, int(call.totals[0]), call.result)
                self._take_actions(work, call.result, stop)
            self._agree(call, work, limit, stop)
        return call.result

    def _run_loop(self, call: Call, work: Work, limit: Limit) -> tuple[int | None, dict[str, float]]:
        """Runs one loop; returns its rows, None if the data had ended, and its averages."""
        began = self._clock()
        asked = limit.steps_of_loop(call, self._steps_per_loop)
        if work.is_training:
            asked = min(asked, self._kept.steps_to_save(int(self._step.read_value())) or asked)
        before = with_totals(call.totals) if call.totals else no_totals()
        given = work.source.begin_loop(), tf.constant(asked, tf.int64), before
        try:
            with self._naming_the_replica():
                result = work.loop(*given)
        except tf.errors.InvalidArgumentError as error:
            told = finite_outputs.named(error, work.loop.get_concrete_function(*given).variables)
            if told is None:
                raise
            raise told from error
        ran = int(result["num_steps"])
        work.source.end_loop(ran, ended=ran < asked)
        call.num_steps += ran
        # An end before the first step is that of an epoch which an earlier call has trained on.
        call.num_epochs += ran < asked and call.num_steps > 0
        totals = result["totals"].values.numpy()
        added = totals - before.values.numpy()
        if ran:
            call.totals = totals.tolist()
        call.seconds += self._clock() - began
        if not ran:
            return None, {}
        outputs = self._reported(work, added)
        self._progress.update(ran, num_rows=int(added[0]), values=outputs)
        return int(added[0]), outputs

    def _reported(self, work: Work, totals: Sequence[float]) -> dict[str, float]:
        """The averages that totals mean, and the metrics of the call so far."""
        averages = work.outputs.averages(totals)
        return averages if work.metrics is None else {**averages, **work.metrics.result()}

    def _naming_the_replica(self) -> contextlib.AbstractContextManager[None]:
        return naming_the_replica(self._strategy) if isinstance(self._strategy, Strategy) else contextlib.nullcontext()

    def _end_loop(self, call: Call, work: Work, limit: Limit, rows: int, outputs: dict[str, float],
                  stop: StopRequest) -> None:
        """What comes after a loop.

        Raises:
            SystemExit: A signal has asked for it; a checkpoint is written.
        """
        if work.is_training:
            self._log(call, rows, outputs)
            self._take_actions(work, outputs, stop)
            if limit.is_over_time(call):
                stop.ask()
        self._agree(call, work, limit, stop)
        if work.is_training and self._kept.is_due(int(self._step.read_value())) and not limit.is_reached(call):
            self._kept.save(self._step, work.source)

    def _log(self, call: Call, rows: int, outputs: dict[str, float]) -> None:
        self._kept.log(call, int(self._step.read_value()), rows, outputs)

    def _take_actions(self, work: Work, outputs: dict[str, float], stop: StopRequest) -> None:
        step = int(self._step.read_value())
        if any([taken(action, step, outputs) for action in work.actions]):
            stop.ask()

    def _agree(self, call: Call, work: Work, limit: Limit, stop: StopRequest) -> None:
        """Stops the call where any worker has asked for it.

        Raises:
            SystemExit: A signal has asked for it; a checkpoint is written.
        """
        may_stop = work.actions or limit.seconds is not None or self._kept.is_written
        call.was_stopped = stop.is_agreed() if may_stop else False
        if stop.comes_of_a_signal:
            call.was_stopped = False
            if call.result is None and not work.is_training:
                call.begin_again()
            self._kept.save(self._step, self._training_source)
            self._kept.finish()
            raise SystemExit(EXIT_STOPPED)
