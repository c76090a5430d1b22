"""Training and evaluating in turn, for a time, and beside another process that trains."""

import json
import threading

import pytest
import tensorflow as tf

from lockstep.training import EarlyStopping, Trainer
from lockstep.training.followed_run import new_steps
from testing.replicas import mirrored


def made(folder=None, rows=10, **options):
    """A trainer that counts steps in a variable, the variable, and an evaluation that returns the count."""
    strategy = mirrored(2)
    with strategy.scope():
        count = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)

    def train_step(x):
        count.assign_add(1.0)
        return {"x": x}

    data = tf.data.Dataset.from_tensor_slices(tf.range(float(rows))).batch(4)
    kept = {} if folder is None else {"model_dir": folder, "state": {"count": count}}
    trainer = Trainer(strategy, train_step, data, progress="none", **kept, **options)
    return trainer, count, lambda x: {"count": tf.fill(tf.shape(x), count)}


DATA = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0]).batch(2)


@pytest.mark.parametrize("limit, expected", [
    ({"every": 2, "steps": 5}, [(2, 2.0), (4, 4.0), (5, 5.0)]),
    ({"every": 9, "steps": 2}, [(2, 2.0)]),
    ({"every": 1, "epochs": 2}, [(3, 3.0), (6, 6.0)]),
    ({"every": 2, "epochs": 3}, [(6, 6.0), (9, 9.0)]),
])
@pytest.mark.parametrize("steps_per_loop", [1, 4])
def test_it_evaluates_after_every_part_and_at_the_end(limit, expected, steps_per_loop):
    seen = []
    trainer, _, eval_step = made(steps_per_loop=steps_per_loop,
                                 eval_actions=[lambda step, outputs: seen.append((step, outputs["count"]))])
    assert trainer.train_and_evaluate(eval_step, DATA, **limit) == {"count": expected[-1][1]}
    assert seen == expected


def test_an_action_that_stops_the_training_leads_to_one_more_evaluation():
    seen = []
    trainer, _, eval_step = made(actions=[lambda step, outputs: step == 3],
                                 eval_actions=[lambda step, outputs: seen.append(step)])
    trainer.train_and_evaluate(eval_step, DATA, every=2, steps=9)
    assert seen == [2, 3]


def test_an_action_of_evaluations_ends_it_and_a_run_that_goes_on_knows(tmp_path):
    for _ in range(2):
        trainer, count, eval_step = made(
            tmp_path, eval_actions=[EarlyStopping("count", patience=4, mode="min")])
        assert trainer.train_and_evaluate(eval_step, DATA, every=2, steps=99) == {"count": 6.0}
        assert (trainer.step, float(count)) == (6, 6.0)


def test_training_for_a_time_ends_with_the_loop_that_passes_it():
    trainer, count, _ = made()
    now = iter(range(100))
    trainer._runner._clock = lambda: float(next(now))  # A loop begins and ends: it takes a second.
    trainer.train(seconds=3)
    assert trainer.step == 3
    trainer.train(seconds=99, steps=2)
    assert trainer.step == 5
    trainer.train(seconds=2, epochs=9)
    assert trainer.step == 7


def test_evaluations_do_not_count_where_it_trains_for_a_time():
    trainer, _, eval_step = made(rows=40, eval_actions=[lambda step, outputs: seen.append(step)])
    seen, now = [], iter(range(100))
    trainer._runner._clock = lambda: float(next(now))
    trainer.train_and_evaluate(eval_step, DATA, every=2, seconds=5)
    assert seen == [2, 4, 5]


@pytest.mark.parametrize("arguments, text", [
    ({"every": 0, "steps": 1}, "`every` is 0"), ({"every": 1}, "Expected steps or epochs"),
    ({"every": 1, "steps": 1, "epochs": 1}, "Expected steps or epochs"),
    ({"every": 1, "seconds": -1}, "`seconds` is -1"), ({"every": 1, "seconds": True}, "`seconds` is True"),
])
def test_wrong_limits_are_refused_before_training(arguments, text):
    trainer, _, eval_step = made()
    with pytest.raises(ValueError, match=text):
        trainer.train_and_evaluate(eval_step, DATA, **arguments)
    assert trainer.step == 0


# Beside another process: here another trainer, on another strategy.

def test_checkpoints_are_evaluated_as_they_appear_and_nothing_else_is_written(tmp_path):
    trainer, _, _ = made(tmp_path, save_every=1, keep=2)
    trainer.train(steps=2)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    seen = []

    def train_on(step, outputs):
        seen.append((step, outputs["count"]))
        if step < 4:
            training = threading.Thread(target=trainer.train, kwargs={"steps": 1})
            training.start()
            training.join()

    follower, count, eval_step = made(tmp_path, eval_actions=[train_on])
    log = (tmp_path / "log.jsonl").read_text(encoding="utf-8")
    result = follower.evaluate_continuously(eval_step, DATA, until_step=4, poll_seconds=0.01)
    assert result == {"count": 4.0} and seen == [(2, 2.0), (3, 3.0), (4, 4.0)]
    assert (tmp_path / "log.jsonl").read_text(encoding="utf-8").startswith(log)
    lines = (tmp_path / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 3, 4]
    assert {path.name for path in tmp_path.rglob("*")} - set(before) - {"evaluations.jsonl"} == {
        "step_000000003", "step_000000004"}


def test_following_ends_when_there_is_no_new_checkpoint_for_a_time(tmp_path):
    follower, _, eval_step = made(tmp_path)
    assert follower.evaluate_continuously(eval_step, DATA, timeout_seconds=0.05, poll_seconds=0.01) == {}


def test_following_needs_a_trainer_that_does_not_train(tmp_path):
    trainer, _, eval_step = made(tmp_path)
    trainer.train(steps=1)
    with pytest.raises(ValueError, match="this trainer has trained"):
        trainer.evaluate_continuously(eval_step, DATA)


def test_following_another_model_is_refused(tmp_path):
    made(tmp_path)[0].train(steps=1)
    strategy = mirrored(2)
    other = Trainer(strategy, lambda x: {}, DATA, model_dir=tmp_path, state={"other": tf.Variable(1.0)},
                    progress="none")
    with pytest.raises(ValueError, match="is a checkpoint of something else"):
        other.evaluate_continuously(lambda x: {"x": x}, DATA, until_step=1)


def test_of_several_new_checkpoints_the_newest_is_taken_and_none_twice():
    found = iter([None, 3, 3, 5, 9, 9, 9, 9, 9])
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    steps = new_steps(lambda: next(found), 1.0, 2.5, lambda: now[0], sleep)
    assert list(steps) == [3, 5, 9]
    assert now[0] == 5.0
