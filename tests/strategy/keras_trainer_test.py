"""Keras's trainer under a strategy: what it reports, what it takes and what it refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from testing.keras_corrections import without
from testing.replicas import mirrored


def linear(strategy, loss="mse", **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.1, **options), loss)
    return model


def test_a_step_reports_the_metrics_of_all_replicas():
    def reported():
        model = linear(mirrored(2))
        return model.train_on_batch(np.array([[1.0], [2.0], [3.0]]), np.zeros([3, 1]), return_dict=True)["loss"]

    def absolute_error():
        strategy = mirrored(2)
        with strategy.scope():
            model = keras.Sequential([keras.Input([1]), layers.Dense(1, use_bias=False, kernel_initializer="ones")])
            model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        return model.train_on_batch(np.array([[1.0], [2.0], [3.0]]), np.zeros([3, 1]), return_dict=True)["mae"]

    assert reported() == pytest.approx(14 / 3)
    assert absolute_error() == pytest.approx(2.0)
    with without("batch logs"):
        assert absolute_error() == pytest.approx((1.5 + 3.0) / 2)


def test_functions_for_one_batch_split_it():
    def shapes():
        model = linear(mirrored(2))
        return model.predict_on_batch(np.ones([3, 1])).shape

    assert shapes() == (3, 1)
    with without("batches"):
        assert shapes() == (6, 1)


def test_no_batch_of_a_generator_is_lost():
    def seen():
        model = linear(mirrored(2))
        seen = []
        callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))

        def generate():
            for _ in range(4):
                yield np.ones([2, 1]), np.zeros([2, 1])

        model.fit(generate(), verbose=0, callbacks=[callback])
        return len(seen)

    assert seen() == 4
    with without("first batch"):
        assert seen() < 4


def test_a_distributed_dataset_is_taken():
    strategy = mirrored(2)
    data = tf.data.Dataset.from_tensor_slices((np.ones([4, 1]), np.zeros([4, 1]))).batch(4)
    distributed = strategy.experimental_distribute_dataset(data)
    assert linear(strategy).evaluate(distributed, verbose=0) == 1.0
    with without("distributed data"):
        with pytest.raises(ValueError, match="Unrecognized data type"):
            linear(strategy).evaluate(distributed, verbose=0)


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "eager"])
def test_a_metric_that_a_model_updates_in_its_call_counts_once_outside_of_run(traced):
    class Counted(keras.Model):
        def __init__(self):
            super().__init__()
            self.mean, self.total = keras.metrics.Mean(), keras.metrics.Sum()

        def call(self, x):
            self.mean.update_state(x)
            self.total.update_state(x)
            return x

    with mirrored(2).scope():
        model = Counted()
    (tf.function(model) if traced else model)(tf.ones([2, 1]))
    assert float(model.mean.result()) == 1.0 and float(model.total.result()) == 2.0


def test_jit_compilation_is_refused_before_training():
    def model():
        with mirrored(2).scope():
            model = keras.Sequential([keras.Input([1]), layers.Dense(1)])
            model.compile("sgd", "mse", jit_compile=True)
        return model

    for call in (lambda: model().fit(np.ones([4, 1]), np.ones([4, 1]), verbose=0),
                 lambda: model().evaluate(np.ones([4, 1]), np.ones([4, 1]), verbose=0),
                 lambda: model().predict(np.ones([4, 1]), verbose=0)):
        with pytest.raises(ValueError, match="`jit_compile=True` under a strategy with several replicas"):
            call()
    with without("jit"):
        with pytest.raises(ValueError, match="all-reduce SUM .* stands in a tf.function that XLA compiles"):
            model().fit(np.ones([4, 1]), np.ones([4, 1]), verbose=0)


def test_a_model_or_optimizer_that_was_not_made_under_the_scope_is_refused_by_name():
    def network():
        return keras.Sequential([keras.Input([1]), layers.Dense(1)], name="network")

    strategy, x = mirrored(2), np.ones([4, 1])
    outside = network()
    with strategy.scope():
        outside.compile("sgd", "mse")
        inside = network()
    with pytest.raises(ValueError, match="'network': it was built outside and its optimizer was made under a scope"):
        outside.fit(x, x, verbose=0)
    inside.compile("adam", "mse")
    with pytest.raises(ValueError, match="'network': it was built under a scope and its optimizer was made outside"):
        inside.fit(x, x, verbose=0)
    layer = layers.Dense(1, name="early")
    layer.build([None, 1])
    with strategy.scope():
        mixed = keras.Sequential([keras.Input([1]), layer], name="network")
        mixed.compile("sgd", "mse")
    with pytest.raises(ValueError, match="its variable 'early/kernel' was not made under the strategy's scope"):
        mixed.fit(x, x, verbose=0)
