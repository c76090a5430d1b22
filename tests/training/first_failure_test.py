"""Tests of `lockstep.training.first_failure`: what counts as the last traceback, and who is the cause."""

import types

import pytest

from lockstep.training.first_failure import (
    cause_text,
    consequences_text,
    exit_code,
    final_exception,
    first_failure,
    last_traceback,
)

HEAD = "Traceback (most recent call last):"
FRAME = '  File "train.py", line 1, in <module>'
PEER = "lockstep.collective.errors.PeerError: worker 1 is gone"


def failed(rank, *lines, returncode=1, is_stopped=False):
    return types.SimpleNamespace(rank=rank, returncode=returncode, last_errors=list(lines), is_stopped=is_stopped)


def test_the_last_traceback_is_told_and_what_led_to_it_is_not():
    lines = ["starting", HEAD, FRAME, "KeyError: 1", "", "During handling of the above exception, another exception "
             "occurred:", "", HEAD, FRAME, "ValueError: a", "", "b", ""]
    assert last_traceback(lines) == [HEAD, FRAME, "ValueError: a", "", "b"]
    assert final_exception(lines) == "ValueError: a"


def test_what_python_and_tensorflow_say_at_the_end_is_no_part_of_it():
    lines = [HEAD, FRAME, "ValueError: a", "2026-01-01 00:00:00.123456: W tensorflow/core/x.cc:1] cancelled",
             "I0000 00:00:1796122026.415920    3944 port.cc:153] text", "Exception ignored in: <function f>", HEAD,
             FRAME, "TypeError: b"]
    assert last_traceback(lines) == [HEAD, FRAME, "ValueError: a"]
    assert final_exception(lines) == "ValueError: a"


def test_without_a_traceback_the_last_lines_are_told():
    lines = [f"line {number}" for number in range(50)]
    assert last_traceback(lines) == lines[30:]
    assert final_exception(lines) == ""
    assert last_traceback([]) == []
    assert last_traceback(["Exception ignored in: <function f>", HEAD, "TypeError: b"])[-1] == "TypeError: b"


@pytest.mark.parametrize("line, is_consequence", [
    (PEER, True), ("lockstep.collective.errors.PeerError", True), ("PeerError: gone", True), ("a.PeerErrors: 1", False),
    ("NoPeerError: 1", False), ("ValueError: PeerError: 1", False)])
def test_a_worker_whose_exception_is_a_peer_error_is_no_cause(line, is_consequence):
    first, second = failed(0, HEAD, FRAME, line), failed(1, HEAD, FRAME, "ValueError: a")
    assert first_failure([first, second]) is (second if is_consequence else first)


def test_only_consequences_leave_the_earliest():
    first, second = failed(1, HEAD, FRAME, PEER), failed(0, HEAD, FRAME, PEER)
    assert first_failure([first, second]) is first


def test_death_by_a_signal_is_a_cause_also_with_a_peer_error_logged_before():
    first, second = failed(0, HEAD, FRAME, PEER), failed(1, "log", returncode=-9)
    assert first_failure([first, second]) is second


@pytest.mark.parametrize("returncode, code", [(1, 1), (42, 42), (-9, 137), (-34, 162)])
def test_the_exit_code_is_never_zero(returncode, code):
    assert exit_code(failed(0, returncode=returncode)) == code


def test_the_text_names_the_worker_how_it_ended_and_what_it_said():
    assert cause_text(failed(3, HEAD, FRAME, "ValueError: a")) == (
        f"worker 3 failed first: exit code 1, ValueError:\n{HEAD}\n{FRAME}\nValueError: a")
    assert cause_text(failed(3, returncode=-11)) == (
        "worker 3 failed first: killed by SIGSEGV. It wrote nothing to standard error.")
    assert cause_text(failed(3, "a", returncode=-40)) == "worker 3 failed first: killed by signal 40:\na"


def test_the_text_says_what_became_of_the_others():
    cause = failed(1, HEAD, FRAME, "ValueError: a")
    others = [failed(0, HEAD, FRAME, PEER), failed(2, returncode=-15, is_stopped=True)]
    assert consequences_text(cause, [cause, *others]) == (
        "after worker 1 failed, worker 0: exit code 1, lockstep.collective.errors.PeerError; worker 2: stopped by the "
        "launcher, killed by SIGTERM.")
    assert consequences_text(cause, [cause]) == ""
