"""Tests of `lockstep.training.peer_facts`: tasks find each other, and nothing that listens or asks can harm them."""

import dataclasses
import json
import socket
import threading
import time

import pytest

from lockstep.strategy.cluster import Cluster, Task
from lockstep.training.free_ports import free_ports
from lockstep.training.peer_facts import Answer, Facts, FactServer, ask_peers

DEADLINE_SECS = 30


@pytest.fixture(name="tasks")
def fixture_tasks():
    """Three tasks on free ports of this machine."""
    with free_ports(3) as ports:
        yield tuple(Task("worker", index, f"127.0.0.1:{port}") for index, port in enumerate(ports))


def facts_of(cluster, **versions):
    addresses = tuple(task.address for task in cluster.tasks)
    return Facts(cluster.rank, addresses, versions or {"python": "3"}, {"CPU": cluster.rank})


def later(secs=DEADLINE_SECS):
    return time.monotonic() + secs


def test_a_task_that_starts_late_is_found_and_everybody_learns_what_everybody_is(tasks):
    clusters = [Cluster(tasks, rank) for rank in range(3)]
    answers, silent = {}, {}

    def take_part(cluster):
        with FactServer(cluster, facts_of(cluster)) as server:
            answers[cluster.rank] = ask_peers(cluster, facts_of(cluster), later())
            silent[cluster.rank] = server.wait_until_asked_by(set(answers[cluster.rank]), later())

    # The first asks before the others listen.
    threads = [threading.Thread(target=take_part, args=(cluster,)) for cluster in clusters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for cluster in clusters:
        others = [other for other in clusters if other is not cluster]
        assert answers[cluster.rank] == {other.rank: Answer(facts_of(other), True, "") for other in others}
    assert silent == {0: set(), 1: set(), 2: set()}


def test_a_task_where_nothing_listens_is_told_apart_from_an_unknown_host(tasks):
    cluster = Cluster((tasks[0], tasks[1], Task("worker", 2, "no-such-host.invalid:1")), 0)
    answers = ask_peers(cluster, facts_of(cluster), later(0.3))
    assert answers[1] == Answer(None, False, "not listening (nothing started there yet)")
    assert not answers[2].reached
    assert answers[2].problem.startswith("there is no host 'no-such-host.invalid': ")


def test_a_peer_that_never_asks_is_named(tasks):
    cluster = Cluster(tasks, 0)
    with FactServer(cluster, facts_of(cluster)) as server:
        ask_peers(Cluster(tasks, 2), facts_of(Cluster(tasks, 2)), later(0.3))
        assert server.wait_until_asked_by({2}, later()) == set()
        assert server.wait_until_asked_by({1, 2}, later(0.1)) == {1}


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\xff\n", b"{}\n", b"[" * 10 ** 5])
def test_something_else_that_listens_is_reached_and_is_no_doctor(tasks, reply):
    def serve(listener):
        connection, _ = listener.accept()
        with connection:
            connection.sendall(reply)

    cluster = Cluster(tasks[:2], 0)
    with socket.create_server((tasks[1].host, tasks[1].port)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        assert ask_peers(cluster, facts_of(cluster), later()) == {1: Answer(None, True, "")}
        thread.join()


def test_something_that_listens_and_says_nothing_is_waited_for_until_the_deadline_only(tasks):
    cluster = Cluster(tasks[:2], 0)
    with socket.create_server((tasks[1].host, tasks[1].port)):
        assert ask_peers(cluster, facts_of(cluster), later(0.2)) == {1: Answer(None, True, "")}


def test_whoever_asks_without_saying_who_they_are_gets_no_answer(tasks):
    cluster = Cluster(tasks, 0)
    with FactServer(cluster, facts_of(cluster)) as server:
        with socket.create_connection((tasks[0].host, tasks[0].port), DEADLINE_SECS) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n")
            assert connection.recv(1) == b""
        assert server.wait_until_asked_by({0}, later(0)) == {0}


def test_a_port_that_is_in_use_is_an_error(tasks):
    cluster = Cluster(tasks, 0)
    with socket.create_server((tasks[0].host, tasks[0].port)), pytest.raises(OSError, match="in use"):
        FactServer(cluster, facts_of(cluster))


def test_a_task_of_another_machine_listens_on_all_addresses(tasks):
    task = Task("worker", 0, f"some-host:{tasks[0].port}")
    with FactServer(Cluster((task,), 0), facts_of(Cluster((task,), 0))):
        socket.create_connection((tasks[0].host, tasks[0].port), DEADLINE_SECS).close()


def test_facts_survive_the_way():
    facts = Facts(1, ("a:1", "b:2"), {"python": "3.11"}, {"CPU": 1, "GPU": 0})
    assert Facts.from_line(facts.to_line()) == facts


@pytest.mark.parametrize("change", [
    {"rank": "x"}, {"addresses": [1]}, {"addresses": None}, {"versions": []}, {"versions": {"python": "\x1b[31m"}},
    {"versions": {"python": "3" * 201}}, {"devices": {"CPU": "many"}}])
def test_facts_that_cannot_be_shown_are_none(change):
    fields = dataclasses.asdict(Facts(1, ("a:1",), {"python": "3"}, {"CPU": 1}))
    assert Facts.from_line(json.dumps({"lockstep doctor": fields}).encode()) is not None
    assert Facts.from_line(json.dumps({"lockstep doctor": {**fields, **change}}).encode()) is None
