"""Trains a small convolutional network on handwritten digits, with several replicas.

The replicas are GPUs where the machine has enough of them, else virtual CPU devices. 1,437 digits
train, 360 are held out. The last two lines of the output are the accuracy on these and a hash of
the weights, the same on every run with the same flags on one machine. A run that is interrupted,
by Ctrl-C or by SIGKILL, goes on when it is started again with the same `--model_dir`, and ends with the
same lines; one that has ended trains no more.

    python examples/digits.py --replicas=4
    lockstep launch --workers=2 examples/digits.py --replicas=4

By the second command two processes share the replicas; the chief writes and prints.
"""

import hashlib
import os
import tempfile

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import lockstep
from lockstep.training import Trainer

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "digits.csv.gz")
HELD_OUT_PER_DIGIT = 36
SPLIT_SEED = 0
STEPS_PER_LOOP = 5
STEPS_PER_CHECKPOINT = 50

FLAGS = flags.FLAGS
flags.DEFINE_integer("replicas", 4, "How many copies of the model train together, on all workers.", lower_bound=1)
flags.DEFINE_integer("steps", 300, "How many steps to train.", lower_bound=1)
flags.DEFINE_integer("global_batch", 128, "Digits per step, over all replicas.", lower_bound=1)
flags.DEFINE_string("model_dir", None, "Where the run is kept, to be continued, and the model saved; if not given, a "
                    "new temporary folder.")
flags.DEFINE_integer("seed", 1, "Seed of the first weights and of the order of the digits.", lower_bound=0)


def make_strategy(replicas):
    """A strategy of so many replicas: on GPUs, or on virtual CPU devices where there are not enough.

    Where TF_CONFIG tells of several workers, as `lockstep launch` sets it, they share the replicas out.
    """
    workers = max(len(tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec().as_dict()
                      .get("worker", [])), 1)
    if replicas % workers:
        raise app.UsageError(f"--replicas={replicas}: {workers} workers cannot share them. Choose a multiple.")
    count = replicas // workers
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) >= count:
        tf.config.set_visible_devices(gpus[:count], "GPU")
    else:
        tf.config.set_visible_devices([], "GPU")
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return lockstep.MultiWorkerMirroredStrategy()


def load_digits():
    """Images [n, 8, 8, 1] from 0 to 1 and labels [n], as (train, held out): a fixed, stratified split."""
    table = np.loadtxt(DATA, delimiter=",", dtype=np.float32)
    table = np.random.default_rng(SPLIT_SEED).permutation(table)
    images, labels = table[:, :64].reshape(-1, 8, 8, 1) / 16, table[:, 64].astype(np.int32)
    # Of each digit, the first ones in the shuffled order are held out.
    earlier_of_same_digit = np.array([np.sum(labels[:i] == labels[i]) for i in range(len(labels))])
    held_out = earlier_of_same_digit < HELD_OUT_PER_DIGIT
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


def make_model():
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def make_folder(strategy):
    """The folder of the run, the same on all workers; raises before training where nothing could be saved in it."""
    if FLAGS.model_dir is None:
        chosen = tempfile.mkdtemp(prefix="lockstep_digits_") if strategy.is_chief else ""
        return strategy.broadcast(chosen).numpy().decode()
    folder = FLAGS.model_dir
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise app.UsageError(f"--model_dir={folder}: cannot write there ({error}). Choose another folder.") from error
    return folder


def hash_of(weights):
    """The sha256 of all weights, one after the other."""
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(keras.ops.convert_to_numpy(weight).tobytes())
    return digest.hexdigest()


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}. Flags start with --.")
    strategy = make_strategy(FLAGS.replicas)
    model_dir = make_folder(strategy)
    keras.utils.set_random_seed(FLAGS.seed)
    tf.config.experimental.enable_op_determinism()
    train, held_out = load_digits()
    train_data = tf.data.Dataset.from_tensor_slices(train).shuffle(len(train[1]), seed=FLAGS.seed)
    eval_data = tf.data.Dataset.from_tensor_slices(held_out)

    with strategy.scope():
        model = make_model()
        optimizer = keras.optimizers.Adam(2e-3)

    def losses_and_hits(images, labels, training):
        logits = model(images, training=training)
        losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return losses, tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)

    def train_step(batch):
        with tf.GradientTape() as tape:
            losses, hits = losses_and_hits(*batch, training=True)
            loss = lockstep.average_loss(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return {"loss": loss, "accuracy": hits}

    def eval_step(batch):
        losses, hits = losses_and_hits(*batch, training=False)
        return {"loss": losses, "accuracy": hits}

    trainer = Trainer(
        strategy, train_step, train_data.batch(FLAGS.global_batch), steps_per_loop=STEPS_PER_LOOP,
        model_dir=model_dir, state={"model": model, "optimizer": optimizer}, save_every=STEPS_PER_CHECKPOINT,
        settings={name: FLAGS[name].value for name in ("replicas", "steps", "global_batch", "seed")})
    trainer.train(steps=FLAGS.steps)
    result = trainer.evaluate(eval_step, eval_data.batch(FLAGS.global_batch))
    if strategy.is_chief:
        path = os.path.join(model_dir, "digits.keras")
        model.save(path)
        print(f"saved in {path}")
        print(f"test accuracy {result['accuracy']:.3f}")
        print(f"weights {hash_of(model.weights)}")


if __name__ == "__main__":
    app.run(main)
