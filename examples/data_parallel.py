"""Keras's interface for data-parallel training, on all devices.

Trains one model under `keras.distribution.DataParallel`, which on TensorFlow accepts all devices and trains on one, and
under `lockstep.DataParallel`, on four virtual CPU devices; and shows where the products of the model's matrices were
computed, as TensorFlow's executor tells it.

    python examples/data_parallel.py
"""

import os
import re
import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import lockstep

PROVIDER = flags.DEFINE_enum("provider", None, ["keras.distribution", "lockstep"], "Whose class; without it, both.")
NUM_ROWS = 7  # No multiple of the number of devices.


def train(data_parallel):
    """The losses of a short training, the last of the global batches having one row."""
    keras.utils.set_random_seed(1)
    x = np.linspace(-1, 1, NUM_ROWS * 3, dtype=np.float32).reshape(NUM_ROWS, 3)
    with data_parallel.scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model.fit(x, x.sum(axis=1), batch_size=6, epochs=3, shuffle=False, verbose=0).history["loss"]


def show(provider):
    """Trains in a process in which TensorFlow tells each op and its device."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "executor=1"}
    done = subprocess.run([sys.executable, os.path.abspath(__file__), f"--provider={provider}"], env=environment,
                          capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    devices = re.findall(r"Process node.*MatMul\[.*device: \S*device:(\S+)", done.stderr)
    print(f"{provider}.DataParallel: {done.stdout.splitlines()[-1]}; products on {', '.join(sorted(set(devices)))}")


def main(argv):
    del argv  # No arguments, flags only.
    if PROVIDER.value is None:
        show("keras.distribution")
        show("lockstep")
        return
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    distribution = {"keras.distribution": keras.distribution, "lockstep": lockstep}[PROVIDER.value]
    losses = train(distribution.DataParallel(devices=["cpu:0", "cpu:1", "cpu:2", "cpu:3"]))
    print(f"losses on {NUM_ROWS} rows " + ", ".join(f"{loss:.5f}" for loss in losses))


if __name__ == "__main__":
    app.run(main)
