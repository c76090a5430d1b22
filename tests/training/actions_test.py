"""Actions: called after each loop, named when they fail, heard when they ask to stop, and continued with the run."""

import keras
import pytest
import tensorflow as tf

from lockstep.training import EarlyStopping, Every, ProfileSteps, ReduceOnPlateau, StopOnNaN, Trainer
from testing.replicas import mirrored, replica_context


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


@pytest.mark.parametrize("steps_per_loop", [1, 4])
def test_stop_on_nan_names_the_first_step_the_output_the_replica_and_what_it_has_spoiled(steps_per_loop):
    strategy = mirrored(2)
    with strategy.scope():
        fine = tf.Variable(1.0, name="fine")
        spoiled = tf.Variable(1.0, name="spoiled")

    def step(x):
        number = tf.cast(x, tf.float32)  # 5 is the second row of the third batch: replica 1's.
        spoiled.assign_add(tf.reduce_max(1.0 / (3.0 - replica_context().all_reduce("MAX", number))))  # In step 2.
        return {"x": x, "value": fine / (5.0 - number)}

    driver = Trainer(strategy, step, tf.data.Dataset.range(12).batch(2), progress="none", actions=[StopOnNaN()],
                     steps_per_loop=steps_per_loop)
    expected = "in step 3 the output 'value' of replica 1 is not finite. Not finite by now: spoiled:0. Lower"
    with pytest.raises(FloatingPointError, match=expected) as raised:
        driver.train(steps=6)
    assert "fine" not in str(raised.value)


def test_stop_on_nan_may_be_called_on_averages_alone():
    with pytest.raises(FloatingPointError, match="after step 2 the output 'x' is inf"):
        StopOnNaN()(2, {"x": float("inf")})


def test_every_calls_after_each_multiple_and_goes_on_with_the_run():
    seen = []
    every = Every(4, lambda step, outputs: seen.append(step))
    for step in (3, 6, 7, 8):
        every(step, {})
    again = Every(4, lambda step, outputs: seen.append(step))
    again.restore(every.state())
    for step in (11, 13):
        again(step, {})
    assert seen == [6, 8, 13]


def test_every_passes_on_what_its_action_has():
    inner = EarlyStopping("x", patience=5)
    every = Every(1, inner)
    assert not every(1, {"x": 1.0})
    again = Every(1, EarlyStopping("x", patience=5))
    again.restore(every.state())
    assert again(6, {"x": 1.0})


def test_the_learning_rate_falls_on_a_plateau_to_its_smallest_value():
    optimizer = keras.optimizers.SGD(1.0)
    reduce = ReduceOnPlateau(optimizer, "x", patience=2, factor=0.5, min_learning_rate=0.3)
    rates = []
    for step, value in enumerate([3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0], start=1):
        reduce(step, {"x": value})
        rates.append(float(optimizer.learning_rate))
    assert rates == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.5, 0.3, 0.3, 0.3])


@pytest.mark.parametrize("options, text", [
    ({"factor": 1.0}, "`factor` is 1.0"), ({"patience": 0}, "`patience` is 0"), ({"mode": "up"}, "`mode` is 'up'")])
def test_a_plateau_checks_its_arguments(options, text):
    with pytest.raises(ValueError, match=text):
        ReduceOnPlateau(keras.optimizers.SGD(1.0), "x", **{"patience": 2, **options})


def test_a_plateau_refuses_a_schedule():
    schedule = keras.optimizers.schedules.ExponentialDecay(1.0, 10, 0.5)
    with pytest.raises(ValueError, match="the learning rate of SGD is a schedule"):
        ReduceOnPlateau(keras.optimizers.SGD(schedule), "x", patience=2)


def test_a_profile_of_the_window_is_written_and_ends_with_the_training(tmp_path):
    trainer([ProfileSteps(tmp_path / "whole", 1, 3)]).train(steps=4)
    trainer([ProfileSteps(tmp_path / "cut", 1, 9)]).train(steps=2)
    trainer([ProfileSteps(tmp_path / "never", 7, 9)]).train(steps=2)
    for name in ("whole", "cut"):
        assert list((tmp_path / name).rglob("*.xplane.pb"))
    assert not (tmp_path / "never").exists()


def test_actions_end_with_each_call_of_train_also_with_one_that_fails():
    class Ending:
        ends = 0

        def __call__(self, step, outputs):
            if step == 2:
                raise OSError("disk full")

        def end(self):
            self.ends += 1

    ending = Ending()
    driver = trainer([ending])
    driver.train(steps=1)
    with pytest.raises(OSError):
        driver.train(steps=1)
    assert ending.ends == 2
