"""What is kept apart from the run's checkpoints: the best state, and exports."""

import os

import pytest
import tensorflow as tf

from lockstep.training import BestCheckpoint, Export, Trainer
from testing.replicas import mirrored

# What evaluations find after 1, 2, 3 and 4 steps; the second is the best.
VALUES = (3.0, 1.0, 2.0, 1.0)


def trained(folder, actions, steps=4, save_every=None, stops_after=None):
    """Counts steps in a variable, and evaluates to `VALUES` after each; returns the trainer and the variable."""
    strategy = mirrored(2)
    with strategy.scope():
        count = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
        values = tf.constant(VALUES)

    def train_step(x):
        count.assign_add(1.0)
        return {}

    def eval_step(x):
        return {"x": tf.fill(tf.shape(x), tf.gather(values, tf.cast(count, tf.int32) - 1))}

    def stop(step, outputs):
        if step == stops_after:
            raise KeyboardInterrupt

    data = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0]).batch(3)
    trainer = Trainer(strategy, train_step, data, model_dir=folder, state={"count": count}, progress="none",
                      save_every=save_every, eval_actions=[*actions, stop])
    try:
        trainer.train_and_evaluate(eval_step, data, every=1, steps=steps)
    except KeyboardInterrupt:
        pass
    return trainer, count


def test_the_best_state_is_kept_and_read_back(tmp_path):
    trainer, count = trained(tmp_path, [BestCheckpoint("x")])
    assert float(count) == 4.0
    assert trainer.load("best") == 2
    assert (float(count), trainer.step) == (2.0, 4)
    assert sorted(os.listdir(tmp_path / "best")) == ["step_000000002"]


def test_the_best_state_of_a_maximum(tmp_path):
    trainer, count = trained(tmp_path, [BestCheckpoint("x", mode="max", name="largest")])
    assert trainer.load("largest") == 1
    assert float(count) == 1.0


def test_a_run_that_goes_on_remembers_its_best(tmp_path):
    trained(tmp_path, [BestCheckpoint("x")], stops_after=3)
    trainer, count = trained(tmp_path, [BestCheckpoint("x")])
    assert trainer.load("best") == 2


def test_the_best_state_needs_a_run_that_is_kept():
    with pytest.raises(ValueError, match="`BestCheckpoint`: the trainer keeps nothing. Give it `model_dir`"):
        Trainer(mirrored(2), lambda x: {}, tf.data.Dataset.range(4).batch(2), eval_actions=[BestCheckpoint("x")])


@pytest.mark.parametrize("call, text", [
    (lambda trainer: trainer.load("nothing"), "there is nothing to read in"),
    (lambda trainer: trainer.save("checkpoints"), "`name` is 'checkpoints'"),
    (lambda trainer: trainer.save("../elsewhere"), "`name` is '../elsewhere'"),
])
def test_names_of_states_are_checked(tmp_path, call, text):
    trainer, _ = trained(tmp_path, [], steps=1)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(ValueError, match=text):
        call(trainer)
    assert sorted(os.listdir(tmp_path)) == before


def write(path):
    with open(path + ".txt", "w", encoding="utf-8") as file:
        file.write("model")


def test_the_newest_exports_are_kept(tmp_path):
    export = Export(write, tmp_path, keep=2)
    for step in (1, 2, 3):
        export(step, {})
    assert sorted(os.listdir(tmp_path)) == ["step_000000002.txt", "step_000000003.txt"]


def test_the_best_is_exported_alone(tmp_path):
    trained(tmp_path / "run", [Export(write, tmp_path / "export", best_of="x")])
    assert os.listdir(tmp_path / "export") == ["step_000000002.txt"]


def test_an_export_that_was_cut_short_is_removed_by_the_next(tmp_path):
    def fails(path):
        write(path)
        raise OSError("disk full")

    with pytest.raises(OSError):
        Export(fails, tmp_path)(1, {})
    Export(write, tmp_path)(2, {})
    assert os.listdir(tmp_path) == ["step_000000002.txt"]
