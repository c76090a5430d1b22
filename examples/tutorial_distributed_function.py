"""The tutorial program of `tf.distribute`, with the class swapped: a function over distributed batches.

The strategy splits every global batch among its replicas, whatever its size, and the numbers are
those of one device on the global batch.

    python examples/tutorial_distributed_function.py
"""

import os

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import lockstep

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "digits.csv.gz")
STEPS = flags.DEFINE_integer("steps", 100, "How many steps to train.", lower_bound=1)


def main(argv):
    del argv  # No arguments, flags only.
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    keras.utils.set_random_seed(1)
    strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
    table = np.loadtxt(DATA, delimiter=",", dtype=np.float32)

    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    dataset = tf.data.Dataset.from_tensor_slices((table[:, :64] / 16, table[:, 64])).batch(64).repeat()
    distributed = strategy.experimental_distribute_dataset(dataset.take(STEPS.value))

    def train_step(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss(loss_fn(labels, model(images, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def distributed_train_step(inputs):
        per_replica_loss = strategy.run(train_step, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_loss, axis=None)

    losses = [float(distributed_train_step(inputs)) for inputs in distributed]
    print(f"loss {losses[0]:.4f} at the first step, {losses[-1]:.4f} at step {len(losses)}")


if __name__ == "__main__":
    app.run(main)
