"""Summaries: what a run's steps return, read back from its event files; continued runs, and workers."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lockstep.training import Summaries, Trainer
from testing.replicas import mirrored


def scalars(folder):
    """What TensorBoard reads: tag -> list of (step, value)."""
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def tf_config(index):
    return json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": index}})


def test_each_output_is_a_scalar_of_its_step_in_the_run_of_that_name(tmp_path):
    summaries = Summaries(tmp_path, "one")
    assert summaries(10, {"loss": 0.5, "layer/norm": 3.0}) is None
    summaries(20, {"loss": 0.25})
    assert scalars(tmp_path / "one") == {"loss": [(10, 0.5), (20, 0.25)], "layer/norm": [(10, 3.0)]}


def test_every_call_is_on_disk_when_it_returns(tmp_path):
    summaries = Summaries(tmp_path)
    for step in (1, 2, 3):
        summaries(step, {"x": float(step)})
        path, = (tmp_path / "train").iterdir()
        assert [event.step for event in tf.compat.v1.train.summary_iterator(str(path))][-1] == step


def test_nothing_is_written_before_the_first_call(tmp_path):
    Summaries(tmp_path)
    assert not list(tmp_path.iterdir())


def test_values_that_are_not_finite_are_written_as_they_are(tmp_path):
    Summaries(tmp_path)(1, {"a": math.nan, "b": -math.inf})
    found = scalars(tmp_path / "train")
    np.testing.assert_equal(found, {"a": [(1, math.nan)], "b": [(1, -math.inf)]})


def test_a_program_that_goes_on_takes_the_place_of_the_later_events_of_the_one_before(tmp_path):
    before = Summaries(tmp_path)
    for step in (10, 20, 30, 40):
        before(step, {"x": 1.0, "gone": 1.0})
    again = Summaries(tmp_path)
    again(30, {"x": 2.0})
    assert len(list((tmp_path / "train").iterdir())) == 2
    assert scalars(tmp_path / "train") == {"x": [(10, 1.0), (20, 1.0), (30, 2.0)], "gone": [(10, 1.0), (20, 1.0)]}


def test_a_trainer_that_is_continued_shows_each_step_once(tmp_path):
    class Killed(BaseException):
        pass

    def die(step, outputs):
        if step == 3:
            raise Killed

    def train(actions):
        data = tf.data.Dataset.range(40).batch(2)
        trainer = Trainer(mirrored(2), lambda x: {"x": tf.cast(x, tf.float32)}, data, progress="none",
                          model_dir=tmp_path / "run", state={"variable": tf.Variable(1.0)},
                          actions=[Summaries(tmp_path), *actions])
        trainer.train(steps=2)  # Returns when its checkpoint is complete.
        trainer.train(steps=3)

    with pytest.raises(Killed):
        train([die])
    assert scalars(tmp_path / "train") == {"x": [(step, 2 * step - 1.5) for step in (1, 2, 3)]}
    train([])  # From the checkpoint of step 2: step 3 is trained again.
    assert scalars(tmp_path / "train") == {"x": [(step, 2 * step - 1.5) for step in (1, 2, 3, 4, 5)]}
    written = [event.step for path in (tmp_path / "train").iterdir()
               for event in tf.compat.v1.train.summary_iterator(str(path)) if event.HasField("summary")]
    assert sorted(written) == [1, 2, 3, 3, 4, 5]


@pytest.mark.parametrize("index, options, writes", [
    (0, {}, True), (1, {}, False), (0, {"is_chief": False}, False), (1, {"is_chief": True}, True)])
def test_the_chief_alone_writes(tmp_path, monkeypatch, index, options, writes):
    monkeypatch.setenv("TF_CONFIG", tf_config(index))
    Summaries(tmp_path, **options)(1, {"x": 1.0})
    assert (tmp_path / "train").exists() == writes


def test_a_tf_config_that_makes_no_sense_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config(2))
    with pytest.raises(ValueError, match="task.index is 2"):
        Summaries(tmp_path)
