"""Corrections of Keras: written for the Keras that is installed, and refused when Keras has changed."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import lockstep
from lockstep.strategy import corrections
from lockstep.strategy.keras_corrections import CORRECTIONS
from testing.replicas import mirrored

NAMES = sorted({correction.name for correction in CORRECTIONS})


@pytest.mark.parametrize("correction", CORRECTIONS, ids=lambda correction: f"{correction.name}-{correction.path}")
def test_keras_is_the_one_that_the_correction_was_written_for(correction):
    owner = inspect.importlib.import_module(correction.module)
    for part in correction.path.split("."):
        owner = getattr(owner, part)
    assert corrections.fingerprint(inspect.unwrap(owner)) in correction.fingerprints


def test_a_keras_that_has_changed_is_refused_where_it_is_used_by_several_replicas():
    def changed(values):
        return values + 1

    correction = corrections.Correction("clipping", "it clips too early", __name__, "changed", ("0" * 12,),
                                        lambda original, values: values)
    corrected = corrections._corrected(correction, changed)
    assert corrected(1) == 2  # Outside of a step Keras is as it is.
    assert mirrored(1).run(lambda: corrected(1)) == 2
    with pytest.raises(RuntimeError, match="has changed.*'clipping' was not written for it \\(it clips too early\\)"):
        mirrored(2).run(lambda: corrected(1))


@pytest.mark.parametrize("name", ["cliping", None, ["clipping"]])
def test_an_unknown_correction_is_refused_with_the_names_that_there_are(name):
    with pytest.raises(ValueError, match="no correction .*'clipping'"):
        lockstep.set_keras_correction(name, enabled=False)


def test_a_switch_that_is_neither_on_nor_off_is_refused():
    with pytest.raises(TypeError, match="`enabled` is 'off'. Expected True or False"):
        lockstep.set_keras_correction("clipping", enabled="off")


@pytest.mark.parametrize("name", NAMES)
def test_each_correction_is_described(name):
    assert f'- "{name}": ' in lockstep.set_keras_correction.__doc__


def test_under_tensorflows_own_strategy_keras_is_as_it_is():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = keras.Variable([0.0, 0.0])
        optimizer = keras.optimizers.SGD(1.0, clipnorm=1.0)
        optimizer.build([v])
    gradient = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([3.0, 0.0] if context.replica_id_in_sync_group == 0 else [0.0, 4.0]))
    strategy.run(tf.function(lambda g: optimizer.apply([g], [v])), args=(gradient,))
    np.testing.assert_allclose(v.numpy(), [-1.0, -1.0], rtol=1e-6)
