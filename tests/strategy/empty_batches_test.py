"""Convolution and pooling over no rows: a replica without any takes part, and the gradient is one device's."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from testing.replicas import mirrored, replica_context, split_rows, values_of

LAYERS = {
    "Conv1D": ([6, 2], lambda: layers.Conv1D(3, 3, activation="relu")),
    "Conv2D": ([6, 6, 2], lambda: layers.Conv2D(3, 3, strides=2, padding="same", activation="relu")),
    "Conv3D": ([4, 4, 4, 2], lambda: layers.Conv3D(3, 3, activation="relu")),
    "DepthwiseConv2D": ([6, 6, 2], lambda: layers.DepthwiseConv2D(3, activation="relu")),
    "Conv2DTranspose": ([4, 4, 2], lambda: layers.Conv2DTranspose(3, 3, activation="relu")),
    "MaxPooling1D": ([6, 2], layers.MaxPooling1D),
    "MaxPooling2D": ([6, 6, 2], layers.MaxPooling2D),
    "MaxPooling3D": ([4, 4, 4, 2], layers.MaxPooling3D),
    "AveragePooling1D": ([6, 2], lambda: layers.AveragePooling1D(2)),
    "AveragePooling2D": ([6, 6, 2], lambda: layers.AveragePooling2D(2)),
    "AveragePooling3D": ([4, 4, 4, 2], lambda: layers.AveragePooling3D(2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_any_number_of_rows_gives_one_devices_outputs_and_gradients(name):
    shape, make = LAYERS[name]
    strategy = mirrored(3)
    keras.utils.set_random_seed(2)
    with strategy.scope():
        layer = make()
        layer.build([None, *shape])
    weights = layer.trainable_variables

    def outputs_and_gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
            loss = tf.reduce_sum(y ** 2)
        return y, tape.gradient(loss, [x, *(weight.value for weight in weights)])

    @tf.function
    def step(x):
        y, (by_input, *by_weights) = outputs_and_gradients(x)
        return y, by_input, replica_context().all_reduce("SUM", by_weights) if by_weights else []

    for count in (4, 1, 2):
        rows = np.random.default_rng(count).normal(size=[count, *shape]).astype(np.float32)
        y, by_input, by_weights = strategy.run(step, args=(split_rows(strategy, rows),))
        expected_y, (expected_input, *expected_weights) = outputs_and_gradients(tf.constant(rows))
        np.testing.assert_allclose(strategy.gather(y, axis=0), expected_y, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(strategy.gather(by_input, axis=0), expected_input, rtol=1e-4, atol=1e-5)
        for found, expected in zip(by_weights, expected_weights, strict=True):
            for value in values_of(strategy, found):
                np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)


def test_a_batch_whose_rows_are_known_is_left_alone():
    strategy = mirrored(2)
    graphs = []

    @tf.function
    def step(x):
        graphs.append(tf.compat.v1.get_default_graph())
        return tf.nn.max_pool2d(x, 2, 2, "VALID")

    strategy.run(step, args=(tf.ones([2, 4, 4, 1]),))
    assert not any(op.type in ("If", "StatelessIf") for op in graphs[0].get_operations())
