"""What the waits of all workers mean: a disagreement, a worker that is late or has left, a network that is stuck."""

import pytest

from lockstep.collective import CollectiveOptions
from lockstep.strategy.waits import ALL_SETTLED_WITHIN, SETTLED, Peer, Verdict, judged

OPTIONS = CollectiveOptions(timeout_seconds=600, warn_seconds=30)
NOW = 1000.0


def peer(rank, at=0, waited=60.0, done=7, busy="", has_left=False, line="train.py:3, in main"):
    """A worker that has waited, or been elsewhere, for `waited` seconds."""
    state = {"at": at, "done": done, "text": f"exchange {at}" if at else "", "busy": busy, "line": line}
    return Peer(f"worker {rank}", None, NOW - waited, NOW, state, has_left)


def verdict(*everybody, are_all_known=True, options=OPTIONS):
    return judged(everybody, are_all_known, options, NOW)


@pytest.mark.parametrize("everybody", [
    (peer(0), peer(1)),
    (peer(0, at=1, waited=SETTLED - 0.1), peer(1)),
    (peer(0), peer(1, has_left=True)),
], ids=["nobody waits", "nobody waits for long", "one has left in peace"])
def test_all_is_well_while_nobody_waits_for_long(everybody):
    assert verdict(*everybody) == Verdict(is_quiet=True)


@pytest.mark.parametrize("everybody", [
    (peer(0, at=1, waited=2), peer(1)),
    (peer(0, at=1, waited=29), peer(1, at=1, waited=29)),
    (peer(0, at=1, waited=29), peer(1, at=2, waited=0)),
], ids=["one is late", "a long exchange", "one has just come elsewhere"])
def test_a_wait_that_may_end_is_not_judged(everybody):
    assert verdict(*everybody) == Verdict()


def test_who_left_while_another_waits_for_it_is_named_with_the_exchange():
    assert verdict(peer(0, at=5, waited=SETTLED), peer(1, has_left=True)).failure == (
        "worker 1 has left (its program has ended) while worker 0 still needs it, in exchange 5. Every worker must run "
        "the same number of steps: decide together when to stop, for example by reducing the decision first.")


def test_all_that_disagree_are_listed_in_their_order():
    failure = verdict(peer(0, at=5), peer(2, at=6), peer(10, at=5)).failure
    assert failure.startswith("the workers disagree on what to exchange. worker 0: exchange 5; worker 2: exchange 6; "
                              "worker 10: exchange 5. All workers must call the same collectives in the same order")


def test_a_disagreement_is_told_at_once_when_all_wait_and_later_when_one_is_still_on_its_way():
    two = peer(0, at=5, waited=SETTLED), peer(1, at=6, waited=SETTLED)
    assert verdict(*two).failure
    assert verdict(*two, peer(2)) == Verdict()
    later = SETTLED + ALL_SETTLED_WITHIN
    failure = verdict(peer(0, at=5, waited=later), peer(1, at=6), peer(2)).failure
    assert "worker 0: exchange 5; worker 1: exchange 6. " in failure


def test_a_worker_that_still_completes_the_last_exchange_does_not_disagree():
    assert verdict(peer(0, at=6, waited=10, done=8), peer(1, at=5, waited=10, done=7)) == Verdict()


def test_a_late_worker_is_warned_of_and_then_an_error_with_where_it_is():
    late = peer(1), peer(2, busy="tracing step")
    assert verdict(peer(0, at=5, waited=30), *late).warning == (
        "worker 1, worker 2 did not come within 30 s to where worker 0 waits, exchange 5. Seen last: worker 1 (at "
        "train.py:3, in main), worker 2 (busy: tracing step).")
    failed = verdict(peer(0, at=5, waited=600), peer(1), peer(2, at=5, waited=599))
    assert failed.failure == ("worker 1 did not come within 600 s to where worker 0 waits, exchange 5 (timeout_seconds "
                              "is 600). Seen last: worker 1 (at train.py:3, in main).")


def test_the_one_who_has_waited_longest_is_told():
    assert "to where worker 2 waits" in verdict(peer(0, at=5, waited=31), peer(1), peer(2, at=5, waited=40)).warning


def test_a_worker_that_was_never_heard_of_is_said_to_be_that():
    assert verdict(peer(0, at=5), peer(1, line="")).warning.endswith("worker 1 (not heard of since the start).")


def test_a_busy_worker_is_never_late():
    found = verdict(peer(0, at=5, waited=6000), peer(1, busy="saving a checkpoint"))
    assert (found.failure, found.is_quiet) == ("", False)
    assert "worker 1 (busy: saving a checkpoint)" in found.warning


def test_a_wait_of_all_in_one_exchange_is_the_networks():
    everybody = peer(0, at=5, waited=600, done=8), peer(1, at=5, waited=600, done=8)
    assert verdict(*everybody).failure == (
        "nobody is missing, and worker 0, worker 1 wait for 600 s to complete exchange 5 (timeout_seconds is 600). A "
        "worker may not reach the address of another one: `lockstep doctor`, run on all at the same time instead of "
        "the program, finds out. Or the network is slow for so much data.")


def test_a_worker_that_is_behind_for_long_is_named_with_what_it_cannot_complete():
    everybody = peer(0, at=6, waited=600, done=8), peer(1, at=5, waited=600, done=7)
    assert verdict(*everybody).failure.startswith(
        "nobody is missing, and worker 1 waits for 600 s to complete exchange 5 (timeout_seconds is 600).")


def test_who_does_not_hear_of_all_calls_nobody_late_and_sees_no_disagreement():
    assert verdict(peer(1, at=5, waited=6000), peer(0), are_all_known=False) == Verdict()
    assert verdict(peer(1, at=5), peer(0, at=6), are_all_known=False) == Verdict()
    assert verdict(peer(1, at=5), peer(0, has_left=True), are_all_known=False).failure.startswith("worker 0 has left")


def test_a_state_that_repeats_itself_leaves_the_wait_as_long_as_it_was():
    one = peer(0, at=5, waited=10)
    one.take({**one.state, "line": "train.py:4, in main"}, NOW)
    assert (one.changed, one.state["line"]) == (NOW - 10, "train.py:4, in main")
    one.take({**one.state, "done": 8}, NOW)
    assert one.changed == NOW
