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
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ..collective.options import is_integer
from .batch_source import BatchSource, DistributedData, check_type, distribute
from .loop import Loop, make_loop, no_totals
from .progress import KINDS, Progress, make_progress
from .step_outputs import StepOutputs

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

        Raises:
          TypeError: `strategy`, `train_step` or `train_data` is of another type.
          ValueError: `steps_per_loop` is no positive integer, or `progress` is unknown.
        """
        if not isinstance(strategy, tf.distribute.Strategy):
            raise TypeError(
                f"`Trainer`: `strategy` is a {type(strategy).__name__} ({strategy!r}). Expected a "
                "`tf.distribute.Strategy`. Pass `lockstep.MirroredStrategy()`."
            )
        _check_callable("Trainer", "train_step", train_step)
        self._strategy = strategy
        self._steps_per_loop = _positive("Trainer", "steps_per_loop", steps_per_loop)
        # The chief shows the progress of all; a display of the user's own is told on every worker.
        is_shown = getattr(strategy, "is_chief", True) or progress not in KINDS
        self._progress = make_progress(progress if is_shown else "none")
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
        self._train_loop = make_loop(strategy, train_step, self._outputs, self._step,
                                     at_most_one=self._steps_per_loop == 1)
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
            count = _positive("train", "steps", steps)
        else:
            count = _positive("train", "epochs", epochs)
            _check_finite(self._train_data, "train", "train_data", "Use `train(steps=...)`")
        return self._run("train", self._train_loop, self._outputs, self._train_source, count, epochs is not None)

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
        _check_callable("evaluate", "eval_step", eval_step)
        check_type(eval_data, "eval_data")
        data = self._eval_data(eval_data)
        _check_finite(data, "evaluate", "eval_data", "Cut it with `eval_data.take(num_batches)`")
        loop, outputs = self._eval_loop(eval_step)
        return self._run("evaluate", loop, outputs, BatchSource(data, "eval_data"), 1, in_epochs=True)

    def _run(
        self,
        title: str,
        loop: Loop,
        outputs: StepOutputs,
        source: BatchSource,
        count: int,
        in_epochs: bool,
    ) -> dict[str, float]:
        """Runs loops until `count` steps have run or, in epochs, the data has ended `count` times."""
        totals = no_totals()
        num_steps = num_epochs = 0
        self._progress.start(title, source.steps_to_end(count) if in_epochs else count)
        try:
            while (num_epochs if in_epochs else num_steps) < count:
                asked = self._steps_per_loop if in_epochs else min(self._steps_per_loop, count - num_steps)
                with _naming_the_loop(title, self._steps_per_loop):
                    result = loop(source.begin_loop(), tf.constant(asked, tf.int64), totals)
                ran = int(result["num_steps"])
                source.end_loop(ran, ended=ran < asked)
                num_steps += ran
                # An end before the first step is that of an epoch which an earlier call has trained on.
                num_epochs += ran < asked and num_steps > 0
                if ran:
                    self._report(ran, outputs, totals, result["totals"])
                    totals = result["totals"]
        finally:
            self._progress.stop()
        return outputs.averages(totals.values.numpy())

    def _report(
        self, num_steps: int, outputs: StepOutputs, before: tf.RaggedTensor, after: tf.RaggedTensor
    ) -> None:
        """Tells the display what one loop did, from the totals before and after it."""
        added = after.values.numpy() - before.values.numpy()
        self._progress.update(num_steps, num_rows=int(added[0]), values=outputs.averages(added))

    def _make_eval_loop(self, eval_step: Step) -> tuple[Loop, StepOutputs]:
        outputs = StepOutputs("eval_step")
        return make_loop(self._strategy, eval_step, outputs, at_most_one=self._steps_per_loop == 1), outputs

    def _distribute_eval_data(self, eval_data: Any) -> DistributedData:
        return distribute(self._strategy, eval_data, "eval_data")


@contextlib.contextmanager
def _naming_the_loop(title: str, steps_per_loop: int) -> Iterator[None]:
    """Says what to do where TensorFlow reports a cancellation instead of the cause of a failed step."""
    try:
        yield
    except tf.errors.CancelledError as error:
        if steps_per_loop == 1:
            raise
        raise tf.errors.CancelledError(
            error.node_def, error.op, f"`{title}`: a step failed in a loop of up to {steps_per_loop} steps, and "
            "TensorFlow reports that other replicas were cancelled instead of why. Set `steps_per_loop=1` to see it. "
            f"{error.message}") from error


def _check_callable(where: str, name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(
            f"`{where}`: `{name}` is a {type(value).__name__} ({value!r}). Expected a function of one batch. Pass "
            "the function itself, not its result."
        )


def _positive(where: str, name: str, value: Any) -> int:
    if not is_integer(value) or value < 1:
        raise ValueError(f"`{where}`: `{name}` is {value!r}. Expected an integer of 1 or more. Correct `{name}`.")
    return int(value)


def _check_finite(data: DistributedData, where: str, name: str, fix: str) -> None:
    if data.is_infinite:
        raise ValueError(f"`{where}`: `{name}` has no end. Expected data that ends, to count its epochs. {fix}.")
