"""`DataParallel` and `initialize` on two workers of two replicas; the cases are in programs/data_parallel.py."""

import numpy as np
import pytest

from programs.data_parallel import X, Y, batches, train
from testing.workers import run_workers

# float32 sums in another order.
TOLERANCE = 1e-6
NAMES = [f"/job:worker/replica:0/task:{task}/device:CPU:{index}" for task in range(2) for index in range(2)]


@pytest.fixture(scope="module")
def initialized():
    return run_workers("data_parallel", num_workers=2, replicas=2, args=["initialize"])


@pytest.fixture(scope="module")
def by_tf_config():
    return run_workers("data_parallel", num_workers=2, replicas=2)


def results(workers):
    for worker in workers:
        assert worker.code == 0, worker.output[-3000:]
    return [worker.results for worker in workers]


@pytest.fixture(scope="module")
def one_device():
    return {"arrays": train((X, Y)), "dataset": train((batches(),))}


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
@pytest.mark.parametrize("how", ["initialized", "by_tf_config"])
def test_training_spans_all_workers_with_the_numbers_of_one_device(request, one_device, how):
    for rank, seen in enumerate(results(request.getfixturevalue(how))):
        assert seen["place"] == [2, rank, 4, 4]
        for name, expected in one_device.items():
            np.testing.assert_allclose(seen[name], expected, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("how", ["initialized", "by_tf_config"])
def test_the_mesh_lists_the_devices_of_all_workers(request, how):
    numbered = ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
    assert [seen["devices"] for seen in results(request.getfixturevalue(how))] == [[numbered, numbered, NAMES]] * 2


def test_initialize_writes_the_cluster_for_what_is_made_afterwards(initialized):
    assert [seen["TF_CONFIG"] for seen in results(initialized)] == [True, True]


def test_a_mesh_of_full_names_and_two_axes_is_taken(initialized):
    assert [seen["again"] for seen in results(initialized)] == [True, True]


def test_each_worker_takes_the_rows_of_its_replicas_of_every_batch(initialized):
    first, second = results(initialized)
    assert first["rows"] == [[[0, 1], [2]], [[5], [6]]]
    assert second["rows"] == [[[3], [4]], [[], []]]


def test_elements_without_rows_are_shared_out_in_turn(initialized):
    assert [seen["elements"] for seen in results(initialized)] == [[0, 2, 4, 6], [1, 3, 5]]


def test_data_of_a_workers_own_are_split_among_its_replicas_only(initialized):
    first, second = results(initialized)
    assert first["own rows"] == [[[0, 1], [2]], [[3], [4]]]
    assert second["own rows"] == [[[10, 11], [12]], [[13], [14]]]


def test_each_worker_places_its_part_and_brings_all_together(initialized):
    rows = [[0, 1], [2, 3], [4, 5], [6]]
    for rank, seen in enumerate(results(initialized)):
        own = slice(2 * rank, 2 * rank + 2)
        assert seen["placed"][0] == [list(pair) for pair in zip(NAMES[own], rows[own])]
        assert seen["placed"][1] == [[name, [0, 1, 2, 3, 4, 5, 6]] for name in NAMES[own]]


def test_a_mesh_of_other_devices_than_the_replicas_is_refused(initialized):
    for seen in results(initialized):
        assert "expected all that have a replica, in their order" in seen["error"]
        assert all(name in seen["error"] for name in NAMES)
