"""Actions: called after each loop, named when they fail, heard when they ask to stop, and continued with the run."""

import pytest
import tensorflow as tf

from lockstep.training import EarlyStopping, StopOnNaN, Trainer
from testing.replicas import mirrored


def trainer(actions, rows=8, **options):
    data = tf.data.Dataset.range(rows).batch(2)
    return Trainer(mirrored(2), lambda x: {"x": tf.cast(x, tf.float32)}, data, progress="none", actions=actions,
                   **options)


def test_an_action_sees_the_step_and_the_averages_of_its_loop():
    seen = []
    trainer([lambda step, outputs: seen.append((step, dict(outputs)))], steps_per_loop=3).train(epochs=1)
    assert seen == [(3, {"x": 2.5}), (4, {"x": 6.5})]


def test_an_action_that_returns_true_stops_the_training_and_only_that_call():
    driver = trainer([lambda step, outputs: step == 3])
    assert driver.train(epochs=1) == {"x": 2.5}
    assert driver.step == 3
    assert driver.train(steps=1) == {"x": 6.5}


@pytest.mark.parametrize("answer", [None, 1, "stop", False])
def test_other_answers_stop_nothing(answer):
    driver = trainer([lambda step, outputs: answer])
    driver.train(epochs=1)
    assert driver.step == 4


def test_an_exception_names_the_action_and_the_step():
    def write_report(step, outputs):
        raise OSError("disk full")

    with pytest.raises(OSError) as raised:
        trainer([write_report]).train(steps=2)
    assert raised.value.__notes__ == ["Raised by the action 'write_report' of a Trainer, after step 1."]


def test_an_action_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match="`Trainer`: `actions` is a int"):
        trainer([3])


@pytest.mark.parametrize("mode, values, stops", [
    ("min", [1.0, 0.5, 0.6, 0.7], [False, False, False, True]),
    ("min", [1.0, 0.95, 0.94, 0.5], [False, False, True, False]),
    ("max", [0.1, 0.5, 0.4, 0.3], [False, False, False, True]),
])
def test_early_stopping_counts_steps_since_the_last_real_improvement(mode, values, stops):
    stop = EarlyStopping("x", patience=20, min_delta=0.1, mode=mode)
    assert [stop(10 * number, {"x": value}) for number, value in enumerate(values, start=1)] == stops


def test_early_stopping_goes_on_with_the_run(tmp_path):
    def early():
        return EarlyStopping("x", patience=4)

    variable = tf.Variable(1.0)
    kept = {"model_dir": tmp_path, "state": {"variable": variable}, "save_every": 1}
    first = trainer([early()], 40, **kept)
    first.train(steps=3)  # x only rises: the first step is the best.
    again = trainer([early()], 40, **kept)
    again.train(steps=20)
    assert again.step == 5


@pytest.mark.parametrize("options, text", [
    ({"patience": 0}, "`patience` is 0"),
    ({"patience": 2, "mode": "up"}, "`mode` is 'up'"),
])
def test_early_stopping_checks_its_arguments(options, text):
    with pytest.raises(ValueError, match=text):
        EarlyStopping("x", **options)


def test_early_stopping_on_an_output_that_is_not_there_names_those_that_are():
    with pytest.raises(KeyError, match="the step returns no 'loss', but 'x'"):
        trainer([EarlyStopping("loss", 3)]).train(steps=1)


def test_stop_on_nan_names_the_step_the_output_and_the_value():
    with pytest.raises(FloatingPointError, match="after step 2 the output 'x' is inf"):
        Trainer(mirrored(2), lambda x: {"x": 1 / (2 - tf.cast(x, tf.float32))}, tf.data.Dataset.range(8).batch(2),
                progress="none", actions=[StopOnNaN()]).train(steps=4)
