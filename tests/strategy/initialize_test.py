"""`initialize`: what cannot be a cluster is refused before anybody waits; data_parallel_workers_test.py sets one up."""

import json

import pytest
import tensorflow as tf

import lockstep

TWO = "10.0.0.1:1234,10.0.0.2:2345"
ANOTHER = json.dumps({"cluster": {"worker": ["10.0.0.3:1", "10.0.0.4:1"]}, "task": {"type": "worker", "index": 0}})


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    for name in ("TF_CONFIG", "KERAS_DISTRIBUTION_JOB_ADDRESSES", "KERAS_DISTRIBUTION_NUM_PROCESSES",
                 "KERAS_DISTRIBUTION_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("arguments", [(), (None, 1, 0), ("10.0.0.1:1234", 1, 0), ("10.0.0.1:1234", None, 0)])
def test_one_worker_waits_for_nobody(arguments, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "")
    lockstep.initialize(*arguments)
    assert lockstep.DataParallel().num_processes == 1


@pytest.mark.parametrize("arguments, error, match", [
    ((TWO, 3, 0), ValueError, "`num_processes` is 3, and `job_addresses` lists 2"),
    (("10.0.0.1:1234", 2, 1), ValueError, "lists 1: .* List all addresses"),
    ((TWO, 2, 2), ValueError, "`process_id` is 2. Expected this worker's number, 0 to 1"),
    ((TWO, 2, -1), ValueError, "`process_id` is -1"),
    ((TWO, 2, None), ValueError, "`process_id` is None"),
    ((None, 2, 0), ValueError, "there are no `job_addresses`"),
    ((None, None, 1), ValueError, "there are no `job_addresses`"),
    (("10.0.0.1,10.0.0.2", 2, 0), ValueError, '"host:port" with a port'),
    ((TWO.split(","), 2, 0), TypeError, "Expected a string of addresses"),
    ((TWO, "two", 0), TypeError, "`num_processes` is 'two'. Expected a whole number"),
    ((TWO, 2, 0.5), TypeError, "`process_id` is 0.5. Expected a whole number"),
    ((TWO, 2, True), TypeError, "`process_id` is True. Expected a whole number"),
])
def test_what_is_no_cluster_raises(arguments, error, match):
    with pytest.raises(error, match=match):
        lockstep.initialize(*arguments)


def test_what_is_not_given_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("KERAS_DISTRIBUTION_JOB_ADDRESSES", TWO)
    monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", "2")
    monkeypatch.setenv("KERAS_DISTRIBUTION_PROCESS_ID", "7")
    with pytest.raises(ValueError, match="`process_id` is 7"):
        lockstep.initialize()
    with pytest.raises(ValueError, match="`num_processes` is 5"):
        lockstep.initialize(num_processes=5)


def test_another_cluster_than_that_of_tf_config_is_refused(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", ANOTHER)
    with pytest.raises(ValueError, match="TF_CONFIG describes another cluster"):
        lockstep.initialize(TWO, 2, 0)


def test_a_process_that_has_run_ops_is_refused(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", ANOTHER)
    tf.zeros([]).numpy()
    for function in (lockstep.initialize, lockstep.DataParallel, lockstep.list_devices):
        with pytest.raises(RuntimeError, match="TensorFlow has run ops in this process before"):
            function()
