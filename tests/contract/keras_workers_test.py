"""Keras on two and four workers: what a user sees of a training is that of one device, and the chief alone writes."""

import os

import keras
import numpy as np
import pytest
from contract.keras_callbacks_test import compiled, fit
from contract.keras_fit_test import TOLERANCE, trained

from programs.keras_fit import plain
from testing.workers import run_workers

# One replica for each worker, so that the last batch of three rows leaves one of four without any.
ON_FOUR = ("dense", "masked_sequences")
ON_TWO_OF_TWO = (
    "dense", "convolution", "synchronised_batch_normalization", "sample_weights", "class_weights",
    "several_inputs_and_outputs", "own_train_step", "clipping_by_global_norm", "averaged_weights",
    "accumulated_and_clipped_gradients", "several_steps_per_execution", "scaled_loss", "strings",
    "only_batch_smaller_than_the_replicas", "steps_that_run_eagerly",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("callbacks")


@pytest.fixture(scope="module")
def two_of_two(folder):
    os.environ["FOLDER"] = str(folder)
    try:
        return run_workers("keras_fit", num_workers=2, replicas=2, args=ON_TWO_OF_TWO, deadline=400.0)
    finally:
        del os.environ["FOLDER"]


@pytest.fixture(scope="module")
def four():
    return run_workers("keras_fit", num_workers=4, args=ON_FOUR, deadline=300.0)


def check(workers, name, expected):
    for rank, worker in enumerate(workers):
        assert worker.code == 0, worker.output[-3000:]
        found = worker.results[name]
        assert {what: len(parts) for what, parts in found.items()} == \
            {what: len(parts) for what, parts in expected.items()}
        for what, parts in expected.items():
            for one, other in zip(parts, found[what], strict=True):
                np.testing.assert_allclose(other, one, rtol=TOLERANCE, atol=TOLERANCE, err_msg=f"{what}, worker {rank}")


@pytest.mark.parametrize("name", ON_TWO_OF_TWO)
def test_two_workers_of_two_replicas_give_the_numbers_of_one_device(two_of_two, name):
    check(two_of_two, name, plain(trained(name, None)))


@pytest.mark.parametrize("name", ON_FOUR)
def test_four_workers_of_one_replica_give_the_numbers_of_one_device(four, name):
    check(four, name, plain(trained(name, None)))


def test_the_numbers_of_all_workers_are_the_same_to_the_bit(two_of_two, four):
    for workers, names in ((two_of_two, ON_TWO_OF_TWO), (four, ON_FOUR)):
        for name in names:
            assert all(worker.results[name] == workers[0].results[name] for worker in workers)


def test_callbacks_write_once_and_a_training_goes_on_where_it_was_interrupted(two_of_two, folder):
    model = compiled(None)
    history = fit(model, 4)
    for worker in two_of_two:
        found = worker.results["callbacks"]
        # The first two epochs were trained before the interruption.
        np.testing.assert_allclose(found["history"], [value for name in sorted(history) for value in history[name][2:]],
                                   rtol=1e-3, atol=1e-4)
        for one, other in zip(model.get_weights(), found["weights"], strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    lines = (folder / "log.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", "0", "1", "2", "3"]
    assert {len(list((folder / "board" / part).iterdir())) for part in ("train", "validation")} == {2}
    best = keras.saving.load_model(folder / "best.keras")
    for one, other in zip(best.get_weights(), two_of_two[1].results["callbacks"]["best"], strict=True):
        np.testing.assert_array_equal(np.asarray(other, np.float32), one)
