"""What a worker knows before TensorFlow's servers start: how many replicas it has, and that no proxy stands between."""

import os
import types

import pytest
import tensorflow as tf

from lockstep.strategy import worker_runtime
from lockstep.strategy.cluster import Cluster, Task


@pytest.mark.parametrize("visible, logical, expected", [
    ({"CPU": ["cpu"]}, {}, 1),
    ({"CPU": ["cpu"]}, {"cpu": 4}, 4),
    ({"CPU": ["cpu"], "GPU": ["gpu0", "gpu2"]}, {"cpu": 4}, 2),
    ({"CPU": ["cpu"], "GPU": ["gpu0"]}, {"gpu0": 3}, 3),
])
def test_devices_that_the_program_has_hidden_are_no_replicas_and_those_it_has_split_are_several(
        monkeypatch, visible, logical, expected):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one", "more", "than", "are", "visible"])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: visible.get(kind, []))
    monkeypatch.setattr(tf.config, "get_logical_device_configuration",
                        lambda device: [types.SimpleNamespace()] * logical[device] if device in logical else None)
    assert worker_runtime.num_local_replicas() == expected


@pytest.mark.parametrize("before, expected", [
    ({}, "10.0.0.1,2001:db8::1"),
    ({"no_proxy": "example.org,10.0.0.1"}, "example.org,10.0.0.1,2001:db8::1"),
    ({"no_proxy": "example.org", "no_grpc_proxy": "example.net"}, "example.net,10.0.0.1,2001:db8::1"),
])
def test_the_hosts_of_the_cluster_are_reached_without_a_proxy(monkeypatch, before, expected):
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.setenv(name, before.get(name, ""))
    tasks = [Task("worker", rank, address) for rank, address in enumerate(
        ["10.0.0.1:1", "10.0.0.1:2", "[2001:db8::1]:1"])]
    worker_runtime._bypass_proxies(Cluster(tuple(tasks), 0))
    assert os.environ["no_grpc_proxy"] == expected


def test_a_process_without_a_cluster_has_no_runtime_and_no_failure():
    assert worker_runtime.current() is None
    worker_runtime.check()
    worker_runtime.check_after(tf.errors.UnavailableError(None, None, "gone"))
