"""When a worker fails, leaves or disagrees, all others say which one and why, within seconds: no hang, no riddle."""

import re

import pytest

from testing.workers import run_workers

DEADLINE = 60.0


def run(event, num_workers=2):
    return run_workers("failures", num_workers, args=[event], deadline=DEADLINE)


def last_line(worker):
    return worker.output.strip().splitlines()[-1]


def check_survivor(worker, pattern):
    """The survivor ends with a PeerError whose text matches."""
    assert worker.code == 1, worker.output
    assert re.match("lockstep.collective.errors.PeerError: " + pattern, last_line(worker)), worker.output


@pytest.mark.parametrize("event, culprit", [("raise", 1), ("raise in a function", 0)])
def test_an_exception_is_told_to_the_others_with_its_type_message_and_line(event, culprit):
    workers = run(event)
    assert last_line(workers[culprit]) == "ValueError: no such file: rows.csv"
    check_survivor(workers[1 - culprit],
                   rf"worker {culprit} \(.*\) raised ValueError: no such file: rows.csv \(failures.py:\d+\)")
    assert workers[1 - culprit].seconds < workers[culprit].seconds + 15


@pytest.mark.parametrize("num_workers", [2, 4])
def test_a_killed_worker_is_named(num_workers):
    workers = run("kill", num_workers)
    assert workers[1].code == -9
    for rank in {*range(num_workers)} - {1}:
        check_survivor(workers[rank], r"worker 1 \(.*\) died: its connection broke without a word, \d+\.\d s after")


def test_a_frozen_worker_is_named_with_how_long_it_has_been_silent():
    survivor, _ = run_workers("failures", 2, args=["freeze"], deadline=30.0, abandoned=[1])
    check_survivor(survivor, r"worker 1 \(.*\) has been silent for 1\d\.\d s: it is frozen")


def test_a_worker_that_does_not_come_is_warned_of_and_named_with_where_it_is_instead():
    survivor, _ = run_workers("failures", 2, args=["not come"], deadline=30.0, abandoned=[1])
    where = r"all-reduce SUM of int32 \(.*\) of shape \(\) in step \(exchange 1\), .*failures.py:\d+"
    seen = r"Seen last: worker 1 \(.*\) \(at .*failures.py:\d+, in main\)\."
    assert re.search(rf"worker 1 \(.*\) did not come within 2 s to where worker 0 \(.*\) waits, {where}\. {seen}",
                     survivor.output)
    check_survivor(survivor, rf"worker 1 \(.*\) did not come within 10 s to where worker 0 \(.*\) waits, {where} "
                             rf"\(timeout_seconds is 10\)\. {seen}")


def test_a_worker_that_leaves_too_early_is_named():
    workers = run("leave")
    assert workers[1].code == 0
    check_survivor(workers[0], r"worker 1 \(.*\) has left \(its program has ended\) while worker 0 \(.*\) still needs "
                               r"it, in all-reduce SUM of int32")


def test_an_exit_code_is_told_to_the_others_with_the_line():
    workers = run("exit code")
    assert workers[1].code == 3
    check_survivor(workers[0], r"worker 1 \(.*\) ended by sys.exit\(3\) \(failures.py:\d+\)")


def test_an_exit_that_was_caught_is_forgotten():
    workers = run("caught exit")
    assert (workers[1].code, workers[1].results) == (0, {"caught": True})
    check_survivor(workers[0], r"worker 1 \(.*\) has left \(its program has ended\) while worker 0")


def test_an_interrupt_is_told_to_the_others():
    workers = run("interrupt")
    assert "KeyboardInterrupt" in last_line(workers[1])
    check_survivor(workers[0], r"worker 1 \(.*\) raised KeyboardInterrupt \(failures.py:\d+\)")


def test_a_process_that_a_worker_forks_off_is_no_worker():
    for rank, worker in enumerate(run("fork")):
        assert worker.code == 0, worker.output
        assert worker.results == {"child": 1 if rank else 3}


def test_a_worker_that_nobody_needs_any_more_leaves_in_peace():
    workers = run("leave when nobody needs it")
    assert [worker.code for worker in workers] == [0, 0]
    assert workers[1].results["alone"] == 3.0
    assert "Lockstep:" not in workers[0].output + workers[1].output


@pytest.mark.parametrize("num_workers, event, seen", [
    (2, "shape", [r"of float32 \(weights:0\) of shape \(2,\)", r"of float32 \(weights:0\) of shape \(3,\)"]),
    (4, "shape", [rf"of float32 \(weights:0\) of shape \({size},\)" for size in (2, 3, 4, 5)]),
    (2, "dtype", ["SUM of float32", "SUM of float64"]),
    (2, "order", [r"\(right:0\)", r"\(left:0\)"]),
    (2, "number", ["no exchange 2", "all-reduce SUM .*exchange 2"]),
])
def test_workers_whose_traces_disagree_all_say_so_before_any_exchange(num_workers, event, seen):
    for worker in run(event, num_workers):
        kind, text = worker.results["error"]
        assert kind == "CollectiveMismatchError"
        assert re.search("the workers disagree on what to exchange. " + ".*; ".join(
            rf"worker {rank} \(.*\): .*{what}" for rank, what in enumerate(seen)), text), text
        assert re.search(r"failures.py:\d+", text)
        assert worker.results["goes on"] == num_workers


@pytest.mark.parametrize("event, seen", [
    ("op", ["all-reduce MAX", "all-reduce SUM"]),
    ("order in Python", ["all-reduce SUM", "all-reduce SUM"]),
    ("one stops early", ["barrier 'after training'", r"\(reduce\)"]),
])
def test_workers_that_wait_for_different_things_all_say_what_each_wanted_and_where(event, seen):
    for worker in run(event):
        text = ".*".join(rf"worker {rank} \(.*\): .*{what}.*failures.py:\d+" for rank, what in enumerate(seen))
        check_survivor(worker, "the workers disagree on what to exchange. " + text)
        assert worker.results["error"][0] == "PeerError"


def test_a_decision_that_is_reduced_first_is_the_same_for_all():
    assert [worker.results["stopped after"] for worker in run("all stop together")] == [1, 1]


def test_a_proxy_for_the_web_does_not_stand_between_workers(monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert [worker.results.get("stopped after") for worker in run("all stop together")] == [1, 1]


def test_one_worker_may_see_a_partial_batch_alone():
    for worker in run("a partial batch on one worker"):
        assert worker.code == 0, worker.output
        assert worker.results["losses"] == pytest.approx([2.5, (5 + 6 + 7 + 8 + 9 + 10 + 11) / 7])


@pytest.mark.parametrize("started, missing", [(0, 1), (1, 0)])
def test_a_worker_that_is_never_started_is_named_first_in_the_log_then_in_an_error(started, missing):
    worker, = run_workers("failures", 2, args=["kill"], started=[started], deadline=30.0)
    assert re.search(rf"waiting for worker {missing} \(127.0.0.1:\d+\) to start", worker.output)
    check_survivor(worker, rf"MultiWorkerMirroredStrategy: worker {missing} \(127.0.0.1:\d+\) did not start within")
    assert worker.seconds < 20 + 10  # The start of Python and TensorFlow included.
