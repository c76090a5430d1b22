"""Every optimizer of Keras: steps on two replicas are steps on one device."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.replicas import mirrored, split_rows

OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adam": lambda: keras.optimizers.Adam(0.1, amsgrad=True),
    "AdamW": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
    "Adamax": lambda: keras.optimizers.Adamax(0.1),
    "Nadam": lambda: keras.optimizers.Nadam(0.1),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.1, centered=True),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "Adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "Lion": lambda: keras.optimizers.Lion(0.1),
    "Lamb": lambda: keras.optimizers.Lamb(0.1),
    "Adafactor": lambda: keras.optimizers.Adafactor(0.1),
    "Muon": lambda: keras.optimizers.Muon(0.1),
    "LossScale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0,
                                                             dynamic_growth_steps=4),
    "EMA": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=4),
    "weight decay": lambda: keras.optimizers.SGD(0.1, weight_decay=0.1),
    "global clip norm": lambda: keras.optimizers.Adam(0.1, global_clipnorm=0.5),
    "accumulation": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=5),
}
STEPS = 10


def gradient_rows(step):
    """Per-row gradients of a 3×4 matrix and a vector of 4, none of them near zero."""
    rows = np.arange(5, dtype=np.float32).reshape([5, 1, 1]) + 1
    matrix = rows * np.cos(np.arange(12, dtype=np.float32).reshape([1, 3, 4]) + step)
    return matrix / 10 + 0.05, (rows[:, 0] * np.sin(np.arange(1, 5, dtype=np.float32) + step)) / 10 - 0.05


def trained(make, strategy):
    with strategy.scope() if strategy else contextlib.nullcontext():
        variables = [keras.Variable(np.linspace(-1, 1, 12).reshape([3, 4]), dtype="float32", name="kernel"),
                     keras.Variable(np.linspace(0.5, 2, 4), dtype="float32", name="bias")]
        optimizer = make()
        optimizer.build(variables)
    scale = float(optimizer.dynamic_scale.numpy()) if hasattr(optimizer, "dynamic_scale") else None

    @tf.function
    def step(matrix, vector):
        gradients = [tf.reduce_sum(matrix, 0), tf.reduce_sum(vector, 0)]
        if scale is not None:
            gradients = [gradient * optimizer.dynamic_scale for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, variables))

    for number in range(STEPS):
        rows = gradient_rows(number)
        if strategy is None:
            step(*rows)
        else:
            strategy.run(step, args=tuple(split_rows(strategy, part) for part in rows))
    if strategy is not None:
        for variable in variables:
            first, *others = (copy.numpy() for copy in variable.value.values)
            assert all(np.array_equal(first, other) for other in others)
    return [variable.numpy() for variable in [*variables, *optimizer.variables]]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps_on_two_replicas_are_ten_steps_on_one_device(name):
    expected, found = trained(OPTIMIZERS[name], None), trained(OPTIMIZERS[name], mirrored(2))
    assert len(expected) == len(found)
    for one, other in zip(expected, found):
        # Sums of five rows in another order: a few units in the last place, which square roots and powers enlarge.
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=2e-6)
