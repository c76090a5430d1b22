"""Tests of `lockstep.training.Trainer`: the laws of the driver, on 1, 2 and 4 replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lockstep
from lockstep.training import Progress, Trainer
from testing.replicas import mirrored, values_of

REPLICAS = [1, 2, 4]


class Recorder(Progress):
    """Keeps what a display is told."""

    def __init__(self):
        self.events = []

    def start(self, title, total_steps):
        self.events.append(("start", title, total_steps))

    def update(self, num_steps, num_rows, values):
        self.events.append((num_steps, num_rows, dict(values)))

    def stop(self):
        self.events.append("stop")


def batches(rows, size=4):
    return tf.data.Dataset.from_tensor_slices(tf.constant(rows, tf.float32)).batch(size)


def rows_trainer(strategy, rows, **options):
    """A trainer that reports the mean of its rows, as a share and as a vector."""
    options.setdefault("progress", "none")
    return Trainer(strategy, report_rows, batches(rows), **options)


def report_rows(rows):
    return {"share": lockstep.average_loss(rows), "vector": rows}


class LinearModel:
    """w, trained on (w·x)² by SGD at 0.1: three ways to hold a variable."""

    def __init__(self, kind, strategy):
        with strategy.scope():
            if kind == "module":
                module = tf.Module()
                module.w = tf.Variable(1.0)
                self.variable, self.predict = module.w, lambda x: module.w * x
                assert module.trainable_variables == (module.w,)
            elif kind == "keras":
                dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
                model = keras.Sequential([keras.layers.Input((1,)), dense])
                self.variable, self.predict = dense.kernel, lambda x: model(x[:, None])[:, 0]
            else:
                self.variable = tf.Variable(1.0)
                self.predict = lambda x: self.variable * x
            self.optimizer = keras.optimizers.SGD(0.1)

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss(self.predict(x) ** 2)
        self.optimizer.apply_gradients([(tape.gradient(loss, self.variable), self.variable)])
        return {"loss": loss}


@pytest.mark.parametrize("num_replicas", REPLICAS)
def test_evaluate_weighs_steps_by_their_rows(num_replicas):
    trainer = rows_trainer(mirrored(num_replicas), [0.0])
    assert trainer.evaluate(report_rows, batches([1, 2, 3, 4, 10])) == {"share": 4.0, "vector": 4.0}


@pytest.mark.parametrize("num_rows", range(1, 10))
def test_every_number_of_rows_is_averaged_on_four_replicas(num_rows):
    trainer = rows_trainer(mirrored(4), range(1, num_rows + 1))
    mean = (num_rows + 1) / 2
    assert trainer.train(epochs=1) == pytest.approx({"share": mean, "vector": mean}, rel=1e-6)


@pytest.mark.parametrize("kind", ["module", "keras", "plain"])
@pytest.mark.parametrize("num_replicas", REPLICAS)
@pytest.mark.parametrize("rows", [[1, 2, 3, 4, 5], [1, 2, 3]])
def test_replicas_train_as_one_device_does(kind, num_replicas, rows):
    strategy = mirrored(num_replicas)
    model = LinearModel(kind, strategy)
    result = Trainer(strategy, model.train_step, batches(rows), progress="none").train(epochs=1)
    w, weighed = 1.0, 0.0
    for first in range(0, len(rows), 4):
        batch = np.array(rows[first : first + 4], np.float64)
        loss = np.mean((w * batch) ** 2)
        weighed += loss * len(batch)
        w -= 0.1 * 2 * loss / w
    assert result == pytest.approx({"loss": weighed / len(rows)}, rel=1e-6)
    np.testing.assert_allclose(model.variable.numpy().item(), w, rtol=1e-6)


@pytest.mark.parametrize("num_replicas", REPLICAS)
def test_copies_are_bitwise_equal_after_training(num_replicas):
    strategy = mirrored(num_replicas)
    model = LinearModel("plain", strategy)
    Trainer(strategy, model.train_step, batches([1, 2, 3, 4, 5]), progress="none").train(steps=7)
    copies = values_of(strategy, model.variable)
    assert len(copies) == num_replicas
    assert len(set(copies)) == 1


@pytest.mark.parametrize("num_replicas", REPLICAS)
def test_steps_per_loop_changes_no_number(num_replicas):
    def numbers(steps_per_loop):
        strategy = mirrored(num_replicas)
        model = LinearModel("plain", strategy)
        trainer = Trainer(
            strategy, model.train_step, batches([0.1, 0.2, 0.3, 0.4, 0.7], 2), steps_per_loop=steps_per_loop,
            progress="none",
        )
        calls = [{"steps": 4}, {"epochs": 1}, {"epochs": 2}, {"steps": 5}]
        return [trainer.train(**call) for call in calls], trainer.step, model.variable.numpy()

    expected = numbers(1)
    assert expected[1] == 4 + 2 + 6 + 5
    for steps_per_loop in (2, 3, 5):
        assert numbers(steps_per_loop) == expected


@pytest.mark.parametrize("num_replicas", REPLICAS)
@pytest.mark.parametrize("steps_per_loop", [1, 2, 5])
def test_the_step_is_traced_once_over_loops_epochs_and_partial_batches(num_replicas, steps_per_loop):
    traces = []

    def step(rows):
        traces.append(rows.shape)
        return report_rows(rows)

    trainer = Trainer(
        mirrored(num_replicas), step, batches(range(11)), steps_per_loop=steps_per_loop, progress="none"
    )
    trainer.train(steps=7)
    trainer.train(epochs=3)
    trainer.train(steps=1)
    assert len(traces) == 1


def test_a_step_that_makes_variables_is_traced_at_most_once_more():
    strategy = mirrored(2)
    with strategy.scope():
        w = keras.Variable(1.0)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
    traces = []

    def step(x):
        traces.append(1)
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss(w * x)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        return {"loss": loss}

    trainer = Trainer(strategy, step, batches([1, 1, 1, 1, 1]), progress="none")
    trainer.train(steps=2)
    assert len(traces) <= 2
    np.testing.assert_allclose(w.numpy(), 1 - 0.1 - 0.15, rtol=1e-6)


def test_evaluating_again_traces_nothing():
    traces = []

    def step(rows):
        traces.append(1)
        return {"x": rows}

    trainer = rows_trainer(mirrored(2), [0.0])
    data = batches([1, 2, 3, 4, 10])
    assert [trainer.evaluate(step, data) for _ in range(3)] == [{"x": 4.0}] * 3
    assert len(traces) == 1


def test_evaluate_leaves_the_training_where_it_is():
    trainer = rows_trainer(mirrored(2), [1, 2, 3, 4, 10])
    trainer.train(steps=1)
    trainer.evaluate(report_rows, batches([7.0]))
    assert trainer.step == 1
    assert trainer.train(steps=1)["vector"] == 10.0


@pytest.mark.parametrize("steps_per_loop", [1, 2, 5])
def test_training_goes_on_where_it_stopped_in_the_data(steps_per_loop):
    trainer = rows_trainer(mirrored(2), range(12), steps_per_loop=steps_per_loop)
    assert [trainer.train(steps=1)["vector"] for _ in range(4)] == [1.5, 5.5, 9.5, 1.5]


def test_an_epoch_ends_at_the_end_of_the_data():
    trainer = rows_trainer(mirrored(2), range(12))
    trainer.train(steps=1)
    assert trainer.train(epochs=1)["vector"] == 7.5
    assert trainer.step == 3
    trainer.train(steps=3)
    assert trainer.train(epochs=1)["vector"] == 5.5
    assert trainer.step == 9


def test_an_epoch_of_unknown_length_is_counted():
    data = tf.data.Dataset.range(12).filter(lambda row: row % 2 == 0).batch(4)
    trainer = Trainer(mirrored(2), lambda rows: {"x": rows}, data, steps_per_loop=3, progress="none")
    assert trainer.train(epochs=3) == {"x": 5.0}
    assert trainer.step == 6


def test_a_python_if_on_a_tensor_works_in_a_step():
    def step(rows):
        if tf.size(rows) > 1:
            x = rows
        else:
            x = -rows
        return {"x": x}

    assert Trainer(mirrored(2), step, batches([1, 2, 3, 4, 10]), progress="none").train(epochs=1) == {"x": 0.0}


def test_a_step_may_be_a_function_of_tensorflow():
    strategy = mirrored(2)
    model = LinearModel("plain", strategy)
    trainer = Trainer(strategy, tf.function(model.train_step), batches([1, 2, 3]), progress="none")
    assert trainer.train(steps=1) == pytest.approx({"loss": 14 / 3}, rel=1e-6)
    np.testing.assert_allclose(model.variable.numpy(), 1 - 0.2 * 14 / 3, rtol=1e-6)


def test_a_step_may_report_nothing():
    trainer = Trainer(mirrored(2), lambda rows: {}, batches([1, 2, 3]), progress="none")
    assert trainer.train(steps=3) == {}
    assert trainer.step == 3


def test_a_step_that_reports_nothing_still_trains():
    strategy = mirrored(2)
    model = LinearModel("plain", strategy)

    def step(x):
        model.train_step(x)
        return {}

    Trainer(strategy, step, batches([1, 2, 3]), progress="none").train(steps=1)
    np.testing.assert_allclose(model.variable.numpy(), 1 - 0.2 * 14 / 3, rtol=1e-6)


def test_a_distributed_dataset_is_iterated_as_it_is():
    strategy = mirrored(2)
    data = strategy.experimental_distribute_dataset(batches([1, 2, 3, 4, 10]))
    trainer = Trainer(strategy, report_rows, data, progress="none")
    assert trainer.train(epochs=2) == {"share": 4.0, "vector": 4.0}
    assert trainer.evaluate(report_rows, data) == {"share": 4.0, "vector": 4.0}


def test_per_replica_batches_from_a_function_are_weighed_by_their_rows():
    strategy = mirrored(2)
    data = strategy.distribute_datasets_from_function(lambda context: batches([1, 2, 3, 4, 5, 6], 2))
    trainer = Trainer(strategy, lambda rows: {"x": rows}, data, progress="none")
    assert trainer.train(epochs=1) == {"x": 3.5}


def test_other_strategies_run_too():
    trainer = Trainer(tf.distribute.OneDeviceStrategy("CPU:0"), lambda x: {"x": x}, batches([1, 2]), progress="none")
    assert trainer.train(epochs=2) == {"x": 1.5}


def test_the_display_is_told_of_every_loop():
    display = Recorder()
    trainer = rows_trainer(mirrored(2), [1, 2, 3, 4, 10], steps_per_loop=2, progress=display)
    trainer.train(steps=3)
    assert display.events == [
        ("start", "train", 3),
        (2, 5, {"share": 4.0, "vector": 4.0}),
        (1, 4, {"share": 2.5, "vector": 2.5}),
        "stop",
    ]


def test_the_display_knows_the_length_of_epochs_and_evaluations():
    display = Recorder()
    trainer = rows_trainer(mirrored(2), [1, 2, 3, 4, 10], progress=display)
    trainer.train(steps=1)
    trainer.train(epochs=2)
    trainer.evaluate(report_rows, batches([1, 2, 3, 4, 10]))
    starts = [event for event in display.events if event[0] == "start"]
    assert starts == [("start", "train", 1), ("start", "train", 3), ("start", "evaluate", 2)]


def test_the_display_stops_when_the_step_raises():
    display = Recorder()
    trainer = Trainer(mirrored(2), lambda rows: 1.0, batches([1.0]), progress=display)
    with pytest.raises(TypeError, match="`train_step`: returned float"):
        trainer.train(steps=1)
    assert display.events == [("start", "train", 1), "stop"]


def test_silent_means_silent(capsys):
    rows_trainer(mirrored(2), [1.0]).train(steps=2)
    assert capsys.readouterr().out == ""


def test_the_step_counter_is_one_int64_variable():
    trainer = rows_trainer(mirrored(2), [1.0])
    assert trainer.step == 0 and isinstance(trainer.step, int)
    trainer.train(steps=3)
    assert trainer.step == 3
    assert trainer.step_variable.dtype == tf.int64
    assert trainer.step_variable.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA


@pytest.mark.parametrize("num_replicas", REPLICAS)
def test_training_goes_on_after_a_batch_that_raised(num_replicas):
    limit = tf.Variable(2.0)

    def step(rows):
        tf.debugging.assert_less(tf.reduce_max(rows), limit.read_value(), message="too large")
        return {"x": rows}

    trainer = Trainer(mirrored(num_replicas), step, batches([1, 1, 3, 3]), progress="none")
    with pytest.raises(tf.errors.InvalidArgumentError):
        trainer.train(steps=1)
    limit.assign(5.0)
    assert trainer.train(steps=2) == {"x": 2.0}
