"""What two workers of two replicas read: in every step one global batch, whoever reads it; the cases are in
programs/input.py."""

import json
import os
import re

import pytest

from programs import input as program
from testing.workers import run_workers


@pytest.fixture(name="workers", scope="module")
def fixture_workers(tmp_path_factory):
    return run_workers("input", num_workers=2, replicas=2, args=[str(tmp_path_factory.mktemp("input"))])


@pytest.fixture(name="found")
def fixture_found(workers):
    """What both workers have found in a case."""

    def found(name):
        for worker in workers:
            assert worker.code == 0, worker.output[-3000:]
        return [worker.results[name] for worker in workers]

    return found


def rows(found):
    """By step: the rows of all replicas."""
    return [[row for worker in step for part in worker for row in part] for step in zip(*found, strict=True)]


def test_every_case_is_looked_at():
    with open(os.path.abspath(__file__), encoding="utf-8") as file:
        text = file.read()
    assert [name for name in program.CASES if f'"{name}"' not in text] == []


@pytest.mark.parametrize("name", ["even_batches", "the_policy_data"])
def test_every_worker_takes_its_replicas_rows_of_every_batch(found, name):
    assert found(name) == [[[[0], [1]], [[4], [5]]], [[[2], [3]], [[6], [7]]]]


def test_rows_that_are_too_few_go_to_the_first_replicas(found):
    assert found("a_partial_last_batch") == [[[[0], [1]], [[4], [5]], [[8], [9]]], [[[2], [3]], [[6], [7]], [[], []]]]
    assert found("one_row") == [[[[0], []]], [[[], []]]]
    assert found("one_file_that_all_read") == [[[["0 0"], ["0 1"]]], [[[], []]]]


def test_a_shuffle_without_a_seed_is_one_permutation_for_all_and_another_in_each_epoch(found):
    epochs = [rows(epoch) for epoch in zip(*found("a_shuffle_without_a_seed"), strict=True)]
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [5, 5, 5, 1]
        assert sorted(sum(epoch, [])) == list(range(16))
    assert epochs[0] != epochs[1]


def test_random_numbers_that_are_drawn_on_one_worker_alone_are_warned_of(found, workers):
    (seeded, _), (also_seeded, _) = found("other_random_numbers_on_one_worker")
    assert sorted(seeded + also_seeded) == list(range(8))
    for worker in workers:
        assert worker.output.count("the workers have drawn different random numbers so far") == 2


def test_data_without_an_end_or_of_unknown_length_are_read_alike(found):
    assert rows(found("endless_data")) == [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5], [0, 1, 2, 3]]
    assert rows(found("generators")) == [[0, 1, 2, 3], [4, 5]]


def test_different_numbers_of_batches_are_told_on_all_workers(found):
    text = ("`experimental_distribute_dataset`: the workers' datasets have different numbers of batches, by worker "
            "[2, 1]. With the policy AUTO every worker reads the same global batches")
    for kind, message in found("different_numbers_of_batches"):
        assert kind == "ValueError" and message.startswith(text)


def part(row, start):
    """A replica's part of a nest that has one row."""
    return {"ragged": [list(range(start, start + row))], "words": [str(row)], "sparse": [[[row, 0]], [1, 2]],
            "nothing": None, "matrix": [[row, 2 * row]]}


NOTHING = {"ragged": [], "words": [], "sparse": [[], [0, 2]], "nothing": None, "matrix": []}


def test_ragged_sparse_and_string_components_and_none_are_shared_out(found):
    assert found("nests") == [[[part(1, 0), part(2, 1)], [part(5, 0), NOTHING]],
                              [[part(3, 3), part(4, 6)], [NOTHING, NOTHING]]]


def test_off_reads_each_workers_own_data_in_as_many_rows_as_a_global_batch_has(found):
    assert found("the_policy_off") == [
        [[[first], [first + 1]] for first in range(start, start + 8, 2)] for start in (0, 10)]


def test_hint_replaces_the_shard_and_file_shares_out_files(found):
    assert found("the_policy_hint") == [[[[0], [2]], [[4], [6]]], [[[1], [3]], [[5], [7]]]]
    assert found("three_files_for_two_workers") == [
        [[["0 0"], []], [["0 1"], []], [["2 0"], []], [["2 1"], []]],
        [[["1 0"], []], [["1 1"], []], [[], []], [[], []]]]


@pytest.mark.parametrize("name, reasons", [
    ("one_file_for_two_workers", ["Could not apply FILE based sharding: the dataset only has 1 file.*", "no data"]),
    ("no_files_to_shard", ["Found an unshardable source dataset"] * 2)])
def test_files_that_cannot_be_shared_out_are_told_on_all_workers(found, name, reasons):
    text = (r"`experimental_distribute_dataset`: the policy FILE leaves a worker without data\. worker 0 \(.*\): "
            + reasons[0] + r"; worker 1 \(.*\): " + reasons[1] + r"\. Use the policy AUTO")
    for kind, message in found(name):
        assert kind == "ValueError" and re.match(text, message), message


@pytest.mark.parametrize("known", [True, False])
def test_workers_whose_data_end_go_on_with_zero_rows_or_all_stop(found, known):
    first, second = (lengths[f"{known} longest"] for lengths in found("unequal_lengths"))
    assert first == [[[row], []] for row in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)]
    assert second == [[[10.0], []], [[11.0], []], [[12.0], []], [[], []], [[], []], [[], []]]
    assert [lengths[f"{known} shortest"] for lengths in found("unequal_lengths")] == [first[:4], second[:4]]


def test_the_number_of_steps_is_that_of_the_longest_where_it_is_known(found):
    assert found("cardinalities") == [[6, -2]] * 2


def test_endless_data_of_their_own(found):
    assert found("endless_data_of_their_own") == [[[[0], []], [[1], []], [[0], []]], [[[1], []], [[2], []], [[1], []]]]
    longest = [of_worker["longest"] for of_worker in found("endless_data_on_one_worker")]
    assert longest == [[[[0], []], [[1], []], [[0], []], [[1], []]], [[[10], []], [[11], []], [[], []], [[], []]]]
    shortest = [of_worker["shortest"] for of_worker in found("endless_data_on_one_worker")]
    assert shortest == [steps[:2] for steps in longest]


def test_every_component_of_a_nest_may_have_zero_rows(found):
    assert found("nests_of_unequal_lengths") == [[[part(1, 0), part(2, 1)], [part(3, 3), part(4, 6)]],
                                                 [[part(1, 0), NOTHING], [part(2, 1), NOTHING]]]


def test_a_function_is_told_which_pipeline_it_makes_and_gives_per_replica_batches(found):
    assert found("batches_from_a_function") == [
        [[[2, 0, 4, 2]], [[[0, 2], [4, 6]], [[8, 10], [12]]]], [[[2, 1, 4, 2]], [[[1, 3], [5, 7]], [[9, 11], [13]]]]]


MEANS = [5.0, 6.0, 7.0, 3.0, 4.0, 5.0]  # Of 0 and 10, 1 and 11, 2 and 12, then of 3, 4 and 5 alone.


@pytest.mark.parametrize("name, expected", [
    ("means_in_a_python_loop", MEANS), ("means_in_a_loop_of_a_function", MEANS),
    ("means_of_optionals", [*MEANS, -1.0, -1.0]),
    ("enumerated_steps", [10.0, 112.0, 214.0, 303.0, 404.0, 505.0]),
])
def test_losses_are_means_over_the_rows_that_there_are_in_every_kind_of_loop(found, name, expected):
    assert found(name) == [[expected, expected]] * 2


@pytest.mark.parametrize("name, num_steps", [
    ("the_position_in_what_all_read", 2), ("the_position_in_data_of_their_own", 5), ("the_position_in_files", 3),
    ("the_position_in_batches_from_a_function", 3)])
def test_an_iterator_that_is_restored_goes_on_at_the_next_row_of_every_worker(found, name, num_steps):
    for second, rest in found(name):
        assert (rest[0], len(rest)) == (second, num_steps)
    assert found("the_position_in_data_of_their_own")[1][1] == [
        [[12], [13]], [[14], [15]], [[16], [17]], [[], []], [[], []]]


def test_positions_are_restored_into_the_same_input_only(found):
    for apart, alike in found("the_position_of_others"):
        assert apart.startswith("DistributedIterator: the checkpoint holds the positions of 2 workers, each of which "
                                "read data of its own, and this iterator reads what all read. Restore into the same")
        assert alike.startswith("DistributedIterator: the checkpoint holds one position for all workers, and here each "
                                "reads data of its own. Restore into the same")


def test_a_position_that_tensorflow_cannot_save_is_an_error_on_all_workers(found):
    assert [kind for kind, _ in found("the_position_in_a_generator")] == ["FailedPreconditionError"] * 2
    assert json.dumps(found("the_position_in_a_generator")).count("PyFunc is stateful") == 2
