"""Tests of `lockstep.training.Trainer`: what it refuses, with the name of the argument or key."""

import numpy as np
import pytest
import tensorflow as tf

import lockstep
from lockstep.training import Trainer
from testing.replicas import mirrored


def batches(rows, size=4):
    return tf.data.Dataset.from_tensor_slices(tf.constant(rows, tf.float32)).batch(size)


def rows_trainer(strategy, rows, **options):
    return Trainer(strategy, report_rows, batches(rows), progress="none", **options)


def report_rows(rows):
    return {"share": lockstep.average_loss(rows), "vector": rows}


def test_a_changed_key_is_refused_where_functions_run_eagerly():
    keys = iter("aab")
    tf.config.run_functions_eagerly(True)
    try:
        trainer = Trainer(mirrored(1), lambda rows: {next(keys): rows}, batches([1.0]), progress="none")
        trainer.train(steps=2)
        with pytest.raises(ValueError, match="returned {vector 'b'} after {vector 'a'}"):
            trainer.train(steps=1)
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize("output, error", [({"m": [[1.0]]}, ValueError), ({"m": "x"}, TypeError), (None, TypeError)])
def test_bad_outputs_are_refused_on_all_replicas(output, error):
    trainer = rows_trainer(mirrored(2), [1.0])
    with pytest.raises(error, match="`eval_step`: (the output 'm'|returned NoneType)"):
        trainer.evaluate(lambda rows: output, batches([1.0]))


@pytest.mark.parametrize("arguments", [{}, {"steps": 1, "epochs": 1}])
def test_steps_or_epochs_or_seconds_are_expected(arguments):
    with pytest.raises(ValueError, match="Expected steps or epochs, and seconds beside them or alone"):
        rows_trainer(mirrored(1), [1.0]).train(**arguments)


@pytest.mark.parametrize("name", ["steps", "epochs"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_counts_below_one_are_refused(name, value):
    with pytest.raises(ValueError, match=f"`train`: `{name}` is {value}. Expected an integer of 1 or more"):
        rows_trainer(mirrored(1), [1.0]).train(**{name: value})


@pytest.mark.parametrize("value", [0, -2, 1.5, "3"])
def test_steps_per_loop_below_one_is_refused(value):
    with pytest.raises(ValueError, match=f"`Trainer`: `steps_per_loop` is {value!r}"):
        rows_trainer(mirrored(1), [1.0], steps_per_loop=value)


def test_epochs_of_endless_data_are_refused_before_training():
    trainer = Trainer(mirrored(2), report_rows, batches([1.0]).repeat(), progress="none")
    with pytest.raises(ValueError, match="`train`: `train_data` has no end"):
        trainer.train(epochs=1)
    assert trainer.step == 0
    assert trainer.train(steps=3) == {"share": 1.0, "vector": 1.0}
    with pytest.raises(ValueError, match="`evaluate`: `eval_data` has no end"):
        trainer.evaluate(report_rows, batches([1.0]).repeat())


@pytest.mark.parametrize("arguments", [{"steps": 2}, {"epochs": 1}])
def test_empty_data_is_refused(arguments):
    with pytest.raises(ValueError, match="`train_data`: ended before its first batch"):
        rows_trainer(mirrored(2), []).train(**arguments)


def test_empty_evaluation_data_is_refused():
    with pytest.raises(ValueError, match="`eval_data`: ended before its first batch"):
        rows_trainer(mirrored(2), [1.0]).evaluate(report_rows, batches([]))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("mirrored", report_rows, batches([1.0])), "`strategy` is a str"),
        ((None, {"loss": 1.0}, batches([1.0])), "`train_step` is a dict"),
        ((None, report_rows, [1.0]), "`train_data`: is a list"),
    ],
)
def test_arguments_of_another_type_are_refused(arguments, message):
    strategy, *rest = arguments
    with pytest.raises(TypeError, match=message):
        Trainer(strategy or mirrored(1), *rest)


def test_an_evaluation_without_a_function_is_refused():
    with pytest.raises(TypeError, match="`evaluate`: `eval_step` is a dict"):
        rows_trainer(mirrored(1), [1.0]).evaluate({}, batches([1.0]))


def test_evaluation_data_of_another_type_is_refused():
    with pytest.raises(TypeError, match="`eval_data`: is a list"):
        rows_trainer(mirrored(1), [1.0]).evaluate(report_rows, [1.0])


@pytest.mark.parametrize("steps_per_loop", [1, 3])
def test_a_failing_step_shows_its_cause_and_the_replica(steps_per_loop):
    def step(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 5.0, "too large")]):
            return {"loss": lockstep.average_loss(x)}

    data = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0, 9.0]).batch(2)
    trainer = Trainer(mirrored(2), step, data, steps_per_loop=steps_per_loop, progress="none")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)replica 1 \(.*CPU:1\) raised: .*too large"):
        trainer.train(steps=2)


def test_counts_may_be_integers_of_numpy():
    data = tf.data.Dataset.from_tensor_slices([1.0, 2.0]).batch(2)
    trainer = Trainer(mirrored(2), lambda x: {"loss": lockstep.average_loss(x)}, data, progress="none")
    assert trainer.train(steps=np.int64(1)) == {"loss": 1.5}
