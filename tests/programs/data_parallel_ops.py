"""What runs under a `DataParallel` of three devices, phase by phase: started with TF_CPP_VMODULE=executor=1, TensorFlow
tells each op and its device on stderr, between the names of the phases.
"""

import contextlib
import sys

import keras
import numpy as np
import tensorflow as tf

import lockstep

DEVICES = ["cpu:0", "/CPU:1", "cpu:3"]


@contextlib.contextmanager
def phase(name):
    print(f"PHASE {name}", file=sys.stderr, flush=True)
    yield
    print("PHASE", file=sys.stderr, flush=True)


def main():
    from testing.logical_devices import ask_for_logical_cpus

    ask_for_logical_cpus(4)
    x, y = np.ones([7, 3], np.float32), np.ones([7, 1], np.float32)
    data_parallel = lockstep.DataParallel(devices=DEVICES)
    with data_parallel.scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with phase("fit"):
            model.fit(x, y, batch_size=7, verbose=0)
        with phase("evaluate"):
            model.evaluate(x, y, batch_size=7, verbose=0)
        with phase("predict"):
            model.predict(x, batch_size=7, verbose=0)
        step = tf.function(lambda batch: model(batch))
        with phase("loop"):
            for batch in data_parallel.distribute_dataset(tf.data.Dataset.from_tensor_slices(x).batch(7)):
                data_parallel.strategy.run(step, args=(batch,))
    keras.distribution.set_distribution(data_parallel)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with phase("set_distribution"):
        model.fit(x, y, batch_size=7, verbose=0)


if __name__ == "__main__":
    main()
