"""Tests of `lockstep.training.worker_environment`: how cores and GPUs are shared out."""

import os

import pytest

from lockstep.training.worker_environment import share_cores, share_gpus, visible_gpus, worker_environment


def test_the_launchers_environment_is_handed_on_and_its_cluster_replaced():
    base = {"HOME": "/home", "TF_CONFIG": "old", "OMP_NUM_THREADS": "3"}
    environ = worker_environment(["a:1", "b:2"], 1, 4, None, 2, base)
    assert environ == {
        "HOME": "/home", "OMP_NUM_THREADS": "3", "TF_NUM_INTRAOP_THREADS": "4", "TF_NUM_INTEROP_THREADS": "4",
        "TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}',
        "LOCKSTEP_RESTART_COUNT": "2", "PYTHONUNBUFFERED": "1",
    }


@pytest.mark.parametrize("num_workers, cores", [(1, 8), (2, 4), (3, 2), (8, 1), (9, 1)])
def test_every_worker_gets_its_part_of_the_cores_and_at_least_one(monkeypatch, num_workers, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert share_cores(num_workers) == cores


@pytest.mark.parametrize("names, num_workers, shares, note", [
    ("", 2, [None, None], ""),
    ("0", 1, ["0"], ""),
    ("0123", 2, ["0,1", "2,3"], ""),
    ("012", 2, ["0", "1"], "1 of 3 GPUs stay unused: every worker gets 1."),
    ("01", 3, ["0", "1", ""], "3 workers for 2 GPUs: the last 1 get none and train on CPUs, and all wait for them. "
                              "--workers=2 gives every worker a GPU."),
])
def test_gpus_are_shared_out_evenly(names, num_workers, shares, note):
    assert share_gpus(list(names), num_workers) == (shares, note)


@pytest.mark.parametrize("value, names", [
    ("", []), ("-1", []), ("2", ["2"]), ("0, 3", ["0", "3"]), ("GPU-1a,GPU-2b", ["GPU-1a", "GPU-2b"]),
    ("1,-1,2", ["1"])])
def test_cuda_visible_devices_says_which_gpus_there_are(value, names):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}) == names


@pytest.fixture(name="nvidia_smi")
def fixture_nvidia_smi(tmp_path, monkeypatch):
    def install(text):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    return install


def test_else_nvidia_smi_says_it(nvidia_smi):
    nvidia_smi('[ "$1" = -L ] && echo "GPU 0: A (UUID: GPU-1)" && echo "  MIG 1g" && echo "GPU 1: A (UUID: GPU-2)"')
    assert visible_gpus({}) == ["0", "1"]
    nvidia_smi("echo GPU access blocked; exit 9")
    assert visible_gpus({}) == []


def test_without_nvidia_smi_there_are_no_gpus(nvidia_smi):
    assert visible_gpus({}) == []
