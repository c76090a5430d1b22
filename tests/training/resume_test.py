"""A run that was interrupted goes on exactly: weights, results and log are those of the uninterrupted one."""

import json
import os
import re

import keras
import pytest
import tensorflow as tf

import lockstep
from programs import resume
from testing.replicas import mirrored
from testing.workers import run_workers


class Interrupted(BaseException):
    """Ends a run as a kill would: nothing is written any more."""


def interrupt_after(step):
    def act(at, outputs):
        if at == step:
            raise Interrupted

    return act


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    def of(steps_per_loop):
        if steps_per_loop not in found:
            folder = tmp_path_factory.mktemp("uninterrupted")
            found[steps_per_loop] = (resume.run(mirrored(2), folder, steps_per_loop=steps_per_loop), resume.log(folder))
        return found[steps_per_loop]

    found = {}
    return of


@pytest.mark.parametrize("steps_per_loop", [1, 3])
@pytest.mark.parametrize("steps", [[1], [2], [4], [5], [7], [8], [1, 3, 6]], ids=str)
def test_a_run_that_is_interrupted_after_any_step_goes_on_to_the_bit(tmp_path, uninterrupted, steps_per_loop, steps):
    for step in steps:
        try:
            resume.run(mirrored(2), tmp_path, [interrupt_after(step)], steps_per_loop)
        except Interrupted:
            pass
    trained = []
    expected, log = uninterrupted(steps_per_loop)
    found = resume.run(mirrored(2), tmp_path, [lambda step, outputs: trained.append(step)], steps_per_loop)
    assert found == expected
    assert resume.log(tmp_path) == log
    # Checkpoints are written after every second step, and at the end of a call, which is step 5 and step 8. The last
    # interruption was inside of a loop's actions, before that loop's checkpoint.
    saved = [step for step in (2, 4, 5, 6, 8) if step < steps[-1]]
    assert not trained or trained[0] > max(saved, default=0)


def test_a_run_that_has_ended_returns_what_it_returned_and_trains_no_step(tmp_path, uninterrupted):
    def never(step, outputs):
        raise AssertionError("a step was trained")

    expected = resume.run(mirrored(2), tmp_path)
    assert resume.run(mirrored(2), tmp_path, [never]) == expected == uninterrupted(1)[0]


@pytest.mark.parametrize("num_replicas", [1, 4])
def test_a_run_goes_on_with_another_number_of_replicas_on_the_rows_that_are_left_and_says_what_differs(
        tmp_path, num_replicas, caplog):
    def run(replicas, *actions):
        strategy = mirrored(replicas)
        with strategy.scope():
            total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

        def step(rows):
            total.assign_add(tf.reduce_sum(rows))
            return {"rows": rows}

        data = tf.data.Dataset.range(1, 12).map(lambda row: tf.cast(row, tf.float32)).shuffle(12, seed=1)
        trainer = lockstep.training.Trainer(strategy, step, data.batch(3), progress="none", actions=actions,
                                            model_dir=tmp_path, state={"total": total}, save_every=1)
        return trainer.train(epochs=2), float(total), trainer.step

    with pytest.raises(Interrupted):
        run(2, interrupt_after(3))
    assert "replicas where there were" not in caplog.text
    assert run(num_replicas) == ({"rows": 6.0}, 132.0, 8)
    assert f"goes on with {num_replicas} replicas where there were 2" in caplog.text


def test_a_checkpoint_that_was_cut_short_or_damaged_is_passed_over(tmp_path, uninterrupted):
    with pytest.raises(Interrupted):
        resume.run(mirrored(2), tmp_path, [interrupt_after(5)])
    checkpoints = tmp_path / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step_000000002", "step_000000004"]
    data = next((checkpoints / "step_000000004").glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    (checkpoints / "step_000000009.unfinished").mkdir()
    assert resume.run(mirrored(2), tmp_path) == uninterrupted(1)[0]
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step_000000008", "step_000000009"] or \
        not list(checkpoints.glob("*.unfinished"))


def small_trainer(folder, variable=None, **options):
    strategy = mirrored(2)
    with strategy.scope():
        variable = variable or tf.Variable(1.0)
    data = tf.data.Dataset.from_tensor_slices(tf.ones([8])).batch(2)
    given = {"model_dir": folder, "state": {"variable": variable}, "progress": "none", **options}
    return lockstep.training.Trainer(strategy, lambda x: {"x": x * variable}, data, **given), strategy


def test_a_run_is_not_continued_with_other_settings(tmp_path):
    small_trainer(tmp_path, settings={"seed": 1, "batch": 2})
    with pytest.raises(ValueError, match="holds a run with other settings: seed was 1 and is 3. Start it as it was"):
        small_trainer(tmp_path, settings={"seed": 3, "batch": 2})


def test_a_run_is_not_continued_with_another_model(tmp_path):
    small_trainer(tmp_path)[0].train(steps=2)
    before = (tmp_path / "checkpoints" / "step_000000002" / "facts.json").read_text()
    trainer, strategy = small_trainer(tmp_path, state={"other": mirrored(1) and tf.Variable(2.0)})
    with pytest.raises(ValueError, match="is a checkpoint of something else"):
        trainer.train(steps=2)
    assert (tmp_path / "checkpoints" / "step_000000002" / "facts.json").read_text() == before


def test_a_run_is_not_continued_by_another_program(tmp_path):
    small_trainer(tmp_path)[0].train(steps=2)
    trainer, _ = small_trainer(tmp_path)
    data = tf.data.Dataset.from_tensor_slices(tf.ones([8])).batch(2)
    with pytest.raises(ValueError, match="call 1 of this program, where the run that is continued called `train`"):
        trainer.evaluate(lambda x: {"x": x}, data)


def test_a_run_that_asks_for_more_steps_goes_on_from_those_it_has(tmp_path):
    trained = []
    small_trainer(tmp_path, actions=[lambda step, outputs: trained.append(step)])[0].train(steps=3)
    small_trainer(tmp_path, actions=[lambda step, outputs: trained.append(step)])[0].train(steps=5)
    assert trained == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("options, text", [
    ({"model_dir": None}, "are for a run that is kept"),
    ({"state": None}, "Expected a dict of what checkpoints shall hold"),
    ({"state": {"step": tf.Variable(1)}}, "with other names than"),
    ({"save_every": 0}, "`save_every` is 0"),
    ({"keep": 1.5}, "`keep` is 1.5"),
])
def test_arguments_of_a_kept_run_are_checked_before_training(tmp_path, options, text):
    with pytest.raises(ValueError, match=text):
        small_trainer(tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_told_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        small_trainer(tmp_path / "file" / "run")


@pytest.mark.parametrize("num_workers, event", [(1, "before"), (1, "during"), (1, "after"), (2, "before"), (1, "stop"),
                                                (2, "stop")])
def test_a_killed_process_goes_on_to_the_bit_and_a_stopped_one_says_so(tmp_path, uninterrupted, num_workers, event):
    def start(what):
        return run_workers("resume", num_workers, replicas=2 // num_workers, args=[str(tmp_path), what])

    interrupted = start(event)
    assert interrupted[-1].code == (75 if event == "stop" else -9), interrupted[-1].output
    if event == "stop":
        assert {worker.code for worker in interrupted} == {75}
        assert "step_000000003" in os.listdir(tmp_path / "checkpoints")
    again = start("none")
    (weights, results, step), log = uninterrupted(1)
    for worker in again:
        assert worker.code == 0, worker.output
        assert worker.results == json.loads(json.dumps({"weights": weights, "results": results, "step": step}))
    assert resume.log(tmp_path) == log
    assert not re.search("Traceback", again[0].output)


def test_the_dropout_masks_of_a_keras_model_go_on_too(tmp_path):
    def train(folder, actions=()):
        keras.utils.set_random_seed(2)
        strategy = mirrored(2)
        with strategy.scope():
            model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), keras.layers.Dropout(0.5),
                                      keras.layers.Dense(1)])
            optimizer = keras.optimizers.Adam(0.1)

        def train_step(x):
            with tf.GradientTape() as tape:
                loss = lockstep.average_loss(model(x, training=True)[:, 0] ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return {"loss": loss}

        data = tf.data.Dataset.from_tensor_slices(tf.reshape(tf.range(24.0), [8, 3]) / 24).batch(2)
        lockstep.training.Trainer(
            strategy, train_step, data, progress="none", actions=actions, model_dir=folder, save_every=2,
            state={"model": model, "optimizer": optimizer}).train(steps=6)
        return [weight.tolist() for weight in model.get_weights()]

    with pytest.raises(Interrupted):
        train(tmp_path / "interrupted", [interrupt_after(5)])
    assert train(tmp_path / "interrupted") == train(tmp_path / "undisturbed")
