"""The training driver: runs a user's step over data, on all replicas of a strategy.

The top of the library. It owns the loop, the position in the data and the count of the steps; the
model, the optimizer and the step stay the user's. What a call runs is in call_runner.py, what is kept
of a run in kept_run.py.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from .actions import Action, called
from .batch_source import BatchSource, distribute
from .call_record import Call
from .call_runner import CallRunner, Work
from .checks import check_callable, positive, positive_number
from .evaluations import Evaluations
from .kept_run import KeptRun, make_run
from .keras_steps import KerasSteps, metrics_of
from .limit import Limit
from .loop import make_loop, no_totals
from .progress import KINDS, Progress, make_progress
from .run import Run
from .step_outputs import StepOutputs
from .stopping import StopOnNaN

Step = Callable[[Any], Any]


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

    Attributes:
      eval_step: The step of evaluation of the Keras model that it was made from, else None.
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
        eval_actions: Sequence[Action] = (),
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
          eval_actions: The same after each evaluation, with its averages. One that returns True ends
            `train_and_evaluate`.
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
        for name, given in (("actions", actions), ("eval_actions", eval_actions)):
            for action in given:
                check_callable("Trainer", name, action)
        self._kept = make_run(strategy, model_dir, state, settings, save_every, keep, [*actions, *eval_actions])
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
        self.eval_step: Step | None = None
        outputs = StepOutputs("train_step")
        loop = make_loop(strategy, train_step, outputs, self._step,
                         checks_outputs=any(isinstance(action, StopOnNaN) for action in actions))
        self._training = Work(loop, outputs, self._train_source, tuple(actions), is_training=True,
                              metrics=metrics_of(train_step))
        self._runner = self._make_runner(self._kept)
        self._evaluations = Evaluations(strategy, tuple(eval_actions))
        for action in (*actions, *eval_actions):
            called(action, "attach", self)

    @classmethod
    def from_keras(cls, model: Any, train_data: tf.data.Dataset | tf.distribute.DistributedDataset,
                   **options: Any) -> "Trainer":
        """A trainer for a compiled Keras model: its loss, metrics and optimizer, and the numbers of its `fit`.

        `train(epochs=1)` returns what `fit` reports of an epoch: the metrics of the rows of this call. `eval_step` is
        the model's step of evaluation.

        >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, kernel_initializer="ones")])
        ...     model.compile(keras.optimizers.SGD(0.0), "mse")
        >>> data = tf.data.Dataset.from_tensor_slices(([[1.0], [2.0], [3.0]], [[0.0], [0.0], [0.0]])).batch(2)
        >>> trainer = lockstep.training.Trainer.from_keras(model, data, progress="none")
        >>> result = trainer.train(epochs=1)    # (1 + 4 + 9) / 3
        >>> round(result["loss"], 3), result == trainer.evaluate(trainer.eval_step, data)
        (4.667, True)

        Args:
          model: A `keras.Model` that was made and compiled under `strategy.scope()`.
          train_data: A dataset of (x, y) or (x, y, sample weights), as `fit` takes it, or a distributed one.
          **options: Those of `Trainer`; where it is not given, `steps_per_loop` is the model's `steps_per_execution`,
            and `state`, with a `model_dir`, the model and its optimizer.

        Raises:
          TypeError: `model` is none of Keras; otherwise as `Trainer`.
          ValueError: The model is not compiled, with `jit_compile` or `run_eagerly`, or under no strategy of Lockstep;
            otherwise as `Trainer`.
        """
        steps = KerasSteps(model)
        trainer = cls(steps.strategy, steps.train_step, train_data, **steps.options(options))
        trainer.eval_step = steps.eval_step
        return trainer

    @property
    def step(self) -> int:
        """How many training steps have ended since the trainer was made."""
        return int(self._step.read_value())

    @property
    def step_variable(self) -> tf.Variable:
        """The int64 variable behind `step`, for checkpoints and schedules."""
        return self._step

    def train(self, *, steps: int | None = None, epochs: int | None = None,
              seconds: float | None = None) -> dict[str, float]:
        """Trains for a number of steps, until the data has ended a number of times, or for a time.

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
          seconds: For how long to train, alone or beside one of the others: it ends with the first loop that passes
            the time on any worker. A run that goes on counts the time of its earlier starts.

        Returns:
          A Python float for each key of the step's dict, averaged over the rows of all steps of this
          call, in the order of that dict.

        Raises:
          ValueError: None of the arguments, or `steps` and `epochs`, are given, or one is not positive;
            `epochs` with data that has no end; the data has no batch; the step returned values of a
            wrong shape or other keys than before.
          TypeError: The step returned no dict, or values that are no numbers.
        """
        return self._train(Limit.checked("train", self._train_data, steps, epochs, seconds)).result or {}

    def _train(self, limit: Limit) -> Call:
        try:
            return self._run("train", self._training, limit)
        finally:
            for action in self._training.actions:
                called(action, "end")

    def train_and_evaluate(
        self,
        eval_step: Step,
        eval_data: tf.data.Dataset | tf.distribute.DistributedDataset,
        *,
        every: int,
        steps: int | None = None,
        epochs: int | None = None,
        seconds: float | None = None,
    ) -> dict[str, float]:
        """Trains, and evaluates after every so many steps or epochs, and at the end.

        The same as `train` and `evaluate` in turn: checkpoints are written before each evaluation. It ends early where
        an action has asked for it, after one more evaluation, or one of `eval_actions`.

        Synchronisation: under several workers, all call it with the same arguments.

        >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> data = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0]).batch(2)
        >>> trainer = lockstep.training.Trainer(
        ...     strategy, lambda x: {}, data, progress="none",
        ...     eval_actions=[lambda step, outputs: print(step, outputs)])
        >>> trainer.train_and_evaluate(lambda x: {"x": x}, data, every=2, steps=5)
        2 {'x': 2.0}
        4 {'x': 2.0}
        5 {'x': 2.0}
        {'x': 2.0}

        Args:
          eval_step: As for `evaluate`.
          eval_data: As for `evaluate`.
          every: How many steps lie between two evaluations, or epochs where `epochs` is given.
          steps: As for `train`.
          epochs: As for `train`.
          seconds: As for `train`; evaluations do not count.

        Returns:
          What the last evaluation returned.

        Raises:
          TypeError, ValueError: As `train` and `evaluate` raise them.
        """
        where = "train_and_evaluate"
        positive(where, "every", every)
        whole = Limit.checked(where, self._train_data, steps, epochs, seconds)
        self._evaluations.check(where, eval_step, eval_data)
        done, spent = 0, 0.0
        while True:
            trained = self._train(whole.part(every, done, spent))
            evaluated = self._evaluate(eval_step, eval_data)
            done += trained.num_steps if epochs is None else trained.num_epochs
            spent += trained.seconds
            if trained.was_stopped or evaluated.was_stopped or done in (steps, epochs):
                return evaluated.result or {}

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
        self._evaluations.check("evaluate", eval_step, eval_data)
        return self._evaluate(eval_step, eval_data).result or {}

    def evaluate_continuously(
        self,
        eval_step: Step,
        eval_data: tf.data.Dataset | tf.distribute.DistributedDataset,
        *,
        until_step: int | None = None,
        timeout_seconds: float | None = None,
        poll_seconds: float = 5.0,
    ) -> dict[str, float]:
        """Evaluates the checkpoints that another process writes, each as it appears, and trains nothing.

        For a program that runs beside the training one, with the same `model_dir` and `state`, as the task "evaluator"
        of TF_CONFIG or on its own. It writes `model_dir/evaluations.jsonl`, and nothing else but what `eval_actions`
        write. Checkpoints that follow each other faster than it evaluates are passed over.

        >>> strategy = lockstep.MirroredStrategy(["CPU:0"])
        >>> data = tf.data.Dataset.from_tensor_slices([1.0, 2.0]).batch(2)
        >>> trainer = lockstep.training.Trainer(strategy, lambda x: {}, data)
        >>> trainer.evaluate_continuously(lambda x: {}, data)
        Traceback (most recent call last):
        ...
        ValueError: `evaluate_continuously`: the trainer keeps nothing. Give it `model_dir` and `state`.

        Args:
          eval_step: As for `evaluate`.
          eval_data: As for `evaluate`.
          until_step: Ends after the first checkpoint of this step or a later one.
          timeout_seconds: Ends when there was no new checkpoint for so long; None waits on.
          poll_seconds: How long it waits before it looks for a new one.

        Returns:
          What the last evaluation returned; nothing if there was none.

        Raises:
          TypeError: As `evaluate` raises it.
          ValueError: The same, or the trainer keeps nothing, has trained, or belongs to several workers.
        """
        where = "evaluate_continuously"
        kept = self._run_that_is_kept(where)
        self._evaluations.check(where, eval_step, eval_data)
        for name, given in (("until_step", until_step), ("timeout_seconds", timeout_seconds),
                            ("poll_seconds", poll_seconds)):
            if given is not None:
                positive_number(where, name, given)
        followed = kept.followed(where)
        runner = self._make_runner(followed)
        result: dict[str, float] = {}
        for step in followed.new_checkpoints(poll_seconds, timeout_seconds):
            self._step.assign(step)
            call = followed.calls.begin("evaluate")
            result = runner.run(call, self._evaluations.work(eval_step, eval_data), Limit(epochs=1))
            if call.was_stopped or until_step is not None and step >= until_step:
                break
        return result

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what is written once."""
        return bool(getattr(self._strategy, "is_chief", True))

    @property
    def is_kept(self) -> bool:
        """Whether it has a `model_dir`."""
        return isinstance(self._kept, KeptRun)

    def save(self, name: str) -> None:
        """Writes the state as it is now to `model_dir/name`, apart from the run's checkpoints; replaces an older one.

        Synchronisation: every worker calls.

        Args:
          name: The name of the folder.

        Raises:
          ValueError: The trainer keeps nothing, or the name is none of a new folder.
          OSError: It cannot be written.
        """
        self._run_that_is_kept("save").save_apart(name, self.step)

    def load(self, name: str) -> int:
        """Reads back what `save` wrote: the state's values; `step` and the position in the data stay.

        Synchronisation: every worker calls.

        Args:
          name: The name of the folder.

        Returns:
          The step at which it was saved.

        Raises:
          ValueError: The trainer keeps nothing, nothing is there, or it is of another model.
        """
        return self._run_that_is_kept("load").load(name)

    def _run_that_is_kept(self, where: str) -> KeptRun:
        if not isinstance(self._kept, KeptRun):
            raise ValueError(f"`{where}`: the trainer keeps nothing. Give it `model_dir` and `state`.")
        return self._kept

    def _make_runner(self, run: Run) -> CallRunner:
        return CallRunner(self._strategy, self._step, run, self._train_source, self._progress, self._steps_per_loop)

    def _evaluate(self, eval_step: Step, eval_data: Any) -> Call:
        """Runs an evaluation, or finds that the run has it."""
        return self._run("evaluate", self._evaluations.work(eval_step, eval_data), Limit(epochs=1))

    def _run(self, kind: str, work: Work, limit: Limit) -> Call:
        call = self._begin(kind)
        self._runner.run(call, work, limit)
        return call

    def _begin(self, kind: str) -> Call:
        """A call of the program; the first one goes on where an earlier run has stopped."""
        self._kept.resume(self._trace, self._step, self._train_source)
        return self._kept.calls.begin(kind)

    def _trace(self) -> None:
        """Traces the training loop, so that all that the step makes exists."""
        self._training.loop.get_concrete_function(self._train_source.iterator, tf.constant(1, tf.int64), no_totals())
