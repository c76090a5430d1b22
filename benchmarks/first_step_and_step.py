"""Time to the first step and time of a step, beside `tf.distribute.MirroredStrategy`.

A deep dense Keras model with Adam in a custom loop, on virtual CPU devices. Each measurement runs in a process of its
own, Lockstep's and the peer's in turn, so that both see the same machine. Both train on the same numbers; the last
losses are compared before anything is printed.

    python benchmarks/first_step_and_step.py --layers=30 --replicas=1,2,4,8
"""

import json
import os
import statistics
import subprocess
import sys
import time

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("layers", 30, "Dense layers of the model.")
flags.DEFINE_integer("width", 64, "Units of a layer.")
flags.DEFINE_list("replicas", ["1", "2", "4", "8"], "Numbers of replicas to measure.")
flags.DEFINE_integer("steps", 40, "Steps timed after the first and three more.")
flags.DEFINE_string("only", "", "For the processes that measure: lockstep or peer.")

ROWS = 64


def measure(kind, replicas, layers, width, steps):
    """Trains in this process and returns the figures."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf
    cpu, = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    import keras

    import lockstep
    keras.utils.set_random_seed(1)
    devices = [f"CPU:{index}" for index in range(replicas)]
    strategy = (lockstep.MirroredStrategy if kind == "lockstep" else tf.distribute.MirroredStrategy)(devices)
    with strategy.scope():
        model = keras.Sequential([keras.Input([width])] + [keras.layers.Dense(width, "relu") for _ in range(layers)]
                                 + [keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)

    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(batch, training=True) ** 2) / ROWS
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    @tf.function
    def train(batch):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(batch,)), axis=None)

    rows = tf.random.stateless_normal([ROWS, width], [1, 2])
    dataset = tf.data.Dataset.from_tensors(rows).repeat()
    batches = iter(strategy.experimental_distribute_dataset(dataset))
    batch = next(batches)
    start = time.perf_counter()
    train(batch).numpy()
    first = time.perf_counter() - start
    for _ in range(3):
        train(batch).numpy()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        loss = train(batch).numpy()
        times.append(time.perf_counter() - start)
    return {"first": first, "step": statistics.median(times), "loss": float(loss)}


def in_a_process(kind, replicas):
    """Runs `measure` in a process of its own."""
    command = [sys.executable, __file__, f"--only={kind}", f"--replicas={replicas}", f"--layers={FLAGS.layers}",
               f"--width={FLAGS.width}", f"--steps={FLAGS.steps}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    return json.loads(done.stdout.splitlines()[-1])


def main(_):
    if FLAGS.only:
        print(json.dumps(measure(FLAGS.only, int(FLAGS.replicas[0]), FLAGS.layers, FLAGS.width, FLAGS.steps)))
        return
    print(f"{FLAGS.layers} dense layers of {FLAGS.width}, Adam, {ROWS} rows; median of {FLAGS.steps} steps")
    print("replicas | first step s: lockstep  peer  ratio | step ms: lockstep  peer  ratio")
    for replicas in FLAGS.replicas:
        ours, peer = in_a_process("lockstep", replicas), in_a_process("peer", replicas)
        if abs(ours["loss"] - peer["loss"]) > 1e-3 * max(1.0, abs(peer["loss"])):
            raise RuntimeError(f"{replicas} replicas: the losses differ, {ours['loss']} and {peer['loss']}.")
        print(f"{replicas:>8} | {ours['first']:22.2f} {peer['first']:5.2f} {ours['first'] / peer['first']:6.2f} |"
              f" {1e3 * ours['step']:17.2f} {1e3 * peer['step']:5.2f} {ours['step'] / peer['step']:6.2f}", flush=True)


if __name__ == "__main__":
    app.run(main)
