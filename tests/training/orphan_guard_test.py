"""Tests of `lockstep.training.orphan_guard`: which processes the guard kills, and which it does not."""

import signal
import subprocess
import sys

from lockstep.training.orphan_guard import OrphanGuard, remaining_groups

DEADLINE_SECS = 30
WAIT = "import signal\nprint('ready', flush=True)\nsignal.pause()"


def start(guard, program):
    command = guard.command([sys.executable, "-c", program])
    return subprocess.Popen(command, stdin=guard.pipe, stdout=subprocess.PIPE, start_new_session=True)


def test_groups_that_were_forgotten_do_not_remain():
    assert remaining_groups([b"12\n", b"34\n", b"-12\n", b"56\n"]) == {34, 56}
    assert remaining_groups([b"12\n", b"-12\n", b"12\n"]) == {12}
    assert remaining_groups([]) == set()


def test_what_was_not_forgotten_is_killed_at_the_end():
    guard = OrphanGuard()
    with start(guard, WAIT) as kept, start(guard, WAIT) as forgotten:
        for process in (kept, forgotten):
            assert process.stdout.readline() == b"ready\n"
        guard.forget(forgotten.pid)
        guard.close()
        assert kept.wait(DEADLINE_SECS) == -signal.SIGKILL
        assert forgotten.poll() is None
        forgotten.kill()


def test_the_program_keeps_no_end_of_the_pipe():
    guard = OrphanGuard()
    program = "import os; print(os.readlink('/proc/self/fd/0'), os.dup(0))"  # The lowest number that is free.
    with start(guard, program) as process:
        assert process.stdout.read() == b"/dev/null 3\n"
    guard.close()


def test_a_guard_that_was_killed_itself_kills_nobody():
    guard = OrphanGuard()
    with start(guard, WAIT) as process:
        assert process.stdout.readline() == b"ready\n"
        guard._process.kill()
        guard._process.wait()
        guard.forget(process.pid)
        guard.close()
        assert process.poll() is None
        process.kill()
