"""Keras's callbacks and saved models: under a strategy as on one device, and between numbers of replicas."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from testing.replicas import mirrored

RNG = np.random.default_rng(5)
X = RNG.normal(size=[14, 3]).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5]], np.float32)).astype(np.float32)


def compiled(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential([keras.Input([3]), layers.Dense(4, "tanh"),
                                  layers.BatchNormalization(synchronized=True), layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model


def fit(model, epochs, callbacks=(), **options):
    return model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks),
                     validation_data=(X[:5], Y[:5]), **options).history


def assert_same_weights(one, other):
    for left, right in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(right, left, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [
    lambda: keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=0.2, restore_best_weights=True),
    lambda: keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=0, min_delta=0.3),
    lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (epoch + 1)),
], ids=["EarlyStopping", "ReduceLROnPlateau", "LearningRateScheduler"])
def test_callbacks_that_steer_see_one_devices_numbers(make):
    alone, many = compiled(None), compiled(mirrored(4))
    expected, found = fit(alone, 6, [make()]), fit(many, 6, [make()])
    assert {name: len(values) for name, values in found.items()} == \
        {name: len(values) for name, values in expected.items()}
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-4, err_msg=name)
    assert_same_weights(alone, many)


def test_a_model_checkpoint_of_the_best_epoch_is_loaded_without_a_strategy(tmp_path):
    path = tmp_path / "best.keras"
    model = compiled(mirrored(2))
    history = fit(model, 4, [keras.callbacks.ModelCheckpoint(path, "val_loss", save_best_only=True)])
    loaded = keras.saving.load_model(path)
    assert loaded.evaluate(X[:5], Y[:5], verbose=0)[0] == pytest.approx(min(history["val_loss"]), rel=1e-5)


class Interrupt(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


def test_backup_and_restore_goes_on_where_the_training_was_interrupted(tmp_path):
    uninterrupted = compiled(mirrored(2))
    fit(uninterrupted, 4)

    interrupted = compiled(mirrored(2))
    with pytest.raises(KeyboardInterrupt):
        fit(interrupted, 4, [keras.callbacks.BackupAndRestore(tmp_path), Interrupt()])
    again = compiled(mirrored(2))
    history = fit(again, 4, [keras.callbacks.BackupAndRestore(tmp_path)])
    assert len(history["loss"]) == 2
    assert_same_weights(uninterrupted, again)


@pytest.mark.parametrize("first, then", [(2, None), (2, 4), (None, 2)])
def test_a_saved_model_goes_on_training_on_any_number_of_replicas(tmp_path, first, then):
    def strategy(num_replicas):
        return mirrored(num_replicas) if num_replicas else None

    model = compiled(strategy(first))
    fit(model, 2)
    model.save(tmp_path / "model.keras")
    scope = strategy(then).scope() if then else contextlib.nullcontext()
    with scope:
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same_weights(model, loaded)
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)
    fit(model, 1)
    fit(loaded, 1)
    assert int(loaded.optimizer.iterations.numpy()) == int(model.optimizer.iterations.numpy()) == 6
    assert_same_weights(model, loaded)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_an_exported_model_serves_without_a_strategy(tmp_path, num_replicas):
    model = compiled(mirrored(num_replicas))
    fit(model, 1)
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(served.serve(tf.constant(X)), model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first, then", [(2, None), (2, 4), (None, 2)])
def test_weights_are_saved_and_loaded_on_any_number_of_replicas(tmp_path, first, then):
    model = compiled(mirrored(first) if first else None)
    fit(model, 1)
    model.save_weights(tmp_path / "model.weights.h5")
    other = compiled(mirrored(then) if then else None)
    other.load_weights(tmp_path / "model.weights.h5")
    assert_same_weights(model, other)


def test_tensorboard_shows_one_devices_numbers(tmp_path):
    scalars = []
    for name, strategy in (("alone", None), ("many", mirrored(2))):
        fit(compiled(strategy), 2, [keras.callbacks.TensorBoard(tmp_path / name, write_graph=False)])
        events = [event for file in sorted((tmp_path / name).glob("*/*"))
                  for event in tf.compat.v1.train.summary_iterator(str(file))]
        scalars.append({(value.tag, event.step): float(tf.make_ndarray(value.tensor)) for event in events
                        for value in event.summary.value if value.tag.startswith(("epoch_", "evaluation_"))})
    assert len(scalars[0]) >= 8 and scalars[1] == pytest.approx(scalars[0], rel=1e-3, abs=1e-5)
