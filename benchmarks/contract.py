"""What users run under a strategy, beside `tf.distribute.MirroredStrategy`: right, wrong, an error, or no end.

Each case runs on two virtual CPU devices, in a process of its own for each of the two, and its number is compared with
that of one device.

    python benchmarks/contract.py
"""

import contextlib
import json
import os
import subprocess
import sys

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_list("cases", [], "Only these cases.")
flags.DEFINE_string("only", "", "For the processes that run a case: lockstep, peer or alone.")
flags.DEFINE_integer("deadline", 120, "Seconds after which a case counts as one that does not end.")

TOLERANCE = 1e-4
CASES = {}


def case(text):
    """Adds a case: a function of a strategy (None: one device) that returns numbers."""
    def add(function):
        CASES[function.__name__] = (text, function)
        return function

    return add


def scope(strategy):
    return strategy.scope() if strategy else contextlib.nullcontext()


def rows(count):
    import numpy as np
    x = np.arange(1, 1 + count, dtype=np.float32)[:, None]
    return x, np.zeros_like(x)


def fitted(strategy, count=7, batch=7, loss="mse", layers=(), compile_with=None, fit_with=None, **optimizer):
    """The loss and the kernel after an epoch."""
    import keras
    with scope(strategy):
        model = keras.Sequential([keras.Input([1]), *(make() for make in layers),
                                  keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.001, **optimizer), loss, **(compile_with or {}))
    x, y = rows(count)
    history = model.fit(x, y, batch_size=batch, shuffle=False, verbose=0, **(fit_with or {})).history
    return [history["loss"][0], float(model.layers[-1].kernel.numpy()[0, 0])]


@case("`fit`, the only batch has 7 rows")
def odd_batch(strategy):
    return fitted(strategy)


@case("`fit`, 5 rows in batches of 4")
def partial_batch(strategy):
    return fitted(strategy, count=5, batch=4)


@case("`fit` with sample weights, 7 rows")
def sample_weights(strategy):
    return fitted(strategy, fit_with={"sample_weight": rows(7)[0][:, 0]})


@case("`fit` with `clipnorm`, 8 rows")
def clipping(strategy):
    return fitted(strategy, count=8, batch=8, clipnorm=30.0)


@case("`fit` with `gradient_accumulation_steps=2`")
def accumulation(strategy):
    return fitted(strategy, count=16, batch=8, gradient_accumulation_steps=2)


@case("`fit` with `use_ema`, overwritten every 2 steps")
def averaged_weights(strategy):
    return fitted(strategy, count=16, batch=8, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)


@case("`fit` with `steps_per_execution=2`")
def several_steps(strategy):
    return fitted(strategy, count=16, batch=8, compile_with={"steps_per_execution": 2})


@case("`fit` on strings")
def strings(strategy):
    import keras
    import numpy as np
    import tensorflow as tf
    with scope(strategy):
        words = keras.Input([1], dtype="string")
        ids = keras.layers.StringLookup(vocabulary=["a", "b"])(words)
        embedded = keras.layers.Embedding(3, 1, embeddings_initializer="ones")(ids)
        model = keras.Model(words, keras.layers.Flatten()(embedded))
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x = tf.constant([["a"], ["b"], ["a"]])
    return model.fit(x, np.zeros([3, 1]), batch_size=3, verbose=0).history["loss"]


@case("masked sequences, valid steps 1 and 2")
def masked_sequences(strategy):
    import keras
    import numpy as np
    with scope(strategy):
        model = keras.Sequential([keras.Input([2, 1]), keras.layers.Masking(), keras.layers.Dense(
            1, use_bias=False, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.array([[[1.0], [0.0]], [[2.0], [3.0]]], np.float32)
    model.fit(x, np.zeros_like(x), batch_size=2, verbose=0)
    return [float(model.layers[-1].kernel.numpy()[0, 0])]


@case("`train_on_batch`, loss of 3 rows that is a sum")
def on_batch(strategy):
    import keras
    with scope(strategy):
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.001), keras.losses.MeanSquaredError(reduction="sum"))
    model.train_on_batch(*rows(3))
    return [float(model.layers[-1].kernel.numpy()[0, 0])]


@case("batches of a generator that `fit` sees")
def generator(strategy):
    import keras
    with scope(strategy):
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    seen = []

    def generate():
        for _ in range(4):
            yield rows(2)

    model.fit(generate(), verbose=0, callbacks=[keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch))])
    return [len(seen)]


@case("convolution and pooling, 1 row for 2 replicas")
def convolution(strategy):
    import keras
    import numpy as np
    with scope(strategy):
        model = keras.Sequential([
            keras.Input([6, 6, 1]), keras.layers.Conv2D(2, 3, activation="relu", kernel_initializer="ones"),
            keras.layers.MaxPooling2D(), keras.layers.Flatten(), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(1e-4), "mse")
    x = np.ones([1, 6, 6, 1], np.float32)
    model.fit(x, np.zeros([1, 1]), batch_size=2, verbose=0)
    return [float(model.predict(x, verbose=0)[0, 0])]


@case("share of dropout masks that differ between the replicas")
def dropout(strategy):
    import keras
    import numpy as np
    import tensorflow as tf
    if strategy is None:
        return [1.0]
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=1)
    masks = strategy.run(tf.function(lambda: layer(tf.ones([64]), training=True)))
    first, second = (part.numpy() for part in strategy.experimental_local_results(masks))
    return [float(not np.array_equal(first, second))]


@case("moving mean of a local BatchNormalization, rows 1, 2, 3 and 10")
def moving_mean(strategy):
    import keras
    import tensorflow as tf
    if strategy is None:
        return [4.0]
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.0)
        layer.build([None, 1])
    parts = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([[1.0], [2.0], [3.0]] if context.replica_id_in_sync_group == 0 else [[10.0]]))
    strategy.run(tf.function(lambda x: layer(x, training=True)), args=(parts,))
    return [float(layer.moving_mean.numpy()[0])]


@case("a gradient that is infinite on one replica, loss scaling")
def loss_scale(strategy):
    import keras
    import tensorflow as tf
    with scope(strategy):
        weight = keras.Variable(1.0)
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
        optimizer.build([weight])
    step = tf.function(lambda gradient: optimizer.apply([gradient], [weight]))
    infinite = float("inf")
    if strategy is None:
        step(tf.constant(infinite))
    else:
        strategy.run(step, args=(strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(1.0 if context.replica_id_in_sync_group == 0 else infinite)),))
    return [float(weight.numpy()), float(optimizer.dynamic_scale.numpy())]


@case("all-reduce inside `tf.cond`")
def reduce_in_a_branch(strategy):
    import tensorflow as tf
    if strategy is None:
        return [2.0]

    def step():
        context = tf.distribute.get_replica_context()
        return tf.cond(tf.constant(True), lambda: context.all_reduce("SUM", tf.constant(1.0)), lambda: tf.constant(0.0))

    return [float(strategy.experimental_local_results(strategy.run(tf.function(step)))[0])]


@case("different values written to one mirrored variable: copies equal, or an error")
def divergence(strategy):
    import tensorflow as tf
    if strategy is None:
        return [0.0]
    with strategy.scope():
        variable = tf.Variable(0.0)

    def step():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        variable.assign(tf.cast(replica, tf.float32))

    with contextlib.suppress(ValueError, tf.errors.InvalidArgumentError):
        strategy.run(tf.function(step))
    first, second = (float(part) for part in strategy.experimental_local_results(variable))
    return [abs(first - second)]


@case("a tape around `strategy.run`")
def tape_around(strategy):
    import tensorflow as tf
    with scope(strategy):
        weight = tf.Variable(2.0)
    step = tf.function(lambda: weight ** 2)
    with tf.GradientTape() as tape:
        if strategy is None:
            total = 2 * step()
        else:
            total = strategy.reduce("SUM", strategy.run(step), axis=None)
    return [float(tape.gradient(total, weight))]


@case("strategies that are still in memory after five were dropped")
def memory(strategy):
    import gc
    import weakref

    import tensorflow as tf
    if strategy is None:
        return [0]
    dropped = []
    for _ in range(5):
        one = type(strategy)(["CPU:0", "CPU:1"])
        one.run(tf.function(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0))))
        dropped.append(weakref.ref(one))
        del one
    gc.collect()
    return [sum(reference() is not None for reference in dropped)]


def measure(kind, name):
    """Runs a case in this process."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf
    cpu, = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    import keras

    import lockstep
    keras.utils.set_random_seed(1)
    classes = {"lockstep": lockstep.MirroredStrategy, "peer": tf.distribute.MirroredStrategy}
    strategy = classes[kind](["CPU:0", "CPU:1"]) if kind in classes else None
    try:
        return {"numbers": [float(number) for number in CASES[name][1](strategy)]}
    except Exception as error:
        return {"error": type(error).__name__}


def in_a_process(kind, name):
    """Runs a case in a process of its own."""
    command = [sys.executable, __file__, f"--only={kind}", f"--cases={name}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FLAGS.deadline)
    except subprocess.TimeoutExpired:
        return {"error": f"no end in {FLAGS.deadline} s"}
    if done.returncode:
        return {"error": f"the process dies ({done.returncode})"}
    return json.loads(done.stdout.splitlines()[-1])


def verdict(found, expected):
    """One cell of the table."""
    if "error" in found:
        return found["error"]
    wrong = [f"{one:.6g} for {other:.6g}" for one, other in zip(found["numbers"], expected["numbers"], strict=True)
             if not abs(one - other) <= TOLERANCE * max(1.0, abs(other))]
    return f"wrong: {', '.join(wrong)}" if wrong else "right"


def main(_):
    names = FLAGS.cases or list(CASES)
    if FLAGS.only:
        print(json.dumps(measure(FLAGS.only, names[0])))
        return
    import keras
    import tensorflow as tf
    print(f"TensorFlow {tf.__version__}, Keras {keras.__version__}, 2 replicas\n")
    print("| case | Lockstep | `tf.distribute` |\n|---|---|---|")
    for name in names:
        expected = in_a_process("alone", name)
        cells = [verdict(in_a_process(kind, name), expected) for kind in ("lockstep", "peer")]
        print(f"| {CASES[name][0]} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    app.run(main)
