"""`DataParallel` on several workers: what each one sees; strategy/data_parallel_workers_test.py says what it should.

With the argument "initialize" the cluster is handed to `lockstep.initialize`, and TF_CONFIG removed before.
"""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf

import lockstep

X = np.arange(21, dtype=np.float32).reshape(7, 3) / 10
Y = X.sum(axis=1, keepdims=True) + 1


def train(data):
    """Losses, predictions and weights of a short training."""
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    history = model.fit(*data, epochs=2, verbose=0, shuffle=False, batch_size=None if len(data) == 1 else 5).history
    seen = [*history["loss"], *history["mae"], *model.evaluate(*data, verbose=0),
            *model.predict(data[0], verbose=0).ravel(), *model.get_weights()[0].ravel()]
    return [float(value) for value in seen]


def batches():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(5)


def parts(data_parallel, dataset):
    """The rows of this worker's replicas, step by step."""
    return [[part.numpy().tolist() for part in data_parallel.strategy.experimental_local_results(batch)]
            for batch in data_parallel.distribute_dataset(dataset)]


def main(arguments):
    from testing.logical_devices import ask_for_logical_cpus
    from testing.workers import report

    ask_for_logical_cpus(int(os.environ["LOCKSTEP_TEST_REPLICAS"]))
    options = lockstep.CollectiveOptions(timeout_seconds=60)
    config = json.loads(os.environ["TF_CONFIG"])
    addresses, rank = config["cluster"]["worker"], config["task"]["index"]
    if "initialize" in arguments:
        del os.environ["TF_CONFIG"]
        lockstep.initialize(",".join(addresses), len(addresses), rank, options)
        report("TF_CONFIG", json.loads(os.environ["TF_CONFIG"]) == config)
        tf.zeros([])  # The servers run: what comes before the distribution is free.
    data_parallel = lockstep.DataParallel(options=options)
    mesh = data_parallel.device_mesh
    report("place", [data_parallel.num_processes, data_parallel.data_shard_id, data_parallel.num_model_replicas,
                     data_parallel.strategy.num_replicas_in_sync])
    report("devices", [lockstep.list_devices(), mesh.devices.tolist(), mesh.backend_mesh.tolist()])
    with data_parallel.scope():
        report("arrays", train((X, Y)))
        report("dataset", train((batches(),)))
    if "initialize" not in arguments:
        return
    grid = lockstep.DeviceMesh((2, 2), ["rows", "other"], mesh.backend_mesh.tolist())
    again = lockstep.DataParallel(grid)
    report("again", again.strategy.extended.worker_devices == data_parallel.strategy.extended.worker_devices)
    report("rows", parts(data_parallel, tf.data.Dataset.range(7).batch(5)))
    report("elements", [int(one) for one in data_parallel.distribute_dataset(tf.data.Dataset.range(7))])
    data_parallel.auto_shard_dataset = False
    own = tf.data.Dataset.range(10 * rank, 10 * rank + 5).batch(3)
    report("own rows", parts(data_parallel, own))
    report("own elements", data_parallel.distribute_dataset(own.unbatch()) is not None)
    split = lockstep.distribute_tensor(tf.range(7), data_parallel.get_data_layout([None]))
    whole = lockstep.relayout(split, lockstep.TensorLayout([None], mesh))
    report("placed", [[[part.device, part.numpy().tolist()] for part in value.values] for value in (split, whole)])
    try:
        lockstep.DataParallel(devices=["cpu:0", "cpu:1"])
    except ValueError as error:
        report("error", str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
