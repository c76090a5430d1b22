"""How the workers meet, here as threads: all are there, or everybody is told who is missing or does not fit."""

import contextlib
import json
import re
import socket
import threading

import pytest

from lockstep.collective import CollectiveOptions
from lockstep.collective.errors import PeerError
from lockstep.strategy import rendezvous_chief
from lockstep.strategy.cluster import Cluster, Task
from lockstep.strategy.connection import Connection
from lockstep.strategy.rendezvous import meet, versions
from lockstep.strategy.rendezvous_chief import Reminder
from testing.workers import free_addresses

LONG = CollectiveOptions(timeout_seconds=30)
SHORT = CollectiveOptions(timeout_seconds=0.3)


def clusters(addresses):
    """The cluster as each worker sees it."""
    tasks = tuple(Task("worker", rank, address) for rank, address in enumerate(addresses))
    return [Cluster(tasks, rank) for rank in range(len(tasks))]


def closed(meetings):
    """What the meetings have found, their connections closed."""
    for meeting in meetings:
        for connection in meeting.connections.values():
            connection.close()
    return [meeting.num_replicas_by_worker for meeting in meetings]


class Running:
    """A function that runs on a thread; `result` waits for what it returns or raises."""

    def __init__(self, function, *args):
        self._function, self._args = function, args
        self._outcome = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._outcome = self._function(*self._args), None
        except Exception as error:
            self._outcome = None, error

    def result(self):
        self._thread.join(timeout=30.0)
        assert not self._thread.is_alive()
        value, error = self._outcome
        if error is not None:
            raise error
        return value

    def error(self):
        with pytest.raises(PeerError) as caught:
            self.result()
        return str(caught.value).removeprefix("MultiWorkerMirroredStrategy: ")


def hello(cluster, /, **changes):
    """What a worker says of itself."""
    return {"rank": cluster.rank, "cluster": [task.address for task in cluster.tasks], "replicas": 1,
            "versions": versions()} | changes


@contextlib.contextmanager
def dialled(cluster):
    """A connection to the chief, which has said who it is."""
    chief = cluster.tasks[0]
    while True:
        try:
            sock = socket.create_connection((chief.host, chief.port), timeout=5.0)
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.01)  # It does not listen yet.
    with sock:
        connection = Connection(sock)
        assert connection.receive_one(5.0) == {"chief": str(chief)}
        yield connection


@pytest.fixture(name="quick_words")
def fixture_quick_words(monkeypatch):
    """Who is missing is told at once, and often."""
    monkeypatch.setattr(rendezvous_chief, "FIRST_WORD", 0.0)
    monkeypatch.setattr(rendezvous_chief, "REPEATED_EVERY", 0.05)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_all_that_meet_know_each_others_replicas(host):
    if host == "[::1]" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    views = clusters([address.replace("127.0.0.1", host) for address in free_addresses(3)])
    running = [Running(meet, cluster, replicas, LONG) for cluster, replicas in zip(views, (2, 1, 3))]
    meetings = [one.result() for one in running]
    assert [sorted(meeting.connections) for meeting in meetings] == [[1, 2], [0], [0]]
    ready = [Running(meeting.all_ready, cluster, 30.0) for meeting, cluster in zip(meetings, views)]
    assert [one.result() for one in ready] == [None] * 3
    assert closed(meetings) == [(2, 1, 3)] * 3


def _has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_the_order_of_the_start_does_not_matter():
    views = clusters(free_addresses(2))
    worker = Running(meet, views[1], 1, LONG)
    with contextlib.suppress(OSError):  # The worker has dialled at least once before the chief listens.
        socket.create_connection((views[0].task.host, views[0].task.port), timeout=1.0)
    assert closed([Running(meet, views[0], 1, LONG).result(), worker.result()]) == [(1, 1)] * 2


@pytest.mark.parametrize("changes, text", [
    ({"versions": {**versions(), "TensorFlow": "2.0.0"}},
     r"worker 2 \(.*\) has TensorFlow 2.0.0, worker 0 \(.*\) has \d.*\. Install one version everywhere\."),
    ({"versions": {}}, r"worker 2 \(.*\) has TensorFlow None"),
    ({"versions": {**versions(), "Keras": "2.1"}}, r"worker 2 \(.*\) has Keras 2.1, worker 0"),
    ({"versions": {**versions(), "Lockstep": "0.0"}}, r"worker 2 \(.*\) has Lockstep 0.0, worker 0"),
    ({"cluster": ["a:1", "b:1", "c:1"]},
     r"the workers were given different clusters: worker 0 \(.*\) has \['127.*\], task 2 has \['a:1', 'b:1', 'c:1'\]\. "
     "Start all with the same cluster"),
    ({"rank": 1}, r"two processes say that they are worker 1 \(.*\)\. Give each process a task of its own"),
])
def test_who_does_not_fit_is_told_to_all(quick_words, changes, text):
    views = clusters(free_addresses(3))
    chief = Running(meet, views[0], 1, LONG)
    with dialled(views[1]) as other, dialled(views[2]) as late:
        other.send(**hello(views[1]))
        assert "waiting for worker 2" in other.receive_one(10.0)["waiting"]
        late.send(**hello(views[2], **changes))
        assert re.match(text, late.receive_one(10.0)["abort"])
        assert re.match(text, _after_the_waiting(other)["abort"])
    assert re.match(text, chief.error())


def _after_the_waiting(connection):
    while "waiting" in (message := connection.receive_one(10.0)):
        pass
    return message


def test_who_is_missing_is_told_in_every_log_and_in_the_end_in_an_error(quick_words, caplog):
    views = clusters(free_addresses(4))
    options = CollectiveOptions(timeout_seconds=2.0)
    chief, worker = Running(meet, views[0], 1, options), Running(meet, views[2], 1, options)
    missing = ", ".join(str(views[0].tasks[rank]) for rank in (1, 3))
    text = rf"{re.escape(missing)} did not start within \d+ s\. Every"
    assert re.match(text, chief.error())
    assert re.match(text, worker.error())
    for rank in (0, 2):
        name = re.escape(str(views[0].tasks[rank]))
        said = rf"{name}: waiting for worker 1 \(.*\), worker 3 \(.*\) to start, for \d+ s so far\."
        assert re.search(said, caplog.text)


def test_a_chief_that_is_missing_is_named_with_the_reason(quick_words, caplog):
    views = clusters(free_addresses(2))
    error = Running(meet, views[1], 1, SHORT).error()
    assert re.match(r"worker 0 \(127.*\) did not start within \d+ s \(.*Connection refused\)\. Every worker", error)
    said = r"worker 1 \(.*\): waiting for worker 0 \(.*\) to start, for \d+ s so far \(.*refused\)"
    assert re.search(said, caplog.text)


def test_a_host_that_does_not_resolve_is_named():
    views = clusters(["no-such-host.invalid:1", *free_addresses(1)])
    assert re.match(r"worker 0 \(no-such-host.invalid:1\) did not start within \d+ s \(\[Errno -\d\] .*\)",
                    Running(meet, views[1], 1, SHORT).error())


@pytest.mark.parametrize("answer", [b"\x00\x00\x12\x04\x00\x00", b"", b"{}\n", b"SSH-2.0-OpenSSH\r\n"])
def test_what_answers_in_the_chiefs_place_is_no_chief(answer):
    views = clusters(free_addresses(2))
    chief = views[0].task
    with socket.create_server((chief.host, chief.port)) as server:
        worker = Running(meet, views[1], 1, SHORT)
        while worker._outcome is None:
            server.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                sock = server.accept()[0]
                sock.sendall(answer)
                sock.close()
        assert "(something else answers there, perhaps a job that runs already: a worker cannot join it)" in \
            worker.error()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_port_that_is_in_use_is_named(rank):
    cluster = clusters(free_addresses(2))[rank]
    with socket.create_server((cluster.task.host, cluster.task.port)):
        with pytest.raises(OSError, match=rf"worker {rank} \(.*\): cannot listen on its address: Address already"):
            meet(cluster, 1, SHORT)


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\n\r\n", b"", b"{}\n", b"[]\n", b"\xff\n", b'{"rank": "one"}\n', b'{"rank": 1}\n',
    b'{"rank": 1, "cluster": 3, "versions": 4, "replicas": 5}\n'], ids=repr)
def test_strangers_are_sent_away(data):
    views = clusters(free_addresses(2))
    chief = Running(meet, views[0], 1, LONG)
    with dialled(views[1]) as stranger:
        stranger._socket.sendall(data)
        if not data:
            stranger.close()
        else:
            with pytest.raises(EOFError):
                stranger.receive(10.0)
    assert closed([Running(meet, views[1], 3, LONG).result(), chief.result()]) == [(1, 3)] * 2


def test_a_stranger_that_says_nothing_keeps_nobody_waiting_and_is_sent_away(monkeypatch):
    monkeypatch.setattr(rendezvous_chief, "_INTRODUCTION", 0.05)
    views = clusters(free_addresses(2))
    chief = Running(meet, views[0], 1, LONG)
    with dialled(views[1]) as stranger, pytest.raises(EOFError):
        stranger.receive(10.0)
    monkeypatch.setattr(rendezvous_chief, "_INTRODUCTION", 1000.0)
    with dialled(views[1]):
        assert closed([Running(meet, views[1], 1, LONG).result(), chief.result()]) == [(1, 1)] * 2


def test_a_hello_may_come_in_pieces():
    views = clusters(free_addresses(2))
    chief = Running(meet, views[0], 1, LONG)
    with dialled(views[1]) as worker:
        line = json.dumps(hello(views[1])).encode() + b"\n"
        worker._socket.sendall(line[:20])
        with dialled(views[1]) as probe:  # The chief has looked in the meantime.
            probe.send(nothing=1)
            with pytest.raises(EOFError):
                probe.receive(10.0)
        worker._socket.sendall(line[20:])
        assert worker.receive_one(10.0) == {"go": [1, 1]}
    closed([chief.result()])


def test_a_worker_that_goes_away_is_missing_again_and_its_successor_is_welcome(quick_words, caplog):
    views = clusters(free_addresses(3))
    chief = Running(meet, views[0], 1, LONG)
    with dialled(views[1]) as first:
        first.send(**hello(views[1], replicas=5))
        assert "waiting for worker 2" in first.receive_one(10.0)["waiting"]
    running = [Running(meet, views[rank], rank, LONG) for rank in (1, 2)]
    assert closed([one.result() for one in (chief, *running)]) == [(1, 1, 2)] * 3
    assert re.search(r"worker 1 \(.*\) went away while the workers met, and is missing again\.", caplog.text)


def test_a_chief_that_goes_is_named():
    views = clusters(free_addresses(2))
    chief = views[0].task
    with socket.create_server((chief.host, chief.port)) as server:
        worker = Running(meet, views[1], 1, LONG)
        with server.accept()[0] as sock:
            connection = Connection(sock)
            connection.send(chief=str(chief))
            assert connection.receive_one(10.0) == hello(views[1])
    assert worker.error() == f"{chief} ended while the workers met. Its own output says why."


def test_a_worker_that_goes_before_all_are_ready_is_told_to_all():
    views = clusters(free_addresses(3))
    running = [Running(meet, cluster, 1, LONG) for cluster in views]
    meetings = [one.result() for one in running]
    meetings[1].connections[0].close()
    ready = [Running(meetings[rank].all_ready, views[rank], 30.0) for rank in (0, 2)]
    text = f"{views[1].task} ended while the workers met. Its own output says why."
    assert [one.error() for one in ready] == [text] * 2


def test_a_worker_that_is_never_ready_is_named_at_the_limit():
    views = clusters(free_addresses(2))
    chief, worker = [Running(meet, cluster, 1, LONG) for cluster in views]
    chief, worker = chief.result(), worker.result()
    text = f"{views[1].task} has said nothing for too long while the workers met. Look at its output."
    assert Running(chief.all_ready, views[0], 0.1).error() == text
    assert worker.connections[0].receive_one(10.0) == {"abort": text}
    closed([worker])


def test_a_reminder_is_due_at_first_and_then_from_time_to_time():
    reminder = Reminder()
    assert [waited for waited in range(100) if reminder.is_due(waited)] == [3, 33, 63, 93]
