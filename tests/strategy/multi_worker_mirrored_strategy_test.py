"""Four replicas give the same on one worker, on two of two, and on four of one; the cases are in
programs/surface.py."""

import json

import pytest
import tensorflow as tf

import lockstep
from programs import surface
from testing.replicas import mirrored
from testing.workers import run_workers

# Those that make weights: with one replica for each worker only these are run.
TRAINING = ("losses_of_every_number_of_rows", "a_partial_last_batch_in_an_outer_loop", "all_reduce_of_lookups",
            "variables", "random_streams", "eager_steps")


@pytest.fixture(scope="module")
def two_of_two():
    return run_workers("surface", num_workers=2, replicas=2)


@pytest.fixture(scope="module")
def four_of_one():
    return run_workers("surface", num_workers=4, replicas=1, args=TRAINING)


@pytest.fixture(scope="module")
def expected():
    found = {}

    def of(name):
        if name not in found:
            found[name] = json.loads(json.dumps(surface.plain(surface.CASES[name](mirrored(4)))))
        return found[name]

    return of


def check(workers, name, expected):
    for worker in workers:
        assert worker.code == 0, worker.output[-3000:]
        # The sums of these cases are exact in float32, so the order of addition does not show.
        assert worker.results[name] == expected(name)


def test_every_worker_knows_its_place(two_of_two):
    assert [worker.results["worker"] for worker in two_of_two] == [[4, 2, True], [4, 2, False]]


@pytest.mark.parametrize("name", list(surface.CASES))
def test_two_workers_of_two_replicas_equal_one_of_four(two_of_two, expected, name):
    check(two_of_two, name, expected)


@pytest.mark.parametrize("name", TRAINING)
def test_four_workers_of_one_replica_equal_one_of_four(four_of_one, expected, name):
    check(four_of_one, name, expected)


@pytest.mark.parametrize("implementation", ["ring", "naive"])
def test_other_algorithms_give_the_same(expected, implementation, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_TEST_IMPLEMENTATION", implementation)
    names = ("all_reduce_of_a_nest", "all_reduce_of_unknown_dimensions", "losses_of_every_number_of_rows")
    workers = run_workers("surface", num_workers=2, replicas=2, args=names)
    for name in names:
        check(workers, name, expected)


def test_without_a_cluster_there_is_one_worker(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = lockstep.MultiWorkerMirroredStrategy()
    assert (strategy.num_workers, strategy.is_chief, strategy.num_replicas_in_sync) == (1, True, 8)
    strategy.barrier("nobody else")
    assert strategy.broadcast({"seed": 3})["seed"].numpy() == 3


def test_a_cluster_of_one_and_an_evaluator_work_alone(monkeypatch):
    config = {"cluster": {"worker": ["127.0.0.1:1"], "evaluator": ["127.0.0.1:2"]}}
    for kind in ("worker", "evaluator"):
        monkeypatch.setenv("TF_CONFIG", json.dumps({**config, "task": {"type": kind, "index": 0}}))
        assert lockstep.MultiWorkerMirroredStrategy().num_workers == 1


def test_a_strategy_made_after_ops_says_so_before_it_waits_for_anybody():
    tf.constant(1.0)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": ["127.0.0.1:1", "127.0.0.1:2"]}), task_type="worker", task_id=0)
    with pytest.raises(RuntimeError, match="only before the first op. Make the strategy at the start of the program"):
        lockstep.MultiWorkerMirroredStrategy(resolver)


def test_options_of_another_type_are_refused():
    with pytest.raises(TypeError, match="Expected a lockstep.CollectiveOptions"):
        lockstep.MultiWorkerMirroredStrategy(options={"timeout_seconds": 3})


@pytest.mark.parametrize("root", [-1, 1, 0.5, True])
def test_a_broadcast_has_a_worker_as_its_root(root):
    with pytest.raises(ValueError, match="`root` is .* Expected the number of a worker, 0 to 0"):
        mirrored(2).broadcast(1, root)
