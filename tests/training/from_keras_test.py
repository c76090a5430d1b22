"""`Trainer.from_keras`: the numbers of `fit` and `evaluate`, for partial batches too, and runs that go on."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import lockstep
from lockstep.training import Trainer
from testing.replicas import mirrored

X = np.random.default_rng(0).normal(size=[11, 4]).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int32)
WEIGHTS = np.linspace(0.5, 2.0, 11).astype(np.float32)


def compiled(num_replicas=2, dropout=0.0):
    strategy = mirrored(num_replicas)
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(5, "relu", kernel_regularizer="l2"),
                                  keras.layers.Dropout(dropout), keras.layers.Dense(2)])
        model.compile(keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                      metrics=["accuracy"], weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(
                          from_logits=True, name="entropy")])
    return model


def data(weighted, batch=4):
    arrays = (X, Y, WEIGHTS) if weighted else (X, Y)
    return tf.data.Dataset.from_tensor_slices(arrays).batch(batch)


def weights_of(model):
    return [weight.tolist() for weight in model.get_weights()]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_replicas", [1, 2, 4])
@pytest.mark.parametrize("steps_per_loop", [1, 5])
def test_the_numbers_are_those_of_fit_and_evaluate(num_replicas, weighted, steps_per_loop):
    one, other = compiled(1), compiled(num_replicas)
    history = one.fit(data(weighted), epochs=2, verbose=0).history
    trainer = Trainer.from_keras(other, data(weighted), progress="none", steps_per_loop=steps_per_loop)
    found = [trainer.train(epochs=1) for _ in range(2)]
    assert sorted(found[0]) == sorted(history)
    for name, values in history.items():
        assert [epoch[name] for epoch in found] == pytest.approx(values, rel=2e-5)
    for mine, expected in zip(other.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=2e-4, atol=1e-6)
    evaluated = trainer.evaluate(trainer.eval_step, data(weighted, batch=3))
    assert evaluated == pytest.approx(one.evaluate(data(weighted, batch=3), verbose=0, return_dict=True), rel=2e-5)


def test_steps_per_execution_is_the_number_of_steps_per_loop_unless_that_is_given():
    strategy = mirrored(2)
    with strategy.scope():
        model = plain(optimizer="sgd", loss="mse", steps_per_execution=2)
    for options, ends in (({}, [2, 3]), ({"steps_per_loop": 3}, [3])):
        seen = []
        Trainer.from_keras(model, data(False), progress="none", actions=[lambda step, outputs: seen.append(step)],
                           **options).train(epochs=1)
        assert seen == ends


def test_actions_and_the_log_see_the_metrics_of_the_call_so_far(tmp_path):
    seen = []
    trainer = Trainer.from_keras(compiled(), data(False), progress="none", model_dir=tmp_path,
                                 actions=[lambda step, outputs: seen.append(outputs)])
    result = trainer.train(epochs=1)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["outputs"] for line in lines] == seen and seen[-1] == result
    assert [line["rows"] for line in lines] == [4, 4, 3]


@pytest.mark.parametrize("stops_after", [1, 2, 4, 5])
def test_a_run_that_was_interrupted_goes_on_to_the_bit(tmp_path, stops_after):
    def stop(step, outputs):
        if step == stops_after:
            raise KeyboardInterrupt

    def run(folder, *actions):
        model = compiled(dropout=0.4)
        trainer = Trainer.from_keras(model, data(False).shuffle(8, seed=2), progress="none", model_dir=folder,
                                     save_every=1, actions=actions)
        results = [trainer.train(epochs=2), trainer.evaluate(trainer.eval_step, data(False))]
        return results, weights_of(model)

    expected = run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", stop)
    assert run(tmp_path / "cut") == expected


def plain(**options):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
    if options:
        model.compile(**options)
    return model


@pytest.mark.parametrize("make, error, text", [
    (lambda strategy: tf.Module(), TypeError, "`model` is a Module"),
    (lambda strategy: plain(), ValueError, "is not compiled with an optimizer"),
    (lambda strategy: plain(optimizer="sgd", loss="mse", jit_compile=True), ValueError, "`jit_compile=True`. XLA"),
    (lambda strategy: plain(optimizer="sgd", loss="mse", run_eagerly=True), ValueError, "`run_eagerly=True`. Use"),
])
def test_models_that_a_trainer_cannot_follow_are_refused_before_training(make, error, text):
    strategy = mirrored(2)
    with strategy.scope():
        model = make(strategy)
    with pytest.raises(error, match=text):
        Trainer.from_keras(model, data(False))


def test_a_model_of_no_strategy_of_ours_is_refused():
    with pytest.raises(ValueError, match="was made under no strategy of Lockstep"):
        Trainer.from_keras(plain(optimizer="sgd", loss="mse"), data(False))
    assert issubclass(lockstep.MirroredStrategy, lockstep.Strategy)
