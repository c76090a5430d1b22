"""One checkpoint for the positions of all workers; how it is written and read by real ones is in
worker_input_test.py."""

import types

import pytest
import tensorflow as tf

from lockstep.strategy import worker_positions


def group(rank, size=2):
    return types.SimpleNamespace(rank=rank, size=size)


def position(number):
    iterator = iter(tf.data.Dataset.range(9))
    for _ in range(number):
        next(iterator)
    return {**iterator._serialize_to_tensors(), "number": tf.constant(number)}


def saved(*numbers, monkeypatch):
    """What workers that have read so many rows save."""
    texts = []

    def all_parts(workers, parts, name, one_per_worker):
        texts.append(parts[0][0])
        return [[text] for text in texts]

    monkeypatch.setattr(worker_positions.over_workers, "all_parts", all_parts)
    return [worker_positions.by_worker(group(0), position(number)) for number in numbers][-1]


def test_each_worker_gets_its_own_position_back(monkeypatch):
    both = saved(3, 5, monkeypatch=monkeypatch)
    assert worker_positions.are_by_worker(both)
    for rank, number in enumerate((3, 5)):
        state = worker_positions.own(group(rank), both, position(0))
        assert int(state.pop("number")) == number
        iterator = iter(tf.data.Dataset.range(9))
        iterator._restore_from_tensors(state)
        assert int(next(iterator)) == number


def test_positions_of_another_number_of_workers_are_refused(monkeypatch):
    both = saved(3, 5, monkeypatch=monkeypatch)
    with pytest.raises(ValueError, match="the positions of 2 workers, each of which read data of its own, and here are "
                                         "3. Restore into the same input"):
        worker_positions.own(group(0, size=3), both, position(0))


def test_one_position_for_all_and_one_for_each_are_told_apart(monkeypatch):
    both = saved(3, 5, monkeypatch=monkeypatch)
    one_for_all = tf.zeros([0, 0], tf.string)
    worker_positions.check_one_for_all(one_for_all)
    with pytest.raises(ValueError, match="the positions of 2 workers, .* and this iterator reads what all read"):
        worker_positions.check_one_for_all(both)
    with pytest.raises(ValueError, match="one position for all workers, and here each reads data of its own"):
        worker_positions.own(group(0), one_for_all, position(0))
