"""Tests of `lockstep doctor`: which checks it makes, and which of them fail."""

import json
import re
import socket
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from lockstep.training import doctor
from lockstep.training.doctor import FAILED, OK, UNKNOWN, Check, diagnose
from lockstep.training.free_ports import free_ports
from testing.launches import run

VERSIONS = {"tensorflow": "2.21.0", "keras": "3.15.1"}
DEADLINE_SECS = 30


@pytest.fixture(name="addresses")
def fixture_addresses():
    """Two free addresses of this machine."""
    with free_ports(2) as ports:
        yield [f"127.0.0.1:{port}" for port in ports]


def environment(addresses, index):
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})}


def diagnose_all(*calls):
    """Runs a doctor for each call at the same time; returns their checks as dicts by name."""
    results = {}

    def call(number, environ, versions):
        results[number] = {check.name: check for check in diagnose(environ, DEADLINE_SECS, versions)}

    threads = [threading.Thread(target=call, args=(number, *arguments)) for number, arguments in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(len(calls))]


def named(environ, timeout_secs=0.2):
    return {check.name: check for check in diagnose(environ, timeout_secs, VERSIONS)}


def test_without_tf_config_there_is_one_worker_and_all_is_well(capsys, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert doctor.main([]) == 0
    text = capsys.readouterr().out
    assert "not set, or without a cluster: one worker" in text
    assert f"tensorflow {tf.__version__}, keras {keras.__version__}, numpy {np.__version__}, lockstep" in text
    assert re.search(r"devices here\W+ok\W+1 CPU, 0 GPU", text)


def test_a_tf_config_that_makes_no_sense_fails_at_once(capsys, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", environment(["a:1", "b:1"], 2)["TF_CONFIG"])
    assert doctor.main([]) == 1
    text = capsys.readouterr().out
    assert re.search(r"TF_CONFIG\W+failed\W+TF_CONFIG: task.index is 2\. Expected", text)


def test_an_evaluator_trains_with_nobody():
    environ = environment(["a:1"], 0)
    config = {**json.loads(environ["TF_CONFIG"]), "task": {"type": "evaluator", "index": 0}}
    checks = named({"TF_CONFIG": json.dumps(config)})
    assert checks["TF_CONFIG"] == Check("TF_CONFIG", OK, "evaluator 0, which trains with nobody")
    assert "own port" not in checks


def test_two_tasks_that_reach_each_other_and_run_the_same_pass(addresses):
    first, second = diagnose_all(*((environment(addresses, index), VERSIONS) for index in range(2)))
    assert first["TF_CONFIG"].detail == f"worker 0 ({addresses[0]}), one of 2 that train"
    assert first[f"worker 1 ({addresses[1]})"].detail == "reached, and reached this task; 1 CPU, 0 GPU"
    assert second["versions on all"] == Check("versions on all", OK, "the same on 2 tasks")
    assert {check.result for check in [*first.values(), *second.values()]} == {OK}


def test_different_versions_fail_on_both_sides(addresses):
    first, second = diagnose_all(
        (environment(addresses, 0), VERSIONS), (environment(addresses, 1), {**VERSIONS, "keras": "3.14.0"}))
    assert first["versions on all"] == Check(
        "versions on all", FAILED, f"worker 1 ({addresses[1]}) has keras 3.14.0, this task 3.15.1. Install the same "
        "everywhere.")
    assert second["versions on all"].detail.startswith(f"worker 0 ({addresses[0]}) has keras 3.15.1, this task 3.14.0")


def test_a_cluster_that_the_tasks_see_differently_fails(addresses):
    other = [addresses[0].replace("127.0.0.1", "localhost"), addresses[1]]
    first, second = diagnose_all((environment(addresses, 0), VERSIONS), (environment(other, 1), VERSIONS))
    assert first[f"worker 1 ({addresses[1]})"] == Check(
        f"worker 1 ({addresses[1]})", FAILED, f"its TF_CONFIG lists {', '.join(other)}, that of this task "
        f"{', '.join(addresses)}. Give every task the same cluster.")
    assert second[f"worker 0 ({other[0]})"].result == FAILED


def test_a_peer_where_nothing_listens_fails_and_its_versions_are_unknown(addresses):
    checks = named(environment(addresses, 0))
    assert checks["own port"].result == OK
    peer = f"worker 1 ({addresses[1]})"
    assert checks[peer] == Check(peer, FAILED, "not listening (nothing started there yet)")
    assert checks["versions on all"] == Check("versions on all", UNKNOWN, f"no doctor answered on {peer}")


def test_a_peer_that_runs_something_else_is_reached(addresses):
    with socket.create_server(("127.0.0.1", int(addresses[1].rpartition(":")[2]))):
        check = named(environment(addresses, 0))[f"worker 1 ({addresses[1]})"]
    assert (check.result, check.detail) == (
        OK, "something listens there that is no doctor (a job that runs already?)")


def test_an_own_port_that_is_in_use_fails(addresses):
    port = addresses[0].rpartition(":")[2]
    with socket.create_server(("127.0.0.1", int(port))):
        checks = named(environment(addresses, 0))
    assert checks["own port"] == Check("own port", FAILED, f"cannot listen on port {port}: Address already in use. "
                                       "Stop what uses it, or give this task another address.")


def test_a_peer_with_another_index_than_its_address_says_fails(addresses):
    facts = doctor.Facts(0, tuple(addresses), VERSIONS, {"CPU": 1})
    task = doctor.Cluster.from_environment(environment(addresses, 1)).task
    check = doctor._check_peer(task, 1, facts, doctor.Answer(facts, True, ""), False)
    assert check == Check(str(task), FAILED, "the task that listens there has another task.index in its TF_CONFIG. "
                          "Give every task the index of its own address.")


def test_a_peer_that_does_not_reach_this_task_fails(addresses):
    facts = doctor.Facts(0, tuple(addresses), VERSIONS, {"CPU": 1})
    cluster = doctor.Cluster.from_environment(environment(addresses, 0))
    answers = {1: doctor.Answer(doctor.Facts(1, tuple(addresses), VERSIONS, {"CPU": 1}), True, "")}
    check, versions = doctor._check_peers(cluster, facts, answers, {1})
    assert check == Check(str(cluster.tasks[1]), FAILED, "reached, and did not reach this task in time (a firewall?)")
    assert versions.result == OK


def test_nccl_variables_are_shown_where_there_are_gpus(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * 2)
    assert named({"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring", "HOME": "/"})["NCCL variables"].detail == (
        "NCCL_ALGO=Ring, NCCL_DEBUG=INFO")
    assert named({})["NCCL variables"].detail == "none set"


@pytest.mark.parametrize("argv, problem", [
    (["--timeout=soon"], "argument --timeout: is 'soon'. Expected a number of seconds, 0 or more"),
    (["now"], "unrecognized arguments: now")])
def test_arguments_that_make_no_sense_are_refused_in_one_line(capsys, argv, problem):
    with pytest.raises(SystemExit) as caught:
        doctor.main(argv)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"lockstep doctor: {problem}. See `lockstep doctor --help`.\n"


def test_launched_workers_find_each_other_well(tmp_path):
    """With the real programs, so slow: every worker imports TensorFlow."""
    code, lines, errors = run(tmp_path, "--workers=2", "-m", "lockstep", "doctor", f"--timeout={DEADLINE_SECS}")
    assert code == 0, errors + "\n".join(lines)
    for rank in range(2):
        text = "\n".join(line for line in lines if line.startswith(f"[worker {rank}] "))
        assert "reached, and reached this task; 1 CPU, 0 GPU" in text
        assert "the same on 2 tasks" in text
        assert sys.version.split()[0] in text
