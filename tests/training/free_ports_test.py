"""Tests of `lockstep.training.free_ports`: nobody else gets a port that a launcher has found."""

import contextlib
import socket
import subprocess
import sys

import pytest

from lockstep.training import free_ports as module
from lockstep.training.free_ports import free_ports, is_free


def test_fifty_launchers_at_once_get_ports_of_their_own_that_can_be_bound():
    with contextlib.ExitStack() as stack:
        ports = [port for _ in range(50) for port in stack.enter_context(free_ports(4))]
        assert len(set(ports)) == 200
        for port in ports:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))


def test_ports_lie_outside_the_range_that_the_kernel_serves(tmp_path, monkeypatch):
    ephemeral = tmp_path / "range"
    monkeypatch.setattr(module, "EPHEMERAL_RANGE", ephemeral)
    ephemeral.write_text("10004\t65535\n")
    assert sorted(module._candidates()) == [10000, 10001, 10002, 10003]
    ephemeral.write_text("1024 65535")
    assert len(module._candidates()) == 65536 - 10000
    ephemeral.unlink()
    assert not any(32768 <= port <= 60999 for port in module._candidates())


def test_a_port_that_is_listened_on_is_passed_over(monkeypatch):
    with free_ports(2) as (first, second):
        pass
    monkeypatch.setattr(module, "_candidates", lambda: [first, second])
    with socket.create_server(("127.0.0.1", first)):
        assert not is_free(first)
        with free_ports(1) as ports:
            assert ports == [second]


def test_a_port_of_another_process_is_passed_over_until_it_ends(monkeypatch):
    program = ("import lockstep.training.free_ports as module, sys\n"
               "with module.free_ports(1) as (port,): print(port, flush=True); sys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        port = int(other.stdout.readline())
        monkeypatch.setattr(module, "_candidates", lambda: [port])
        with pytest.raises(OSError, match="found 0 free ports of 1"):
            with free_ports(1):
                pass
        other.kill()
        other.wait()
        with free_ports(1) as ports:
            assert ports == [port]
