"""Two workers, one of which fails in step 3: what the other one says, and what the launcher prints last.

    lockstep launch --workers=2 examples/failing_worker.py
"""

import tensorflow as tf
from absl import app

import lockstep

FAILING_STEP = 3


def read_batch(step, worker):
    """A batch; worker 1's third one is missing."""
    if worker == 1 and step == FAILING_STEP:
        raise FileNotFoundError(f"no such file: batch_{step}.npy")
    return tf.fill([2], float(step))


def main(argv):
    del argv
    strategy = lockstep.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weight = tf.Variable(1.0)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss((weight * x) ** 2)
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(0.01 * tf.distribute.get_replica_context().all_reduce("SUM", gradient))
        return loss

    for step in range(1, 6):
        loss = strategy.run(train_step, args=(read_batch(step, strategy.worker_index),))
        print(f"step {step}, loss {float(strategy.reduce('SUM', loss)):.3f}")


if __name__ == "__main__":
    app.run(main)
