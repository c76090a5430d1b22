"""A training loop of one's own on several replicas. `loop_one_device.py` is the same loop on one device.

    python examples/loop_replicas.py
"""

import os

import keras
import numpy as np
import tensorflow as tf

import lockstep

cpu, = tf.config.list_physical_devices("CPU")  # Two virtual devices, where there are no GPUs.
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = lockstep.MirroredStrategy()

keras.utils.set_random_seed(1)
table = np.loadtxt(os.path.join(os.path.dirname(__file__), "data", "digits.csv.gz"), delimiter=",", dtype=np.float32)
data = tf.data.Dataset.from_tensor_slices((table[:, :64] / 16, table[:, 64])).batch(100)  # The last batch has 97 rows.

with strategy.scope():
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
    optimizer = keras.optimizers.Adam(0.01)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)


@tf.function
def train_step(batch):
    images, labels = batch
    with tf.GradientTape() as tape:
        loss = lockstep.average_loss(loss_fn(labels, model(images, training=True)))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


for epoch in range(1, 6):
    for batch in strategy.experimental_distribute_dataset(data):
        loss = strategy.reduce("SUM", strategy.run(train_step, args=(batch,)), axis=None)
    print(f"epoch {epoch}: loss of the last batch {float(loss):.4f}")
