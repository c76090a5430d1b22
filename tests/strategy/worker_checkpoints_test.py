"""Workers that save together write one checkpoint, which any number of processes and replicas restores; the program
is programs/checkpoints.py."""

import re

import pytest

from programs.checkpoints import State
from testing.replicas import mirrored
from testing.workers import run_workers

CHECKPOINT = ("index", "data-00000-of-00001")


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(name="saved", scope="module")
def fixture_saved(folder):
    """What the two workers that saved have found."""
    workers = run_workers("checkpoints", num_workers=2, replicas=2, args=[str(folder), "save"])
    for worker in workers:
        assert worker.code == 0, worker.output[-3000:]
    return [worker.results for worker in workers]


def checkpoint_files(*names):
    return sorted(f"{name}.{kind}" for name in names for kind in CHECKPOINT)


def test_all_workers_are_told_the_same_paths(saved, folder):
    paths = [str(folder / "plain" / name) for name in ("ckpt-1", "ckpt-2", "written")]
    assert [results["paths"] for results in saved] == [paths, paths]


def test_one_checkpoint_is_written_and_nothing_else(saved):
    expected = sorted(["checkpoint", *checkpoint_files("ckpt-1", "ckpt-2", "written")])
    assert [results["files"]["plain"] for results in saved] == [expected, expected]


def test_counters_are_saved_as_the_exact_sum_over_all_workers(saved):
    assert [results["saved"][2] for results in saved] == [32, 32]


def test_what_is_restored_is_what_was_saved_and_the_next_step_is_the_same_bit_for_bit(saved):
    for results in saved:
        assert results["restored"] == [results["saved"], results["next step"], results["after it"]]
        assert results["read"] == results["saved"]
    assert saved[0]["restored"] == saved[1]["restored"]
    drawn = saved[0]["next step"][1]
    assert len(set(drawn)) == 4


def test_a_manager_keeps_as_many_checkpoints_as_it_should(saved, folder):
    paths = [str(folder / "managed" / f"ckpt-{number}") for number in range(3, 8)]
    for results in saved:
        assert results["managed"] == [*paths[:4], paths[2:4], paths[3]]
        # A new manager, as after a restart, deletes what the one before it has left.
        assert results["managed again"] == [paths[4], paths[4:]]
        assert results["files"]["managed"] == sorted(["checkpoint", *checkpoint_files("ckpt-7")])


def test_a_worker_that_names_a_path_of_its_own_writes_and_deletes_it(saved, folder):
    for rank, results in enumerate(saved):
        paths = [str(folder / f"own_{rank}" / f"ckpt-{number}") for number in (8, 9)]
        assert results["own"] == [paths, paths[1]]
        assert results["files"][f"own_{rank}"] == sorted(["checkpoint", *checkpoint_files("ckpt-9")])


def test_a_checkpoint_that_cannot_be_written_is_an_error_on_all_workers_and_they_go_on(saved, folder):
    assert [results["in the way"][0] for results in saved] == ["FailedPreconditionError"] * 2
    (kind, text), (told, told_text) = (results["blocked"] for results in saved)
    assert (kind, told) == ("FailedPreconditionError", "CollectiveError")
    assert re.match(r"`Checkpoint.save`: the checkpoint could not be written\. worker 0 \(.*\): FailedPrecondition.*: "
                    + re.escape(text), told_text)
    assert [results["another path"] for results in saved] == [str(folder / "free")] * 2


@pytest.mark.parametrize("num_replicas", [1, 4])
def test_one_process_restores_what_two_workers_have_saved(saved, folder, num_replicas):
    state = State(mirrored(num_replicas))
    state.checkpoint.read(str(folder / "plain" / "written")).assert_existing_objects_matched()
    assert state.values() == saved[0]["saved"]
    rows, drawn = state.step()
    expected_rows, expected_drawn = saved[0]["next step"]
    assert rows == expected_rows
    assert state.values()[:3] == saved[0]["after it"][:3]
    if num_replicas == 4:
        assert drawn == expected_drawn


def test_three_workers_restore_what_two_have_saved(saved, folder):
    for worker in run_workers("checkpoints", num_workers=3, args=[str(folder), "restore"]):
        assert worker.code == 0, worker.output[-3000:]
        values, (rows, _), after = worker.results["restored"]
        assert (values, rows) == (saved[0]["saved"], saved[0]["next step"][0])
        assert after[:3] == saved[0]["after it"][:3]


def test_a_chief_that_saves_alone_is_told_so_with_all_others(tmp_path):
    for worker in run_workers("checkpoints", num_workers=2, args=[str(tmp_path), "chief_only"], deadline=60.0):
        assert worker.code == 1
        assert re.search(r"PeerError: the workers disagree on what to exchange\. worker 0 \(.*\): .*every worker must "
                         r"save\) .*checkpoints.py:\d+; worker 1 \(.*\): ", worker.output), worker.output[-3000:]
        assert worker.seconds < 40
