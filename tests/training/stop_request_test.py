"""Signals while a trainer runs: none is lost, whenever it comes, and a run that goes on does not repeat what it has."""

import signal

import pytest
import tensorflow as tf

from lockstep.training import Trainer
from lockstep.training.stop_request import StopRequest
from testing.replicas import mirrored


@pytest.fixture
def heard():
    """The signals that come through to whoever has listened before."""
    numbers = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


def test_a_signal_that_is_agreed_on_is_taken(heard):
    with StopRequest(mirrored(1), catches_signals=True) as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_agreed() and stop.comes_of_a_signal
    assert heard == []


def test_a_signal_after_the_last_agreement_comes_through(heard):
    with StopRequest(mirrored(1), catches_signals=True) as stop:
        assert not stop.is_agreed()
        signal.raise_signal(signal.SIGTERM)
        assert heard == []
    assert heard == [signal.SIGTERM]


def test_a_signal_does_not_take_the_place_of_an_error(heard):
    with pytest.raises(ZeroDivisionError):
        with StopRequest(mirrored(1), catches_signals=True):
            signal.raise_signal(signal.SIGTERM)
            1 / 0
    assert heard == []


def run(folder, stops_in=None):
    """Trains 2 steps, evaluates, trains 2; a signal comes in the training's last save, or in the evaluation."""
    strategy = mirrored(2)
    with strategy.scope():
        count = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
    seen = []

    def train_step(x):
        count.assign_add(1.0)
        return {"x": x}

    def stop(where):
        seen.append(where)
        if where == stops_in:
            signal.raise_signal(signal.SIGTERM)

    class Stopping:
        """Its state is asked for when a checkpoint is written."""

        def __call__(self, step, outputs):
            stop("step")

        def state(self):
            stop("save")

        def restore(self, state):
            pass

    data = tf.data.Dataset.range(8).map(lambda row: tf.cast(row, tf.float32)).batch(2)
    trainer = Trainer(strategy, train_step, data, progress="none", model_dir=folder, state={"count": count},
                      actions=[Stopping()], eval_actions=[lambda step, outputs: stop("evaluation")])
    results = [trainer.train(steps=2), trainer.evaluate(lambda x: {"count": tf.fill(tf.shape(x), count)}, data),
               trainer.train(steps=2)]
    return results, seen


EXPECTED = [{"x": 1.5}, {"count": 2.0}, {"x": 5.5}]


@pytest.mark.parametrize("stops_in, left", [
    ("step", ["step", "save", "evaluation", "step", "step", "save"]),
    ("save", ["evaluation", "step", "step", "save"]),
    ("evaluation", ["step", "step", "save"]),
])
def test_a_signal_at_any_time_saves_and_exits_and_what_is_done_is_not_done_again(tmp_path, stops_in, left):
    with pytest.raises(SystemExit) as stopped:
        run(tmp_path, stops_in)
    assert stopped.value.code == 75
    assert run(tmp_path) == (EXPECTED, left)
