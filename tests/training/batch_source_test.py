"""Tests of `lockstep.training.batch_source`: lengths, positions and ends of data."""

import pytest
import tensorflow as tf

from lockstep.training.batch_source import BatchSource, distribute
from testing.replicas import mirrored


def distributed(dataset, num_replicas=2):
    return distribute(mirrored(num_replicas), dataset, "train_data")


def source(num_batches):
    return BatchSource(distributed(tf.data.Dataset.range(2 * num_batches).batch(2)), "train_data")


def test_a_finite_dataset_tells_its_batches():
    data = distributed(tf.data.Dataset.range(5).batch(2))
    assert (data.num_batches, data.is_infinite) == (3, False)


def test_an_infinite_dataset_says_so():
    data = distributed(tf.data.Dataset.range(5).batch(2).repeat())
    assert (data.num_batches, data.is_infinite) == (None, True)


def test_a_filtered_dataset_has_an_unknown_length():
    data = distributed(tf.data.Dataset.range(5).filter(lambda row: row > 1).batch(2))
    assert (data.num_batches, data.is_infinite) == (None, False)
    assert BatchSource(data, "train_data").steps_to_end(2) is None


def test_a_distributed_dataset_is_taken_as_it_is():
    strategy = mirrored(2)
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2))
    assert distribute(strategy, dataset, "train_data").dataset is dataset


@pytest.mark.parametrize("data", [[1.0, 2.0], None, tf.zeros([4])])
def test_other_data_is_refused(data):
    with pytest.raises(TypeError, match=f"`eval_data`: is a {type(data).__name__}"):
        distribute(mirrored(1), data, "eval_data")


def test_the_iterator_is_kept_until_the_end():
    batches = source(3)
    first = batches.begin_loop()
    batches.end_loop(2, ended=False)
    assert batches.begin_loop() is first
    batches.end_loop(1, ended=True)
    assert batches.begin_loop() is not first


def test_steps_to_the_end_count_from_the_position():
    batches = source(3)
    assert [batches.steps_to_end(epochs) for epochs in (1, 2)] == [3, 6]
    batches.begin_loop()
    batches.end_loop(2, ended=False)
    assert [batches.steps_to_end(epochs) for epochs in (1, 2)] == [1, 4]
    batches.begin_loop()
    batches.end_loop(1, ended=False)
    assert batches.steps_to_end(1) == 3


def test_data_without_a_batch_is_refused_each_time():
    batches = source(0)
    for _ in range(2):
        batches.begin_loop()
        with pytest.raises(ValueError, match="`train_data`: ended before its first batch"):
            batches.end_loop(0, ended=True)


def test_an_end_after_a_loop_that_raised_is_no_empty_data():
    batches = source(1)
    batches.begin_loop()
    batches.begin_loop()
    batches.end_loop(0, ended=True)
    batches.begin_loop()
    batches.end_loop(1, ended=False)
    assert batches.steps_to_end(1) == 1
