"""Absentees: who is missing is told once, then the wait is ended once; where nobody waits, nothing is told."""

import pytest
import tensorflow as tf

from lockstep.collective import Queues
from lockstep.collective.absentees import Absentees

WARN, LIMIT = 10.0, 30.0


@pytest.fixture
def queues():
    return Queues(3, "group")


def come(queues, *ranks, what="all-reduce SUM"):
    for rank in ranks:
        queues.attendance.note(tf.constant(rank), what)


@pytest.fixture
def running(queues):
    """While it lasts, a launch runs."""
    lock = tf.raw_ops.MutexLock(mutex=queues.mutex)
    yield
    tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)


def told(caplog):
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return lines


def words(queues):
    """The words that were put in place of what others wait for."""
    channel = queues.meeting
    return [int(tf.raw_ops.QueueSizeV2(handle=queue)) for queue in channel.inward + channel.outward]


def test_a_missing_replica_is_told_once_and_the_wait_ended_once(queues, running, caplog):
    absentees = Absentees(WARN, LIMIT)
    come(queues, 0, 2)
    absentees.look(queues, 100.0)
    absentees.look(queues, 109.0)
    assert told(caplog) == []
    for now in (110.0, 120.0):
        absentees.look(queues, now)
    assert told(caplog) == [
        "strategy.run: replica 1 has not come to all-reduce SUM for 10 s, while others wait there."]
    assert words(queues) == [0] * 6
    for now in (130.0, 140.0):
        absentees.look(queues, now)
    assert told(caplog) == [
        "strategy.run: replica 1 has not come to all-reduce SUM for 30 s, while others wait there."]
    assert words(queues) == [0, 1, 0, 0, 0, 0]


def test_replica_zero_is_missed_by_all_who_wait_for_its_result(queues, running, caplog):
    absentees = Absentees(WARN, LIMIT)
    come(queues, 1)
    for now in (0.0, 30.0):
        absentees.look(queues, now)
    assert "replicas 0, 2 have not come" in told(caplog)[0]
    assert words(queues) == [1, 0, 1, 1, 1, 1]


def test_any_progress_begins_the_time_anew(queues, running, caplog):
    absentees = Absentees(WARN, LIMIT)
    for now, ranks in ((0.0, [0]), (9.0, [1]), (18.0, [2, 0]), (27.0, [])):
        come(queues, *ranks)
        absentees.look(queues, now)
    assert told(caplog) == []
    absentees.look(queues, 28.0)
    assert "replicas 1, 2 have not come" in told(caplog)[0]


def test_the_same_notes_of_another_launch_begin_the_time_anew(queues, running, caplog):
    absentees = Absentees(WARN, LIMIT)
    for now in (0.0, 9.0):
        queues.attendance.clear()
        come(queues, 0)
        absentees.look(queues, now)
    absentees.look(queues, 18.0)
    assert told(caplog) == []


def test_replicas_that_all_came_or_none_did_wait_for_nobody(queues, running, caplog):
    absentees = Absentees(WARN, LIMIT)
    for ranks in ([], [0, 1, 2]):
        come(queues, *ranks)
        for now in (0.0, 100.0):
            absentees.look(queues, now)
    assert told(caplog) == [] and words(queues) == [0] * 6


def test_after_a_launch_that_failed_nobody_waits(queues, caplog):
    absentees = Absentees(WARN, LIMIT)
    come(queues, 0)
    for now in (0.0, 100.0):
        absentees.look(queues, now)
    assert told(caplog) == [] and words(queues) == [0] * 6


def test_looks_are_frequent_enough_for_the_shorter_time():
    assert Absentees(1.0, 40.0).interval == 0.25
    assert Absentees(80.0, 4.0).interval == 1.0
    assert Absentees(600.0, 6000.0).interval == 5.0
