"""Tests of `lockstep.training.node_meeting`: machines meet, whoever else connects and in whatever pieces they speak."""

import concurrent.futures
import json
import socket
import threading

import pytest

from lockstep.training.free_ports import free_ports
from lockstep.training.node_meeting import NodeMeeting
from lockstep.training.stop_signals import StopSignals

DEADLINE_SECS = 30


@pytest.fixture(name="port")
def fixture_port():
    with free_ports(1) as ports:
        yield ports[0]


def meeting(port, rank):
    return NodeMeeting(f"127.0.0.1:{port}", 2, rank, num_workers=1, port=[port, 7777][rank],
                       timeout_secs=DEADLINE_SECS)


def connected(port):
    """A connection to node 0, as soon as it listens."""
    for _ in range(DEADLINE_SECS * 20):
        try:
            return socket.create_connection(("127.0.0.1", port), DEADLINE_SECS)
        except OSError:
            threading.Event().wait(0.05)
    raise AssertionError("node 0 does not listen")


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b'{"rank": "1"}\n', b"[1]\n", b"null\n"])
def test_whoever_else_connects_to_node_0_does_not_disturb_the_meeting(port, words):
    with concurrent.futures.ThreadPoolExecutor() as pool, StopSignals() as signals:
        first = pool.submit(meeting(port, 0).meet, print, StopSignals())
        with connected(port) as stranger:
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
        nodes = (f"127.0.0.1:{port}", "127.0.0.1:7777")
        assert meeting(port, 1).meet(print, signals) == nodes
        assert first.result(DEADLINE_SECS) == nodes


def test_an_answer_that_comes_in_pieces_is_put_together(port):
    answer = json.dumps({"nodes": ["a:1", "b:2"]}).encode() + b"\n"

    def answer_slowly(listener):
        with listener.accept()[0] as connection, connection.makefile("rb") as stream:
            assert json.loads(stream.readline()) == {"rank": 1, "nodes": 2, "workers": 1, "port": 7777}
            connection.sendall(answer[:9])
            threading.Event().wait(0.5)  # Longer than one look for an answer takes.
            connection.sendall(answer[9:])

    with concurrent.futures.ThreadPoolExecutor() as pool, socket.create_server(("127.0.0.1", port)) as listener, \
            StopSignals() as signals:
        answering = pool.submit(answer_slowly, listener)
        assert meeting(port, 1).meet(print, signals) == ("a:1", "b:2")
        answering.result(DEADLINE_SECS)


@pytest.mark.parametrize("words, error", [
    (b"HTTP/1.1 400 Bad Request\r\n", "no launcher answers on the address of node 0"),
    (b"", "the launcher of node 0 has ended")])
def test_something_else_on_the_address_of_node_0_is_an_error(port, words, error):
    def answer(listener):
        with listener.accept()[0] as connection:
            connection.recv(1 << 10)
            connection.sendall(words)

    with concurrent.futures.ThreadPoolExecutor() as pool, socket.create_server(("127.0.0.1", port)) as listener, \
            StopSignals() as signals:
        answering = pool.submit(answer, listener)
        with pytest.raises(OSError, match=error):
            meeting(port, 1).meet(print, signals)
        answering.result(DEADLINE_SECS)
