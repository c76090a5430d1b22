"""A run that kills itself, or is killed, and goes on: shuffled, repeated, batched data, dropout, momentum.

    resume.py FOLDER EVENT    EVENT is "none", or "before", "during" or "after" the checkpoint of step 4, or "stop"
"""

import json
import os
import signal
import sys

import numpy as np
import tensorflow as tf

import lockstep


def run(strategy, folder, actions=(), steps_per_loop=1, save_every=2):
    """Trains 5 steps, evaluates, and trains an epoch; returns the weights and the results."""
    tf.random.set_seed(5)
    with strategy.scope():
        weights = tf.Variable(tf.ones([3, 1]))
        momentum = tf.Variable(tf.zeros([3, 1]))

    def train_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            hidden = tf.nn.dropout(tf.linalg.matmul(x, weights), 0.3)
            loss = lockstep.average_loss((hidden[:, 0] - y) ** 2)
        gradient = tf.distribute.get_replica_context().all_reduce("SUM", tape.gradient(loss, weights))
        momentum.assign(0.9 * momentum + gradient)
        weights.assign_sub(0.01 * momentum)
        return {"loss": loss}

    x = np.random.default_rng(1).normal(size=[14, 3]).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1))).shuffle(14, seed=3)
    held_out = tf.data.Dataset.from_tensor_slices((x[:5], x[:5].sum(1)))
    trainer = lockstep.training.Trainer(
        strategy, train_step, data.batch(4), steps_per_loop=steps_per_loop, progress="none", actions=actions,
        model_dir=folder, state={"weights": weights, "momentum": momentum}, save_every=save_every, keep=2)
    results = [trainer.train(steps=5), trainer.evaluate(lambda batch: {"x": batch[1]}, held_out.batch(4)),
               trainer.train(epochs=1)]
    return weights.numpy().tolist(), results, trainer.step


def log(folder):
    """The log's lines without their times."""
    with open(os.path.join(folder, "log.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def main(folder, event):
    from testing.logical_devices import ask_for_logical_cpus
    from testing.workers import report

    ask_for_logical_cpus(int(os.environ["LOCKSTEP_TEST_REPLICAS"]))
    strategy = lockstep.MultiWorkerMirroredStrategy(options=lockstep.CollectiveOptions(timeout_seconds=20))

    def die(number=signal.SIGKILL):
        if strategy.worker_index == strategy.num_workers - 1:
            os.kill(os.getpid(), number)

    rename = os.rename

    def dying(source, target):
        is_fourth = target.endswith("step_000000004")
        if is_fourth and event == "during":
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)
        if is_fourth and event == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    os.rename = dying

    def act(step, outputs):
        if step == 4 and event == "before":
            die()
        if step == 3 and event == "stop":
            die(signal.SIGTERM)

    weights, results, step = run(strategy, folder, [act])
    report("weights", weights)
    report("results", results)
    report("step", step)


if __name__ == "__main__":
    main(*sys.argv[1:])
