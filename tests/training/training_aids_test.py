"""Clipping, accumulation, loss scaling and moving averages in a trainer: a few words, and one device's numbers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lockstep
from lockstep.training import Trainer
from testing.replicas import mirrored

X = np.random.default_rng(1).normal(size=[11, 3]).astype(np.float32)
Y = X.sum(1)


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=64.0, dynamic_growth_steps=3)


AIDS = {
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.3),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.3),
    "clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.2),
    "gradient accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "moving average": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3),
    "loss scaling": scaled,
}


def made(optimizer):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1, kernel_initializer="ones")])
    return model, AIDS[optimizer]()


def one_device(aid):
    """The weights after two epochs of batches of 5, 5 and 1 rows on one device."""
    model, optimizer = made(aid)
    for _ in range(2):
        for start in (0, 5, 10):
            x, y = X[start:start + 5], Y[start:start + 5]
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(tf.reduce_mean((model(x)[:, 0] - y) ** 2))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return model.get_weights()


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
@pytest.mark.parametrize("aid", AIDS)
def test_replicas_train_as_one_device_does_on_even_and_partial_batches(aid, num_replicas):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        model, optimizer = made(aid)

    def train_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss((model(x)[:, 0] - y) ** 2)
            total = optimizer.scale_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(total, model.trainable_variables), model.trainable_variables))
        return {"loss": loss}

    # 11 rows in batches of 5: the third has one row, and three of four replicas none.
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5)
    Trainer(strategy, train_step, data, progress="none", steps_per_loop=2).train(epochs=2)
    for found, right in zip(model.get_weights(), one_device(aid), strict=True):
        np.testing.assert_allclose(found, right, rtol=2e-5, atol=1e-6)
