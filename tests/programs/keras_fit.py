"""Keras on several workers: the cases of contract/keras_fit_test.py by name, what a user sees of each training, and the
files that callbacks write into the folder FOLDER.
"""

import os
import sys

import tensorflow as tf

import lockstep


def main(names):
    from testing.logical_devices import ask_for_logical_cpus
    from testing.workers import report

    ask_for_logical_cpus(int(os.environ["LOCKSTEP_TEST_REPLICAS"]))
    strategy = lockstep.MultiWorkerMirroredStrategy(options=lockstep.CollectiveOptions(timeout_seconds=60))
    from contract import keras_fit_test

    for name in names:
        report(name, plain(keras_fit_test.trained(name, strategy)))
    if "FOLDER" in os.environ:
        report("callbacks", plain(callbacks(strategy, os.environ["FOLDER"])))


def callbacks(strategy, folder):
    """Losses and weights of a training that writes, is interrupted, and goes on; only the chief may write."""
    import keras
    from contract.keras_callbacks_test import Interrupt, compiled, fit

    def made():
        model = compiled(strategy)
        if not strategy.is_chief:
            model.save = model.save_weights = lambda *args, **kwargs: 1 / 0
        return model, [
            keras.callbacks.BackupAndRestore(os.path.join(folder, "backup"), delete_checkpoint=False),
            keras.callbacks.ModelCheckpoint(os.path.join(folder, "best.keras"), "val_loss", save_best_only=True),
            keras.callbacks.CSVLogger(os.path.join(folder, "log.csv"), append=True),
            keras.callbacks.TensorBoard(os.path.join(folder, "board")),
        ]

    model, writers = made()
    try:
        fit(model, 4, [*writers, Interrupt()])
    except KeyboardInterrupt:
        pass
    model, writers = made()
    history = fit(model, 4, [*writers, keras.callbacks.EarlyStopping("val_loss", patience=9)])
    best = keras.saving.load_model(os.path.join(folder, "best.keras"))
    return {"history": history, "weights": model.get_weights(), "best": best.get_weights()}


def plain(nest):
    """Lists of numbers, by what they are."""
    return {what: [tf.convert_to_tensor(leaf).numpy().tolist() for leaf in tf.nest.flatten(part)]
            for what, part in nest.items()}


if __name__ == "__main__":
    main(sys.argv[1:])
