"""Where Keras 3 computes wrongly under any strategy, or loses its way, and what corrects it in a step of ours.

    lockstep.set_keras_correction("clipping", enabled=False)

Each correction takes the place of one function of Keras, see corrections.py.
"""

from __future__ import annotations

import sys

from . import corrections
from . import keras_callbacks as callbacks
from . import keras_numbers as numbers
from . import keras_trainer as trainer
from .corrections import Correction

_installed = False


def set_keras_correction(name: str, enabled: bool) -> None:
    """Switches a correction of Keras on or off, for steps that are traced from now on.

    >>> lockstep.set_keras_correction("clipping", enabled=False)
    >>> lockstep.set_keras_correction("clipping", enabled=True)

    Args:
        name: One of

            - "loss mean": a loss is divided by the rows (valid steps, weights) that all replicas have, not by the
              replica's own and by the number of replicas; additional losses weigh by rows.
            - "clipping": `clipnorm`, `global_clipnorm` and `clipvalue` act on the reduced gradient.
            - "given gradients": a gradient that comes from outside of the step is not summed once per replica.
            - "seeds": a `SeedGenerator` gives each replica another seed: dropout masks differ.
            - "moving statistics": BatchNormalization's become the mean over the replicas, weighted by rows.
            - "loss scale": a gradient that is not finite on one replica counts on all.
            - "batch logs": the metrics that a step reports are those of all replicas.
            - "batches": `train_on_batch`, `test_on_batch` and `predict_on_batch` split the batch.
            - "first batch": a model is built from what the dataset says of its elements, not from a batch of it.
            - "distributed data": `fit`, `evaluate` and `predict` take a distributed dataset.
            - "callbacks": on several workers the chief writes what is written once.
            - "jit": `jit_compile=True` is refused before training.
            - "scope": a model or an optimizer that was not made under the scope is refused before training.

        enabled: False leaves Keras as it is.

    Raises:
        ValueError: There is no such correction.
        TypeError: `enabled` is no bool.
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"`set_keras_correction`: `enabled` is {enabled!r}. Expected True or False.")
    if not isinstance(name, str) or name not in {correction.name for correction in CORRECTIONS}:
        names = ", ".join(sorted({repr(correction.name) for correction in CORRECTIONS}))
        raise ValueError(f"`set_keras_correction`: there is no correction {name!r}. Use one of {names}.")
    (corrections.disabled.discard if enabled else corrections.disabled.add)(name)


def install() -> None:
    """Puts the corrections in place, once Keras is loaded."""
    global _installed
    if not _installed and "keras" in sys.modules:
        _installed = True
        corrections.install(CORRECTIONS)


_LOSS = "keras.src.losses.loss"
_BASE_TRAINER = "keras.src.trainers.trainer"
_TRAINER = "keras.src.backend.tensorflow.trainer"
_BATCH_NORMALIZATION = "keras.src.layers.normalization.batch_normalization"
_JIT = "it fails while the first step is traced"
_MAKERS = {"train": "901acf9e6900", "test": "7137ef049d0b", "predict": "af82571fdd83"}

# The fingerprints are those of Keras 3.15.
CORRECTIONS = (
    Correction("loss mean", "it divides by the replica's own rows and then by the number of replicas",
               _LOSS, "reduce_values", ("4b31b3c6b173",), numbers.reduce_values),
    Correction("loss mean", "it divides by the replica's own valid steps",
               _LOSS, "apply_mask", ("b7aa2ed2bf68",), numbers.apply_mask),
    Correction("loss mean", "it takes a replica's loss for that of the batch",
               _LOSS, "unscale_loss_for_distribution", ("57254718682a",), numbers.unscale_loss),
    Correction("loss mean", "additional losses do not know the rows",
               _BASE_TRAINER, "Trainer.compute_loss", ("677ead500adf",), numbers.compute_loss),
    Correction("loss mean", "it divides additional losses by the number of replicas",
               _TRAINER, "TensorFlowTrainer._aggregate_additional_loss", ("19cc9c02e417",), numbers.additional_loss),
    Correction("clipping", "it clips each replica's gradient before they are summed",
               "keras.src.optimizers.base_optimizer", "BaseOptimizer._clip_gradients", ("5656249e7889",),
               numbers.clip_gradients),
    Correction("given gradients", "it sums a gradient from outside once per replica",
               "keras.src.backend.tensorflow.optimizer", "TFOptimizer._all_reduce_sum_gradients", ("46a9bff35520",),
               numbers.all_reduce_sum_gradients),
    Correction("loss scale", "each replica looks at its own gradients only",
               "keras.src.optimizers.loss_scale_optimizer", "LossScaleOptimizer.check_finite", ("5386095841a0",),
               numbers.check_finite),
    Correction("seeds", "all replicas draw the same seeds, and with them the same dropout masks",
               "keras.src.random.seed_generator", "SeedGenerator.next", ("47a38250dd9d",), numbers.next_seed),
    Correction("moving statistics", "they are those of replica 0, or the plain mean",
               _BATCH_NORMALIZATION, "BatchNormalization.call", ("f1755265bb10",), numbers.normalize),
    Correction("moving statistics", "those of a replica without rows are NaN",
               _BATCH_NORMALIZATION, "BatchNormalization._moments", ("57bcee05bce8",), numbers.moments),
    Correction("batch logs", "the replicas report metrics of their own",
               _BASE_TRAINER, "Trainer.get_metrics_result", ("721522c70de4",), trainer.metrics_result),
    Correction("batch logs", "it averages the replicas' own metrics",
               _TRAINER, "reduce_per_replica", ("5fd739f84929",), trainer.reduce_per_replica, anywhere=True),
    *(Correction("jit", _JIT, _TRAINER, f"TensorFlowTrainer.make_{name}_function", (mark,), trainer.make_function, True)
      for name, mark in _MAKERS.items()),
    Correction("scope", "it fails in the middle of the first step with text about something else",
               _TRAINER, "TensorFlowTrainer.make_train_function", (_MAKERS["train"],), trainer.make_train_function,
               True),
    Correction("scope", "it fails before the first step with text about something else",
               _TRAINER, "TensorFlowTrainer._maybe_symbolic_build", ("e6b142865da8",), trainer.symbolic_build, True),
    Correction("scope", "it fails while the first step is traced with text about something else",
               "keras.src.backend.tensorflow.optimizer", "TFOptimizer.add_variable_from_reference", ("bb2b0b3e13e3",),
               numbers.add_variable_from_reference),
    Correction("first batch", "it takes the mean of the replicas' parts to see a shape, and loses a generator's batch",
               _TRAINER, "TensorFlowTrainer._maybe_symbolic_build", ("e6b142865da8",), trainer.build_from_specs, True),
    Correction("distributed data", "it knows TensorFlow's own class only",
               "keras.src.trainers.data_adapters", "is_tf_dataset", ("8db4c84f4b11",), trainer.is_tf_dataset, True),
    *(Correction("callbacks", "every worker writes the same files", f"keras.src.callbacks.{path}", name, (mark,),
                 replacement, True)
      for path, name, mark, replacement in (
          ("callback_list", "CallbackList.__init__", "10151854ac9d", callbacks.only_the_chiefs),
          ("model_checkpoint", "ModelCheckpoint._save_model", "604605062540", callbacks.checkpoint),
          ("backup_and_restore", "BackupAndRestore._save_model", "b450b88e26d5", callbacks.backup),
          ("backup_and_restore", "BackupAndRestore.on_train_end", "0a689ee55ae9", callbacks.delete_backup))),
    *(Correction("batches", "train_on_batch and its like give every replica the whole batch", _TRAINER,
                 f"TensorFlowTrainer.make_{name}_function", (mark,), trainer.make_splitting_function, True)
      for name, mark in _MAKERS.items()),
    Correction("batches", "it gives every replica the whole batch", _TRAINER, "TensorFlowTrainer.predict_on_batch",
               ("0180c8f11740",), trainer.predict_on_batch, True),
)
