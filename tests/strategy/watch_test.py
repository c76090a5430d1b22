"""The watch, without its thread and with a clock of the test's: what each worker hears, and what it does about it."""

import errno
import itertools
import json
import os
import socket

import pytest

from lockstep.collective import CollectiveOptions
from lockstep.strategy import activity
from lockstep.strategy.cluster import Cluster, Task
from lockstep.strategy.connection import Connection
from lockstep.strategy.watch import BEAT, Watch

TASKS = tuple(Task("worker", rank, f"10.0.0.{rank}:1") for rank in range(3))
NAMES = tuple(map(str, TASKS))
OPTIONS = CollectiveOptions(timeout_seconds=600, warn_seconds=30)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Group:
    """Where a worker waits, as the test says."""

    at, done = 0, 0

    def __init__(self):
        self.sites = self

    def progress(self):
        return self.at, self.done

    def text(self, key):
        return f"exchange {key}"


class Worker:
    """A watch with its clock, its group, and what it has closed the collectives with."""

    def __init__(self, rank, connections, clock):
        self.clock, self.group, self.closed = clock, Group(), []
        self.watch = Watch(Cluster(TASKS, rank), self.group, connections, OPTIONS, self.closed.append, clock)

    def look(self, seconds=0.0):
        self.clock.now += seconds
        self.watch.look()


@pytest.fixture(name="sockets")
def fixture_sockets():
    """By rank: the chief's socket and the worker's; what one sends, the other has at once."""
    pairs = {rank: socket.socketpair() for rank in (1, 2)}
    yield pairs
    for one in itertools.chain(*pairs.values()):
        one.close()


@pytest.fixture(name="clock")
def fixture_clock():
    return Clock()


@pytest.fixture(name="chief")
def fixture_chief(sockets, clock):
    return Worker(0, {rank: Connection(own) for rank, (own, _) in sockets.items()}, clock)


@pytest.fixture(name="others")
def fixture_others(chief, sockets, clock):
    """The chief's peers, by rank."""
    return {rank: Worker(rank, {0: Connection(other)}, clock) for rank, (_, other) in sockets.items()}


def say(sockets, rank, **message):
    """What a worker says that is nothing but a socket."""
    sockets[rank][1].sendall(json.dumps(message).encode() + b"\n")


def state(at=0, done=0, **more):
    return {"at": at, "done": done, "text": f"exchange {at}", "busy": "", "line": "train.py:3, in main", **more}


def test_while_all_is_well_everybody_tells_its_state_once_a_second(chief, sockets):
    chief.group.at, chief.group.done = 5, 8
    with activity.busy("tracing step"):
        for _ in range(9):
            chief.look(BEAT / 4)
    heard = Connection(sockets[1][1]).receive(timeout=5.0)
    assert len(heard) == 3  # After 0.25, 1.25 and 2.25 seconds.
    told, = {json.dumps({**message["state"], "line": ""}) for message in heard}
    assert json.loads(told) == {"at": 5, "done": 8, "text": "exchange 5", "busy": "tracing step", "line": ""}
    assert __file__ in heard[0]["state"]["line"]
    assert (chief.watch.failure, chief.closed, chief.watch.failed.is_set()) == ("", [], False)


def test_a_connection_that_breaks_is_a_death_that_all_are_told(chief, others, sockets):
    others[1].look(0.5)
    chief.look()
    sockets[1][1].close()
    chief.look(2.0)
    text = (f"{NAMES[1]} died: its connection broke without a word, 2.0 s after its last sign of life. It was killed, "
            "or its process crashed; its own output says more.")
    assert (chief.watch.failure, chief.closed) == (text, [text])
    others[2].look()
    assert (others[2].watch.failure, others[2].closed) == (text, [text])


def test_what_is_no_message_is_a_death_too(chief, sockets):
    sockets[2][1].sendall(b"\x00\x01\n")
    chief.look()
    assert chief.watch.failure.startswith(f"{NAMES[2]} died: ")


def test_a_chief_that_dies_is_named_by_the_others(chief, others, sockets):
    sockets[1][0].close()
    others[1].look()
    assert others[1].watch.failure.startswith(f"{NAMES[0]} died: ")


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH])
def test_a_machine_that_has_gone_is_told_apart_from_a_process(chief, monkeypatch, number):
    def receive(timeout):
        cause = OSError(number, os.strerror(number))
        raise EOFError(str(cause)) from cause

    monkeypatch.setattr(chief.watch._peers[0].connection, "receive", receive)
    chief.clock.now += 31.0
    chief.watch._hear(chief.watch._peers[0])
    assert chief.watch.failure == (
        f"{NAMES[1]} cannot be reached any more, 31.0 s after its last sign of life ([Errno {number}] "
        f"{os.strerror(number)}): its machine is down, or the network is.")


def test_a_silent_worker_is_named_with_the_seconds(chief, others):
    for _ in range(2):
        chief.look(300.0)
        others[2].look()
    chief.look(0.5)
    assert chief.watch.failure == (f"{NAMES[1]} has been silent for 600.5 s: it is frozen, its machine is down, or the "
                                   "network is.")


def test_a_worker_that_left_while_another_waits_is_named(chief, others):
    others[1].watch.tell_left()
    others[2].group.at = 5
    for seconds in (0.0, BEAT, 2.0):
        others[2].look(seconds)
        chief.look()
    assert chief.watch.failure.startswith(f"{NAMES[1]} has left (its program has ended) while {NAMES[2]} still needs "
                                          "it, in exchange 5.")
    others[2].look()
    assert others[2].closed == chief.closed


def test_a_chief_that_left_while_a_worker_waits_is_named(chief, others):
    chief.watch.tell_left()
    others[1].group.at = 5
    others[1].look()
    others[1].look(2.0)
    assert others[1].watch.failure.startswith(f"{NAMES[0]} has left (its program has ended) while {NAMES[1]} still")


def test_who_leaves_when_nobody_needs_it_leaves_in_peace(chief, others, sockets):
    others[1].watch.tell_left()
    sockets[1][1].close()
    for _ in range(3):
        others[2].look(300.0)
        chief.look(300.0)
    assert chief.watch.failure == others[2].watch.failure == ""


def test_who_has_left_says_and_hears_nothing_more(chief, others):
    others[1].watch.tell_left()
    others[1].watch.tell_failed("raised ValueError")
    others[1].watch.tell_left()
    chief.look()
    assert (chief.watch.failure, [peer.has_left for peer in chief.watch._peers]) == ("", [True, False])


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_failure_that_is_told_is_told_to_all_with_its_text(chief, others, culprit):
    workers = {0: chief, **others}
    workers[culprit].watch.tell_failed("raised ValueError: no such file (train.py:3)")
    for rank in sorted({0, 1, 2} - {culprit}):
        workers[rank].look()
        assert workers[rank].closed == [f"{NAMES[culprit]} raised ValueError: no such file (train.py:3)"]
    workers[culprit].look()
    assert workers[culprit].closed == []


def test_the_first_failure_counts(chief, sockets):
    say(sockets, 1, failed="first")
    say(sockets, 2, failed="second")
    chief.look()
    chief.look()
    assert chief.closed == ["first"]


def test_workers_that_disagree_are_all_listed_to_all(chief, others):
    chief.group.at, others[1].group.at, others[2].group.at = 5, 6, 5
    for seconds in (0.0, 1.0, 1.0):
        for worker in (*others.values(), chief):
            worker.look(seconds)
    expected = "the workers disagree on what to exchange. " + "; ".join(
        f"{name}: exchange {at}" for name, at in zip(NAMES, (5, 6, 5)))
    assert chief.watch.failure.startswith(expected)
    for worker in others.values():
        worker.look()
        assert worker.closed == chief.closed


def test_a_late_worker_is_warned_of_once_and_is_an_error_in_the_end(chief, others, caplog):
    chief.group.at = others[2].group.at = 5
    for _ in range(620):
        for worker in (*others.values(), chief):
            worker.look()
        chief.clock.now += 1.0
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert told[0].startswith(f"{NAMES[1]} did not come within 30 s to where {NAMES[0]} waits, exchange 5. Seen last: "
                              f"{NAMES[1]} (at ")
    assert chief.watch.failure.startswith(f"{NAMES[1]} did not come within 600 s to where {NAMES[0]} waits, exchange 5 "
                                          "(timeout_seconds is 600).")


def test_each_long_wait_is_warned_of(chief, sockets, caplog):
    for exchange in (5, 6):
        for _ in range(2):
            chief.group.at = exchange
            say(sockets, 1, state=state())
            say(sockets, 2, state=state())
            for seconds in (0.0, 31.0, 1.0):
                chief.look(seconds)
        chief.group.at, chief.group.done = 0, exchange
        chief.look(1.0)
    assert [record.getMessage().partition("waits, ")[2][:10] for record in caplog.records] == [
        "exchange 5", "exchange 6"]


def test_a_busy_worker_is_not_late(chief, others):
    chief.group.at = 5
    with activity.busy("tracing step"):
        for _ in range(1000):
            for worker in (*others.values(), chief):
                worker.look(1.0)
    assert chief.watch.failure == ""


def test_a_process_that_is_forked_off_says_nothing(chief, others, sockets):
    """The child's sockets are its own, here copies: closing them leaves the parent's open."""
    copies = {rank: Connection(own.dup()) for rank, (own, _) in sockets.items()}
    child = Worker(0, copies, Clock())
    child.watch.forget()
    child.watch.tell_left()
    child.watch.tell_failed("raised ValueError")
    for worker in others.values():
        worker.look()
        assert worker.watch.failure == ""
    assert [copy.fileno() for copy in copies.values()] == [-1, -1]
    chief.look()
    assert chief.watch.failure == ""


def test_the_thread_hears_what_came_during_the_meeting_and_ends_with_the_failure(chief, sockets):
    say(sockets, 1, ready=1)
    say(sockets, 1, failed="no such file")
    own = chief.watch._peers[0].connection
    assert own.receive_one(timeout=5.0) == {"ready": 1}
    chief.watch.start()
    assert chief.watch.failed.wait(timeout=5.0)
    chief.watch._thread.join(timeout=5.0)
    assert (chief.closed, chief.watch._thread.is_alive()) == (["no such file"], False)


def test_a_watch_that_fails_itself_says_so_to_all(chief, others, monkeypatch):
    monkeypatch.setattr(chief.group, "progress", lambda: 1 / 0)
    chief.watch.start()
    chief.watch._thread.join(timeout=5.0)
    others[1].look()
    assert others[1].closed == chief.closed == [f"the watch of {NAMES[0]} has failed; its own output says why."]


def test_leaving_ends_the_thread_before_the_last_word(chief, others):
    chief.watch.start()
    chief.watch.tell_left()
    assert not chief.watch._thread.is_alive()
    others[1].look()
    assert [peer.has_left for peer in others[1].watch._peers] == [True]
