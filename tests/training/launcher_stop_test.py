"""Tests of how a launched job ends: by a failure, by a signal, with the launcher itself; no process is ever left."""

import os
import signal

import pytest

from testing.launches import COMMAND, Launch, run, until

START = """
import json, os, pathlib, signal, subprocess, sys, time
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
def wait():
    print("ready", flush=True)
    while True:
        signal.pause()
"""
# A process of the worker's own that ends at no signal but SIGKILL, known to be ready by its line.
GRANDCHILD = """
subprocess.Popen([sys.executable, "-c", '''
import signal
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(signum, signal.SIG_IGN)
print("grandchild", flush=True)
while True:
    signal.pause()
'''])
"""
IGNORE = "for signum in (signal.SIGINT, signal.SIGTERM): signal.signal(signum, signal.SIG_IGN)\n"
READY = ("[worker 0] ready", "[worker 1] ready")


@pytest.fixture(name="script")
def fixture_script(tmp_path):
    """Writes the script that the workers run."""

    def write(text):
        (tmp_path / "train.py").write_text(START + text, encoding="utf-8")
        return "train.py"

    return write


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_is_passed_on_to_every_worker_and_ends_the_job_without_restart(tmp_path, script, name):
    handler = f"signal.signal(signal.{name}, lambda *_: (print('got', flush=True), sys.exit(0)))\n"
    with Launch(tmp_path, "--workers=2", "--max-restarts=3", script(handler + "wait()")) as launch:
        launch.until_printed(*READY)
        launch.process.send_signal(signal.Signals[name])
        assert launch.wait() == 128 + signal.Signals[name]
        assert not launch.processes()
        assert sorted(launch.out.splitlines()[2:]) == ["[worker 0] got", "[worker 1] got"]
        assert launch.err == f"lockstep launch: {name}: waits 10 s for workers 0 and 1 to end.\n"


def test_a_worker_that_ignores_the_signal_is_killed_after_the_grace(tmp_path, script):
    with Launch(tmp_path, "--workers=2", "--grace-seconds=0.1", script(IGNORE + "wait()")) as launch:
        launch.until_printed(*READY)
        launch.process.send_signal(signal.SIGTERM)
        assert launch.wait() == 128 + signal.SIGTERM
        assert launch.err == ("lockstep launch: SIGTERM: waits 0.1 s for workers 0 and 1 to end.\n"
                              "lockstep launch: SIGKILL to workers 0 and 1: still running.\n")


def test_a_second_interrupt_kills_at_once(tmp_path, script):
    with Launch(tmp_path, "--workers=2", "--grace-seconds=3600", script(IGNORE + "wait()")) as launch:
        launch.until_printed(*READY)
        launch.process.send_signal(signal.SIGINT)
        until(lambda: "waits 3600 s" in launch.err)
        launch.process.send_signal(signal.SIGINT)
        assert launch.wait() == 128 + signal.SIGINT


def test_a_launcher_that_starts_with_interrupts_ignored_leaves_them_ignored(tmp_path, script):
    """As a shell starts a program in the background."""
    shell = ["/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    with Launch(tmp_path, "--workers=2", script("wait()"), command=[*shell, *COMMAND]) as launch:
        launch.until_printed(*READY)
        launch.process.send_signal(signal.SIGINT)
        launch.process.send_signal(signal.SIGTERM)
        assert launch.wait() == 128 + signal.SIGTERM
        assert "SIGINT" not in launch.err


def test_the_others_may_end_by_themselves_after_a_failure(tmp_path, script):
    name = script("""
if rank == 0:
    sys.exit(5)
while "notice it" not in pathlib.Path("stderr").read_text():
    pass
print("noticed", flush=True)
""")
    code, lines, errors = run(tmp_path, "--workers=2", name)
    assert (code, lines) == (5, ["[worker 1] noticed"])
    assert errors.splitlines()[0] == "lockstep launch: worker 0 failed. Waits 10 s for worker 1 to notice it."
    assert "after worker 0 failed" not in errors


def test_a_worker_that_does_not_notice_a_failure_gets_sigterm(tmp_path, script):
    name = script("wait() if rank else sys.exit(5)")
    code, _, errors = run(tmp_path, "--workers=2", "--grace-seconds=0.5", name)
    assert code == 5
    assert "lockstep launch: SIGTERM to worker 1: still running.\n" in errors
    assert "lockstep launch: after worker 0 failed, worker 1: stopped by the launcher, killed by SIGTERM.\n" in errors


def test_a_worker_that_ignores_sigterm_after_a_failure_is_killed(tmp_path, script):
    name = script("""
if rank == 0:
    while not pathlib.Path("ignores").exists():
        pass
    sys.exit(5)
""" + IGNORE + "pathlib.Path('ignores').touch()\nwait()")
    code, _, errors = run(tmp_path, "--workers=2", "--grace-seconds=0.1", name)
    assert code == 5
    assert "lockstep launch: SIGTERM to worker 1: still running.\n" in errors
    assert "worker 1: stopped by the launcher, killed by SIGKILL.\n" in errors


def test_a_failure_before_the_signal_is_told(tmp_path, script):
    with Launch(tmp_path, "--workers=2", "--max-restarts=3", script("wait() if rank else sys.exit(5)")) as launch:
        until(lambda: "worker 0 failed. Waits" in launch.err)
        launch.process.send_signal(signal.SIGTERM)
        assert launch.wait() == 5
        assert "worker 0 failed first: exit code 5" in launch.err
        assert "restart" not in launch.err


@pytest.mark.parametrize("end, code", [("sys.exit(0)", 0), ("sys.exit(4)", 4), ("os.abort()", 134)])
def test_what_a_worker_leaves_running_ends_with_it(tmp_path, script, end, code):
    name = script(GRANDCHILD + f"while 'grandchild' not in pathlib.Path('stdout').read_text(): pass\n{end}")
    with Launch(tmp_path, "--workers=1", name) as launch:
        assert launch.wait() == code
        until(lambda: not launch.processes())


def test_grandchildren_end_with_the_job(tmp_path, script):
    with Launch(tmp_path, "--workers=2", script(GRANDCHILD + "wait()")) as launch:
        launch.until_printed(*READY, "[worker 0] grandchild", "[worker 1] grandchild")
        assert len(launch.processes()) == 6  # The launcher, its guard, and two of each.
        launch.process.send_signal(signal.SIGTERM)
        assert launch.wait() == 128 + signal.SIGTERM
        until(lambda: not launch.processes())


def test_workers_and_grandchildren_end_with_a_launcher_that_is_killed(tmp_path, script):
    with Launch(tmp_path, "--workers=2", script(IGNORE + GRANDCHILD + "wait()")) as launch:
        launch.until_printed(*READY, "[worker 0] grandchild", "[worker 1] grandchild")
        launch.process.kill()
        assert launch.wait() == -signal.SIGKILL
        until(lambda: not launch.processes())


def test_the_job_ends_when_nobody_reads_its_output(tmp_path, script):
    """As in `lockstep launch ... | head -1`."""
    name = script("import itertools\nfor i in itertools.count(): print(i, flush=True)")
    reader, writer = os.pipe()
    with Launch(tmp_path, "--workers=2", name, stdout=writer) as launch:
        os.close(writer)
        assert os.read(reader, 100).startswith(b"[worker ")
        os.close(reader)
        assert launch.wait() == 128 + signal.SIGPIPE
        assert launch.err == "lockstep launch: SIGPIPE: waits 10 s for workers 0 and 1 to end.\n"


def test_isolated_workers_share_a_network_that_nobody_else_reaches_or_the_refusal_says_why(tmp_path, script):
    name = script("""
import socket
host, port = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][0].split(":")
if rank == 0:
    server = socket.create_server((host, int(port)))
    pathlib.Path("listens").touch()
    server.accept()[0].sendall(os.readlink("/proc/self/ns/net").encode())
else:
    while not pathlib.Path("listens").exists():
        pass
    print(socket.create_connection((host, int(port))).makefile().read(), os.readlink("/proc/self/ns/net"), os.getuid())
""")
    code, lines, errors = run(tmp_path, "--workers=2", "--isolate", name)
    if code == 2:
        assert errors.startswith("lockstep launch: --isolate: this system does not let the launcher make a network "
                                 "namespace (")
        assert not lines
        return
    assert code == 0, errors
    first, second, user = lines[0].removeprefix("[worker 1] ").split()
    assert first == second != os.readlink("/proc/self/ns/net")
    assert int(user) == os.getuid()
