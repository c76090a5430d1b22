"""Tests of `lockstep.training.isolation`: the program that moves into a network of its own."""

import os
import re
import subprocess
import sys

import pytest

from lockstep.training import isolation

# What a program needs that it may do without being root, from linux/prctl.h and linux/capability.h.
GIVE_UP_SYS_ADMIN = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_SYS_ADMIN = 24, 21
ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
LOOK = """
import os, socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
print(os.environ["LOCKSTEP_NETWORK_NAMESPACE"], os.readlink("/proc/self/ns/net"), os.getuid(), os.getgid())
"""


@pytest.mark.parametrize("before", [[], ["-c", GIVE_UP_SYS_ADMIN]], ids=["as we are", "without rights"])
def test_the_program_moves_into_a_network_with_a_loopback_device_and_keeps_the_user(before):
    command = [sys.executable, *before, "-I", "-S", isolation.__file__, sys.executable, "-c", LOOK]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if finished.returncode == 2:
        assert re.fullmatch(re.escape(isolation.REFUSAL).replace(r"\{error\}", ".+"), finished.stderr.strip())
        return
    assert finished.returncode == 0, finished.stderr
    mark, namespace, user, group = finished.stdout.split()
    assert mark == namespace != os.readlink("/proc/self/ns/net")
    assert (int(user), int(group)) == (os.geteuid(), os.getegid())


def test_a_system_that_does_not_allow_it_is_refused_with_exit_code_2(monkeypatch, capsys):
    def refuse():
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(isolation, "_unshare", refuse)
    with pytest.raises(SystemExit) as caught:
        isolation.main()
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lockstep launch: --isolate: this system does not let the launcher make a network namespace "
                           "(Operation not permitted). Run it as root")


def test_the_mark_of_another_network_means_nothing(monkeypatch):
    monkeypatch.delenv(isolation.MARK, raising=False)
    assert not isolation.is_inside()
    monkeypatch.setenv(isolation.MARK, "net:[1]")
    assert not isolation.is_inside()
    monkeypatch.setenv(isolation.MARK, os.readlink("/proc/self/ns/net"))
    assert isolation.is_inside()
