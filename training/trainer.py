"""The training driver: runs a user's step over data, on all replicas of a strategy.

The top of the library. It owns the loop, the position in the data and the count of the steps; the
model, the optimizer and the step stay the user's.

    strategy = lockstep.MirroredStrategy()
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.Adam()

    def train_step(batch):
        images, labels = batch
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss(loss_fn(labels, model(images, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return {"loss": loss}

    trainer = Trainer(strategy, train_step, dataset.batch(128), steps_per_loop=10)
    trainer.train(epochs=5)
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ..strategy import Strategy
from ..strategy.launch_errors import naming_the_replica
from .actions import Action, taken
from .batch_source import BatchSource, DistributedData, check_type, distribute
from .call_record import Call
from .checks import check_callable, check_finite, positive
from .loop import Loop, make_loop, no_totals, with_totals
from .progress import KINDS, Progress, make_progress
from .run import Run
from .step_outputs import StepOutputs
from .stop_request import EXIT_STOPPED, StopRequest

Step = Callable[[Any], Any]

# How many evaluations (steps, and data sets) a trainer keeps traced.
_EVALUATIONS_KEPT = 8


class Trainer:
    """Trains by running a step on every replica, several steps a launch, and reports averages.

    The step is called on each replica with that replica's part of a global batch; it computes the
    loss, applies the gradients and returns a dict of what to report, which may be empty:

    - a scalar is this replica's share, as `lockstep.average_loss` returns it. Shares are summed
      over the sync group; over several steps the sums are averaged, each weighed with its step's
      rows in all replicas.
    - a vector holds one value for each row, floats, integers or bools. It is averaged over all
      rows of all replicas and steps.

    Keys and kinds are the same in every step. The rows of a step are the leading dimension of the
    first tensor of the batch. The trainer knows nothing of the model: a Keras model, a `tf.Module`
    and plain variables made under `strategy.scope()` do alike.

    Synchronisation: under several workers, all call `train` and `evaluate` with the same arguments
    in the same order. Besides what the step itself synchronises, each step sums its outputs over the
    sync group once.

    >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     w = tf.Variable(1.0)
    >>> def train_step(x):
    ...     loss = lockstep.average_loss(w * x)
    ...     return {"loss": loss, "x": x}
    >>> data = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0, 4.0, 10.0]).batch(4)
    >>> trainer = lockstep.training.Trainer(strategy, train_step, data, progress="none")
    >>> trainer.train(epochs=1)
    {'loss': 4.0, 'x': 4.0}
    >>> trainer.step
    2
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        train_step: Step,
        train_data: tf.data.Dataset | tf.distribute.DistributedDataset,
        *,
        steps_per_loop: int = 1,
        progress: str | Progress = "auto",
        actions: Sequence[Action] = (),
        model_dir: str | None = None,
        state: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        save_every: int | None = None,
        keep: int = 3,
    ) -> None:
        """Distributes the data and makes the step counter; nothing is traced or read yet.

        Args:
          strategy: Whose replicas run the step.
          train_step: A function or `tf.function` of one batch; it returns a dict, as told above.
          train_data: A `tf.data.Dataset` of global batches, which the trainer distributes, or an
            already distributed dataset. A finite one is read again and again, as far as `train` asks.
          steps_per_loop: How many steps one launch runs. More of them cost less Python between
            steps, and show progress and take Ctrl-C less often; the numbers are the same.
          progress: "bar", "lines", "none", "auto" (a bar on a terminal, else lines), which the chief
            shows, or a `Progress`, which every worker tells.
          actions: Called on every worker after each loop of training steps with the number of steps
            so far and the loop's averages. One that returns True stops the training after this step.
          model_dir: The folder of the run. A program that is started again with the same folder goes
            on where its newest checkpoint stands, exactly: also after SIGKILL. SIGTERM and Ctrl-C
            save a checkpoint and exit with code 75.
          state: What checkpoints hold besides the step, the position in the data and the random
            streams, by name: models, optimizers, variables.
          settings: What must be the same whenever the run is started, of the types that JSON knows.
          save_every: Steps between two checkpoints; None writes one at the end of each `train`.
          keep: How many checkpoints are kept, the newest.

        Raises:
          TypeError: `strategy`, `train_step` or `train_data` is of another type, or an action is no
            function.
          ValueError: A number is no positive integer, `progress` is unknown, arguments of a run that
            is kept are given without `model_dir` or do not fit, or the folder holds another run.
          OSError: The folder cannot be written to.
        """
        if not isinstance(strategy, tf.distribute.Strategy):
            raise TypeError(
                f"`Trainer`: `strategy` is a {type(strategy).__name__} ({strategy!r}). Expected a "
                "`tf.distribute.Strategy`. Pass `lockstep.MirroredStrategy()`."
            )
        check_callable("Trainer", "train_step", train_step)
        self._strategy = strategy
        self._steps_per_loop = positive("Trainer", "steps_per_loop", steps_per_loop)
        # The chief shows the progress of all; a display of the user's own is told on every worker.
        is_shown = getattr(strategy, "is_chief", True) or progress not in KINDS
        self._progress = make_progress(progress if is_shown else "none")
        for action in actions:
            check_callable("Trainer", "actions", action)
        self._actions = tuple(actions)
        self._kept = Run(strategy, model_dir, state, settings, save_every, keep, self._actions)
        self._train_data = distribute(strategy, train_data, "train_data")
        self._train_source = BatchSource(self._train_data, "train_data")
        with strategy.scope():
            self._step = tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                name="step",
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        self._outputs = StepOutputs("train_step")
        self._train_loop = make_loop(strategy, train_step, self._outputs, self._step)
        # Kept, so that an evaluation after every epoch neither traces nor distributes again.
        self._eval_loop = functools.lru_cache(_EVALUATIONS_KEPT)(self._make_eval_loop)
        self._eval_data = functools.lru_cache(_EVALUATIONS_KEPT)(self._distribute_eval_data)

    @property
    def step(self) -> int:
        """How many training steps have ended since the trainer was made."""
        return int(self._step.read_value())

    @property
    def step_variable(self) -> tf.Variable:
        """The int64 variable behind `step`, for checkpoints and schedules."""
        return self._step

    def train(self, *, steps: int | None = None, epochs: int | None = None) -> dict[str, float]:
        """Trains for a number of steps, or until the data has ended a number of times.

        Goes on in the data where the last call stopped. With `steps`, a finite dataset is started
        anew at its end, as often as needed. With `epochs`, the first epoch is what the last call left
        of its epoch, and a whole one where it left nothing.

        Synchronisation: under several workers, all call it with the same argument.

        >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> data = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0]).batch(2)
        >>> trainer = lockstep.training.Trainer(strategy, lambda x: {"x": x}, data, progress="none")
        >>> trainer.train(steps=1)
        {'x': 1.5}
        >>> trainer.train(epochs=1)
        {'x': 3.0}

        Args:
          steps: How many steps to run, 1 or more.
          epochs: How many times to reach the end of the data, 1 or more.

        Returns:
          A Python float for each key of the step's dict, averaged over the rows of all steps of this
          call, in the order of that dict.

        Raises:
          ValueError: None or both of the arguments are given, or one is no positive integer;
            `epochs` with data that has no end; the data has no batch; the step returned values of a
            wrong shape or other keys than before.
          TypeError: The step returned no dict, or values that are no numbers.
        """
        if (steps is None) == (epochs is None):
            raise ValueError(
                f"`train`: got `steps` {steps} and `epochs` {epochs}. Expected one of the two. Write "
                "`train(steps=1000)` or `train(epochs=10)`."
            )
        if epochs is None:
            count = positive("train", "steps", steps)
        else:
            count = positive("train", "epochs", epochs)
            check_finite(self._train_data, "train", "train_data", "Use `train(steps=...)`")
        return self._run(self._begin("train"), self._train_loop, self._outputs, self._train_source, count,
                         epochs is not None)

    def evaluate(
        self,
        eval_step: Step,
        eval_data: tf.data.Dataset | tf.distribute.DistributedDataset,
    ) -> dict[str, float]:
        """Runs a step over all of a dataset, from its start to its end, and averages.

        Does not touch the position in the training data nor `step`. A later call with the same
        function and dataset reuses what was traced; the last few are kept.

        Synchronisation: under several workers, all call it with their part of the same data.

        >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> data = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0, 4.0, 10.0]).batch(4)
        >>> trainer = lockstep.training.Trainer(strategy, lambda x: {}, data, progress="none")
        >>> trainer.evaluate(lambda x: {"loss": lockstep.average_loss(x), "large": x > 3.0}, data)
        {'loss': 4.0, 'large': 0.4}

        Args:
          eval_step: A function or `tf.function` of one batch; it returns a dict, as the class tells.
          eval_data: A finite `tf.data.Dataset` of global batches, or a distributed dataset.

        Returns:
          A Python float for each key, averaged over all rows, in the order of the step's dict.

        Raises:
          TypeError: `eval_step` or `eval_data` is of another type; the step returned no dict, or
            values that are no numbers.
          ValueError: The data has no end or no batch; the step returned values of a wrong shape.
        """
        check_callable("evaluate", "eval_step", eval_step)
        check_type(eval_data, "eval_data")
        data = self._eval_data(eval_data)
        check_finite(data, "evaluate", "eval_data", "Cut it with `eval_data.take(num_batches)`")
        loop, outputs = self._eval_loop(eval_step)
        return self._run(self._begin("evaluate"), loop, outputs, BatchSource(data, "eval_data"), 1, in_epochs=True)

    def _run(
        self,
        call: Call,
        loop: Loop,
        outputs: StepOutputs,
        source: BatchSource,
        count: int,
        in_epochs: bool,
    ) -> dict[str, float]:
        """Runs loops until `count` steps have run or, in epochs, the data has ended `count` times."""
        is_training = source is self._train_source
        if call.result is not None and call.is_done(count, in_epochs):
            return call.result
        self._kept.calls.goes_on(call)
        totals = with_totals(call.totals) if call.totals else no_totals()
        self._progress.start(call.kind, source.steps_to_end(count - call.num_epochs) if in_epochs
                             else count - call.num_steps)
        try:
            with StopRequest(self._strategy, catches_signals=is_training and self._kept.is_kept) as stop:
                while not call.is_done(count, in_epochs):
                    asked = self._steps_per_loop if in_epochs else min(self._steps_per_loop, count - call.num_steps)
                    if is_training:
                        asked = min(asked, self._kept.steps_to_save(self.step) or asked)
                    with self._errors_name_the_replica():
                        result = loop(source.begin_loop(), tf.constant(asked, tf.int64), totals)
                    ran = int(result["num_steps"])
                    source.end_loop(ran, ended=ran < asked)
                    call.num_steps += ran
                    # An end before the first step is that of an epoch which an earlier call has trained on.
                    call.num_epochs += ran < asked and call.num_steps > 0
                    if ran:
                        added = result["totals"].values.numpy() - totals.values.numpy()
                        totals = result["totals"]
                        call.totals = totals.values.numpy().tolist()
                        values = outputs.averages(added)
                        self._progress.update(ran, num_rows=int(added[0]), values=values)
                        if is_training:
                            self._end_loop(call, int(added[0]), values, stop)
                            if self._kept.is_due(self.step) and not call.is_done(count, in_epochs):
                                self._kept.save(self._step, source)
        finally:
            self._progress.stop()
        call.result = outputs.averages(totals.values.numpy())
        if is_training:
            self._kept.save(self._step, source)
        else:
            self._kept.log(call, self.step, int(call.totals[0]), call.result)
        return call.result

    def _end_loop(self, call: Call, rows: int, values: dict[str, float], stop: StopRequest) -> None:
        """What comes after a loop of training steps: the log, the actions, a stop.

        Raises:
          SystemExit: A signal has asked for it; a checkpoint is written.
        """
        step = self.step
        self._kept.log(call, step, rows, values)
        for action in self._actions:
            if taken(action, step, values):
                stop.ask()
        is_agreed = stop.is_agreed() if self._actions or self._kept.is_kept else False
        call.was_stopped = is_agreed and not stop.comes_of_a_signal
        if stop.comes_of_a_signal:
            self._kept.save(self._step, self._train_source)
            raise SystemExit(EXIT_STOPPED)

    def _begin(self, kind: str) -> Call:
        """A call of the program; the first one goes on where an earlier run has stopped."""
        self._kept.resume(self._trace, self._step, self._train_source)
        return self._kept.calls.begin(kind)

    def _trace(self) -> None:
        """Traces the training loop, so that all that the step makes exists."""
        self._train_loop.get_concrete_function(self._train_source.iterator, tf.constant(1, tf.int64), no_totals())

    def _errors_name_the_replica(self) -> contextlib.AbstractContextManager[None]:
        return naming_the_replica(self._strategy) if isinstance(self._strategy, Strategy) else contextlib.nullcontext()

    def _make_eval_loop(self, eval_step: Step) -> tuple[Loop, StepOutputs]:
        outputs = StepOutputs("eval_step")
        return make_loop(self._strategy, eval_step, outputs), outputs

    def _distribute_eval_data(self, eval_data: Any) -> DistributedData:
        return distribute(self._strategy, eval_data, "eval_data")
