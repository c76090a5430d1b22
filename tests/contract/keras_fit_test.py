"""Keras models under `scope`: fit, evaluate, predict and the functions for one batch give one device's numbers.

19 rows in batches of 8 are an even batch, another one, and three rows: fewer than four replicas.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from testing.replicas import mirrored

ROWS, BATCH = 19, 8
RNG = np.random.default_rng(7)
NUMBERS = RNG.normal(size=[ROWS, 6]).astype(np.float32)
TARGETS = NUMBERS.sum(1, keepdims=True) + RNG.normal(size=[ROWS, 1]).astype(np.float32) / 10
IMAGES = RNG.normal(size=[ROWS, 8, 8, 1]).astype(np.float32)
LABELS = RNG.integers(0, 3, size=[ROWS])
IDS = RNG.integers(0, 9, size=[ROWS, 5])  # Zeros among them: masked steps.
SERIES = RNG.normal(size=[ROWS, 5, 3]).astype(np.float32)
WEIGHTS = np.linspace(0, 2, ROWS).astype(np.float32)

# float32 sums in another order differ in the last bits; two epochs of updates let that grow a little.
TOLERANCE = 2e-5

CASES = {}


def case(x, y, *, of_fit=None, **compile_with):
    """Adds a case: `make(...)` returns the model, the keywords are for `compile`, `of_fit` for `fit`."""
    def add(make):
        CASES[make.__name__] = (make, x, y, of_fit or {}, compile_with)
        return make

    return add


def sequence(shape, *parts):
    return keras.Sequential([keras.Input(shape), *parts])


def sgd(**options):
    return lambda: keras.optimizers.SGD(0.05, **options)


CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@case(NUMBERS, TARGETS, metrics=["mae"])
def dense():
    return sequence([6], layers.Dense(8, "tanh"), layers.Dense(1))


@case(NUMBERS, TARGETS, loss=keras.losses.MeanSquaredError(reduction="sum"),
      optimizer=lambda: keras.optimizers.SGD(1e-3))
def loss_that_is_a_sum():
    return sequence([6], layers.Dense(1))


@case(NUMBERS, TARGETS, loss=keras.losses.MeanSquaredError(reduction="none"),
      optimizer=lambda: keras.optimizers.SGD(1e-3))
def loss_that_is_not_reduced():
    return sequence([6], layers.Dense(1))


@case(NUMBERS, TARGETS, of_fit={"sample_weight": WEIGHTS}, weighted_metrics=["mae"])
def sample_weights():
    return sequence([6], layers.Dense(1))


@case(NUMBERS, TARGETS, of_fit={"sample_weight": WEIGHTS},
      loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
def mean_with_sample_weights():
    return sequence([6], layers.Dense(1))


@case(NUMBERS, (TARGETS > 0).astype(np.int32), of_fit={"class_weight": {0: 1.0, 1: 3.0}}, loss="binary_crossentropy",
      metrics=["accuracy", "auc"])
def class_weights():
    return sequence([6], layers.Dense(1, "sigmoid"))


@case(IMAGES, LABELS, loss=CROSS_ENTROPY, metrics=["accuracy"])
def convolution():
    return sequence([8, 8, 1], layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(),
                    layers.Dense(3))


@case(NUMBERS, TARGETS)
def synchronised_batch_normalization():
    return sequence([6], layers.Dense(4), layers.BatchNormalization(synchronized=True), layers.Dense(1))


@case(IDS, LABELS, loss=CROSS_ENTROPY, optimizer=lambda: keras.optimizers.RMSprop(0.01))
def embedding():
    return sequence([5], layers.Embedding(9, 4), layers.GlobalAveragePooling1D(), layers.Dense(3))


@case(SERIES, TARGETS)
def lstm():
    return sequence([5, 3], layers.LSTM(4), layers.Dense(1))


@case(IDS, IDS[..., None].astype(np.float32), metrics=["mae"])
def masked_sequences():
    return sequence([5], layers.Embedding(9, 4, mask_zero=True), layers.LSTM(4, return_sequences=True), layers.Dense(1))


@case(SERIES, TARGETS)
def multi_head_attention():
    steps = keras.Input([5, 3])
    attended = layers.MultiHeadAttention(2, 4)(steps, steps)
    return keras.Model(steps, layers.Dense(1)(layers.GlobalAveragePooling1D()(attended)))


class TwoLayers(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.last = layers.Dense(5, "relu"), layers.Dense(1)

    def call(self, x, training=False):
        return self.last(self.hidden(x))


@case(NUMBERS, TARGETS, metrics=["mae"])
def subclassed_model():
    return TwoLayers()


class OwnStep(TwoLayers):
    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=predicted)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return self.compute_metrics(x, y, predicted)


@case(NUMBERS, TARGETS, metrics=["mae"])
def own_train_step():
    return OwnStep()


@case(NUMBERS, TARGETS)
def regularizers_and_constraints():
    return sequence([6], layers.Dense(4, kernel_regularizer=keras.regularizers.L2(0.1),
                                      activity_regularizer=keras.regularizers.L2(0.1)),
                    layers.Dense(1, kernel_constraint=keras.constraints.MaxNorm(0.5)))


@case({"a": NUMBERS, "b": SERIES}, {"p": TARGETS, "q": LABELS}, loss={"p": "mse", "q": CROSS_ENTROPY},
      loss_weights={"p": 1.0, "q": 0.5}, metrics={"p": ["mae"], "q": ["accuracy"]})
def several_inputs_and_outputs():
    a, b = keras.Input([6], name="a"), keras.Input([5, 3], name="b")
    joined = layers.Concatenate()([a, layers.Flatten()(b)])
    p, q = layers.Dense(1, name="p")(joined), layers.Dense(3, name="q")(joined)
    return keras.Model({"a": a, "b": b}, {"p": p, "q": q})


@case(NUMBERS, TARGETS, optimizer=sgd(clipnorm=0.1))
def clipping_by_norm():
    return sequence([6], layers.Dense(4), layers.Dense(1))


@case(NUMBERS, TARGETS, optimizer=sgd(global_clipnorm=0.1))
def clipping_by_global_norm():
    return sequence([6], layers.Dense(4), layers.Dense(1))


@case(NUMBERS, TARGETS, optimizer=sgd(clipvalue=0.1))
def clipping_by_value():
    return sequence([6], layers.Dense(4), layers.Dense(1))


@case(NUMBERS, TARGETS, optimizer=sgd(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2))
def averaged_weights():
    return sequence([6], layers.Dense(1))


@case(NUMBERS, TARGETS, optimizer=sgd(gradient_accumulation_steps=2, clipnorm=0.1))
def accumulated_and_clipped_gradients():
    return sequence([6], layers.Dense(1))


@case(NUMBERS, TARGETS, steps_per_execution=3, metrics=["mae"])
def several_steps_per_execution():
    return sequence([6], layers.Dense(1))


@case(NUMBERS, TARGETS, optimizer=lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)))
def scaled_loss():
    return sequence([6], layers.Dense(4), layers.Dense(1))


@case(NUMBERS, TARGETS,
      optimizer=lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)))
def learning_rate_schedule():
    return sequence([6], layers.Dense(1))


@case(tf.constant([["a"], ["b"], ["c"], ["a"], ["d"], ["a"], ["b"]]), np.arange(7.0)[:, None])
def strings():
    words = keras.Input([1], dtype="string")
    ids = layers.StringLookup(vocabulary=["a", "b", "c"])(words)
    return keras.Model(words, layers.Dense(1)(layers.Flatten()(layers.Embedding(5, 2)(ids))))


@case(NUMBERS[:3], TARGETS[:3])
def only_batch_smaller_than_the_replicas():
    return sequence([6], layers.Dense(1))


@case(NUMBERS, TARGETS, run_eagerly=True, metrics=["mae"])
def steps_that_run_eagerly():
    return sequence([6], layers.Dense(4), layers.Dense(1))


def trained(name, strategy, only_fit=False):
    """Everything that a user sees of a training, by name."""
    make, x, y, of_fit, compile_with = CASES[name]
    keras.utils.set_random_seed(3)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = make()
        options = {"loss": "mse", "optimizer": sgd(), **compile_with}
        model.compile(**{**options, "optimizer": options["optimizer"]()})
    history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, **of_fit).history
    weights = [weight.numpy() for weight in model.weights]
    if only_fit:
        return {"history": history, "weights of fit": weights}
    few_x, few_y = (tf.nest.map_structure(lambda leaf: leaf[:5], nest) for nest in (x, y))
    return {
        "history": history,
        "weights of fit": weights,
        "evaluate": model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True),
        "predict": model.predict(x, batch_size=BATCH, verbose=0),
        "train_on_batch": model.train_on_batch(few_x, few_y, return_dict=True),
        "test_on_batch": model.test_on_batch(few_x, few_y, return_dict=True),
        "predict_on_batch": model.predict_on_batch(few_x),
        "weights": [weight.numpy() for weight in model.weights],
    }


@pytest.mark.parametrize("name", sorted(CASES))
def test_numbers_are_those_of_one_device(name):
    expected = trained(name, None)
    for num_replicas in (2, 4):
        found = trained(name, mirrored(num_replicas), only_fit=num_replicas == 2)
        for what in found:
            tf.nest.assert_same_structure(expected[what], found[what])
            for one, other in zip(tf.nest.flatten(expected[what]), tf.nest.flatten(found[what])):
                np.testing.assert_allclose(other, one, rtol=TOLERANCE, atol=TOLERANCE,
                                           err_msg=f"{what} of {name} on {num_replicas} replicas")


def batches(kind, strategy):
    """The rows as `fit` takes them, in batches of 8."""
    dataset = tf.data.Dataset.from_tensor_slices((NUMBERS, TARGETS)).batch(BATCH)
    if kind == "tf.data":
        return dataset
    if kind == "distributed":
        return strategy.experimental_distribute_dataset(dataset) if strategy else dataset

    def generate():
        for start in range(0, ROWS, BATCH):
            yield NUMBERS[start:start + BATCH], TARGETS[start:start + BATCH]

    return generate()


@pytest.mark.parametrize("kind", ["tf.data", "generator", "distributed"])
def test_any_kind_of_data_gives_the_numbers_of_one_device(kind):
    results = []
    for strategy in (None, mirrored(2), mirrored(4)):
        keras.utils.set_random_seed(3)
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = sequence([6], layers.Dense(1))
            model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
        history = model.fit(batches(kind, strategy), verbose=0).history
        evaluated = model.evaluate(batches(kind, strategy), verbose=0)
        predicted = model.predict(batches(kind, strategy), verbose=0)
        results.append([*history["loss"], *history["mae"], *evaluated, *predicted.ravel(),
                        *model.get_weights()[0].ravel()])
    np.testing.assert_allclose(results[1], results[0], rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(results[2], results[0], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_follows_one_device(policy):
    # The layers compute in 16 bits: gradients of a part and of the whole batch are rounded differently. The scale is
    # small, or a sum over the whole batch overflows where sums over parts do not.
    results = []
    for strategy in (None, mirrored(2), mirrored(4)):
        keras.utils.set_random_seed(3)
        keras.config.set_dtype_policy(policy)
        try:
            with strategy.scope() if strategy else contextlib.nullcontext():
                model = sequence([6], layers.Dense(8, "tanh"), layers.Dense(1, dtype="float32"))
                optimizer = keras.optimizers.SGD(0.05)
                if policy == "mixed_float16":
                    optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)
                model.compile(optimizer, "mse")
        finally:
            keras.config.set_dtype_policy("float32")
        history = model.fit(NUMBERS, TARGETS, batch_size=BATCH, epochs=3, shuffle=False, verbose=0).history
        results.append([*history["loss"], *(number for weight in model.get_weights() for number in weight.ravel())])
    np.testing.assert_allclose(results[1], results[0], rtol=2e-2, atol=2e-3)
    np.testing.assert_allclose(results[2], results[0], rtol=2e-2, atol=2e-3)


def test_validation_split_and_data_are_evaluated_as_on_one_device():
    results = []
    for strategy in (None, mirrored(4)):
        keras.utils.set_random_seed(3)
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = sequence([6], layers.Dense(1))
            model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
        split = model.fit(NUMBERS, TARGETS, validation_split=0.3, batch_size=BATCH, shuffle=False, verbose=0).history
        data = model.fit(NUMBERS, TARGETS, validation_data=(NUMBERS[:3], TARGETS[:3]), batch_size=BATCH,
                         shuffle=False, verbose=0).history
        results.append([*split["val_loss"], *split["val_mae"], *data["val_loss"], *data["val_mae"]])
    np.testing.assert_allclose(results[1], results[0], rtol=TOLERANCE)
