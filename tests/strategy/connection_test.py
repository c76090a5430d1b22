"""Messages between two workers: whole, in order, from any thread, and no side ever waits for the other."""

import json
import select
import socket
import threading
import time

import pytest

from lockstep.strategy import connection as module
from lockstep.strategy.connection import MAX_LINE, MAX_UNSENT, Connection


@pytest.fixture(name="ends")
def fixture_ends():
    """Two connected sockets, the second a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other = server.accept()[0]
    with one, other:
        yield one, Connection(other)


@pytest.fixture(name="pair")
def fixture_pair(ends):
    """Two connections that are connected with each other."""
    return Connection(ends[0]), ends[1]


def received(connection, count):
    messages = []
    while len(messages) < count:
        messages += connection.receive(timeout=5.0)
    return messages


def refuse_to_read(sender):
    """Sends until the other side's buffers are full and messages are dropped; returns how many were not."""
    for number in range(10_000):
        if not sender.send(number=number, padding="x" * 10_000):
            return number
    raise AssertionError("the messages have all been taken")


def test_messages_arrive_as_they_were_sent(pair):
    sender, receiver = pair
    sent = [{"a": 1, "b": [1.5, None, "\n\u00e9"]}, {}, {"nest": {"x": {}}}]
    assert all(sender.send(**message) for message in sent)
    assert received(receiver, 3) == sent


def test_nothing_is_no_message(pair):
    assert pair[0].receive(timeout=0) == []


def test_a_message_may_come_in_pieces(ends):
    other, own = ends
    line = json.dumps({"text": "\u00e9" * 3}).encode() + b"\n"
    for start in range(0, len(line) - 1, 5):
        other.sendall(line[start:min(start + 5, len(line) - 1)])
        assert own.receive(timeout=0.01) == []
    other.sendall(line[-1:] + b'{"more": 1}\n{"half"')
    assert received(own, 2) == [{"text": "\u00e9" * 3}, {"more": 1}]
    other.sendall(b": 2}\n")
    assert received(own, 1) == [{"half": 2}]


def test_one_message_is_taken_and_the_others_are_kept(ends):
    other, own = ends
    assert own.receive_one(timeout=0.01) is None
    other.sendall(b'{"a": 1}\n{"b": 2}\n{"c": 3}\n{"d"')
    assert own.receive_one(timeout=5.0) == {"a": 1}
    other.sendall(b": 4}\n")
    assert own.receive_one(timeout=5.0) == {"b": 2}
    assert received(own, 2) == [{"c": 3}, {"d": 4}]


def test_the_end_is_told_after_the_last_message(ends):
    other, own = ends
    other.sendall(b'{"last": 1}\n')
    other.close()
    assert received(own, 1) == [{"last": 1}]
    with pytest.raises(EOFError, match="closed"):
        own.receive(timeout=5.0)
    own.send(anything=1)
    own.send(anything=1)
    assert not own.send(anything=1)


def test_a_connection_that_breaks_has_its_cause(ends):
    other, own = ends
    own.send(never="read")
    select.select([other], [], [], 5.0)
    other.close()  # With what it has not read, TCP resets the connection.
    with pytest.raises(EOFError, match="reset") as caught:
        own.receive(timeout=5.0)
    assert isinstance(caught.value.__cause__, ConnectionResetError)


def test_a_closed_connection_neither_sends_nor_receives(pair):
    pair[0].close()
    assert not pair[0].send(a=1)
    assert not pair[0].flush(timeout=1.0)
    with pytest.raises(EOFError):
        pair[0].receive(timeout=1.0)


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\n", b"\x00\x00\x12\x04\x00", b"[1]\n", b"3\n", b'{"a": \n', b"\n", b'{"a": "\xff"}\n',
    b'{"a":' + b"[" * 100_000 + b"\n", b"{" * (MAX_LINE + (1 << 17))], ids=lambda data: repr(data[:12]))
def test_what_is_no_message_is_refused(ends, data):
    other, own = ends
    sender = threading.Thread(target=other.sendall, args=(data,), daemon=True)
    sender.start()
    with pytest.raises(ValueError):
        for _ in range(100):
            own.receive(timeout=5.0)
    sender.join(5.0)


def test_a_side_that_never_reads_makes_nobody_wait(pair):
    sender, receiver = pair
    start = time.monotonic()
    taken = refuse_to_read(sender)
    assert not sender.flush(timeout=0.05)
    assert time.monotonic() - start < 3.0
    # When it reads at last, what was taken is all there, whole and in order.
    numbers = []
    while len(numbers) < taken:
        numbers += [message["number"] for message in receiver.receive(timeout=5.0)]
        sender.flush(timeout=0)
    assert numbers == list(range(taken))
    assert sender.send(again=1)
    assert received(receiver, 1) == [{"again": 1}]


def test_what_a_side_does_not_take_is_kept_up_to_a_limit(pair):
    refuse_to_read(pair[0])
    assert MAX_UNSENT < len(pair[0]._unsent) < MAX_UNSENT + 11_000


def test_flush_waits_for_a_slow_reader(pair):
    sender, receiver = pair
    taken = refuse_to_read(sender)
    reader = threading.Thread(target=received, args=(receiver, taken))
    reader.start()
    assert sender.flush(timeout=5.0)
    reader.join(5.0)


def test_threads_send_whole_messages_while_another_receives_on_the_same_connection(pair):
    count, threads = 100, range(4)
    found = {}

    def send(connection, thread):
        for number in range(count):
            assert connection.send(thread=thread, number=number, padding="x" * 500)

    def collect(connection):
        messages = received(connection, count * len(threads))
        found[connection] = [[message["number"] for message in messages if message["thread"] == thread]
                             for thread in threads]

    collectors = [threading.Thread(target=collect, args=(connection,)) for connection in pair]
    senders = [threading.Thread(target=send, args=(connection, thread)) for connection in pair for thread in threads]
    for thread in collectors + senders:
        thread.start()
    for thread in senders:
        thread.join(20.0)
    assert all(connection.flush(timeout=20.0) for connection in pair)
    for thread in collectors:
        thread.join(20.0)
    assert found == {connection: [list(range(count))] * len(threads) for connection in pair}


def test_a_machine_that_has_gone_is_noticed_by_the_kernel(ends):
    milliseconds = ends[1]._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert milliseconds == module.MACHINE_SILENT_SECONDS * 1000
