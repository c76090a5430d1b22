"""A training loop of one's own on one device. `loop_replicas.py` is the same loop on several.

    python examples/loop_one_device.py
"""

import os

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
table = np.loadtxt(os.path.join(os.path.dirname(__file__), "data", "digits.csv.gz"), delimiter=",", dtype=np.float32)
data = tf.data.Dataset.from_tensor_slices((table[:, :64] / 16, table[:, 64])).batch(100)  # The last batch has 97 rows.

model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
optimizer = keras.optimizers.Adam(0.01)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)


@tf.function
def train_step(batch):
    images, labels = batch
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(loss_fn(labels, model(images, training=True)))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


for epoch in range(1, 6):
    for batch in data:
        loss = train_step(batch)
    print(f"epoch {epoch}: loss of the last batch {float(loss):.4f}")
