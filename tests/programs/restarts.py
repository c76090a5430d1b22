"""A training that is killed once and goes on: six steps, with a checkpoint after each.

    restarts.py folder          trains to the end
    restarts.py folder kill     worker 1 dies after the third step, unless this is a restart

`lockstep launch` says in LOCKSTEP_RESTART_COUNT how often the job was started before.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import keras
import tensorflow as tf

import lockstep
from testing.logical_devices import ask_for_logical_cpus
from testing.workers import report

NUM_STEPS, LAST_BEFORE_DEATH = 6, 3


def main(folder: str, event: str = "") -> None:
    ask_for_logical_cpus(int(os.environ["LOCKSTEP_TEST_REPLICAS"]))
    keras.utils.set_random_seed(4)
    strategy = lockstep.MultiWorkerMirroredStrategy(options=lockstep.CollectiveOptions(timeout_seconds=60))
    with strategy.scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.3),
                                  keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.1)
        step_number = tf.Variable(0, trainable=False)
    rows = tf.reshape(tf.range(90.0) / 90, [30, 3])
    # Another order in every epoch, which has two batches of twelve rows and one of six.
    dataset = tf.data.Dataset.from_tensor_slices((rows, tf.reduce_sum(rows, 1))).shuffle(30, seed=5).batch(12).repeat()
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    # `model=model` alone would leave out the seeds of Dropout, which Keras hides from TensorFlow.
    checkpoint = tf.train.Checkpoint(variables=model.variables, optimizer=optimizer, iterator=iterator,
                                     step=step_number, random_streams=strategy.random_streams)
    manager = tf.train.CheckpointManager(checkpoint, os.path.join(folder, "checkpoints"), max_to_keep=2)
    manager.restore_or_initialize()

    @tf.function
    def step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            noise = tf.random.normal(tf.shape(x), stddev=0.1)
            loss = lockstep.average_loss((model(x + noise, training=True)[:, 0] - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    losses = {}
    while int(step_number) < NUM_STEPS:
        loss = strategy.reduce("SUM", strategy.run(step, args=(next(iterator),)))
        step_number.assign_add(1)
        losses[int(step_number)] = float(loss)
        manager.save()
        if event == "kill" and int(step_number) == LAST_BEFORE_DEATH and not strategy.is_chief \
                and os.environ["LOCKSTEP_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    report("losses", losses)
    report("variables", [variable.numpy().tolist() for variable in [*model.variables, *optimizer.variables]])
    strategy.barrier("end")


if __name__ == "__main__":
    main(*sys.argv[1:])
