"""Tests of `lockstep.training.stop_signals`: signals are noted in order, wake a waiting loop up, and end nothing."""

import os
import select
import signal
import subprocess
import sys
import threading

import pytest

from lockstep.training.stop_signals import STOPPING, StopSignals


@pytest.fixture(autouse=True)
def handlers():
    """Every test leaves the handlers as they were."""
    before = {signum: signal.getsignal(signum) for signum in (*STOPPING, signal.SIGCHLD)}
    yield
    assert {signum: signal.getsignal(signum) for signum in before} == before


def test_signals_are_noted_in_their_order_and_wake_up():
    with StopSignals() as signals:
        assert select.select([signals], [], [], 0)[0] == []
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert select.select([signals], [], [], 30)[0] == [signals]
        assert signals.received == [signal.SIGTERM, signal.SIGINT]
        signals.drain()
        assert select.select([signals], [], [], 0)[0] == []


def test_the_end_of_a_child_wakes_up_and_is_no_signal_to_stop():
    with StopSignals() as signals:
        child = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
        assert select.select([signals], [], [], 30)[0] == [signals]
        assert child.wait() == 0
        assert signals.received == []


def test_waiting_ends_early_for_a_signal_and_says_whether_one_has_come():
    with StopSignals() as signals:
        assert not signals.wait(0.01)
        killer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
        killer.start()
        assert signals.wait(30)
        assert signals.wait(30)
        killer.join()
        assert signals.received == [signal.SIGTERM]


def test_a_signal_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.received == []
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
