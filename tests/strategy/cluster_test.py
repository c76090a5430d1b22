"""Tests of `lockstep.strategy.cluster`: which cluster a description means, and which descriptions are refused."""

import json
import re
import time

import pytest
import tensorflow as tf

from lockstep.strategy.cluster import Cluster, Task

resolvers = tf.distribute.cluster_resolver
TWO = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}
FIRST = {"type": "worker", "index": 0}


def environment(cluster, task=FIRST, **more):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, **more})}


def read(cluster, task=FIRST):
    return Cluster.from_environment(environment(cluster, task))


def simple(cluster, kind, index):
    return resolvers.SimpleClusterResolver(tf.train.ClusterSpec(cluster), task_type=kind, task_id=index)


def test_workers_stand_by_index_and_the_first_is_the_chief():
    cluster = read(TWO, {"type": "worker", "index": 1})
    assert cluster.tasks == (Task("worker", 0, "10.0.0.1:2222"), Task("worker", 1, "10.0.0.2:2222"))
    assert (cluster.rank, cluster.num_workers, cluster.is_chief, cluster.is_evaluator) == (1, 2, False, False)
    assert str(cluster.task) == "worker 1 (10.0.0.2:2222)"
    assert (cluster.task.host, cluster.task.port) == ("10.0.0.2", 2222)
    assert read(TWO).is_chief


def test_the_chief_stands_first():
    description = {"worker": ["b:1", "c:1"], "chief": ["a:1"]}
    cluster = read(description, {"type": "worker", "index": 0})
    assert [str(task) for task in cluster.tasks] == ["chief 0 (a:1)", "worker 0 (b:1)", "worker 1 (c:1)"]
    assert (cluster.rank, cluster.is_chief) == (1, False)
    assert read(description, {"type": "chief", "index": 0}).is_chief
    assert [cluster.device_prefix(rank) for rank in range(3)] == [
        "/job:chief/replica:0/task:0", "/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1"]


def test_a_chief_alone_is_a_cluster_of_one():
    cluster = read({"chief": ["a:1"]}, {"type": "chief", "index": 0})
    assert (cluster.num_workers, cluster.rank) == (1, 0)


def test_the_evaluator_is_no_training_task():
    description = {**TWO, "evaluator": ["10.0.0.3:2222"]}
    cluster = read(description)
    assert cluster.num_workers == 2
    assert cluster.cluster_spec().as_dict() == TWO


@pytest.mark.parametrize("listed, name", [({"evaluator": ["e:1"]}, "evaluator 0 (e:1)"), ({}, "evaluator 0")])
def test_an_evaluator_stands_alone_whether_the_cluster_lists_it_or_not(listed, name):
    cluster = read({**TWO, **listed}, {"type": "evaluator", "index": 0})
    assert (cluster.is_evaluator, cluster.num_workers, cluster.rank, cluster.is_chief) == (True, 1, 0, True)
    assert str(cluster.task) == name
    assert not cluster.cluster_spec()


@pytest.mark.parametrize("environ", [
    {}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}, {"TF_CONFIG": '{"cluster": {}, "task": {}}'},
    {"TF_CONFIG": '{"task": {"type": "worker", "index": 0}}'}])
def test_no_cluster_means_one_worker(environ):
    assert Cluster.from_environment(environ) is None


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", environment(TWO)["TF_CONFIG"])
    assert Cluster.from_environment().num_workers == 2


def test_other_keys_are_left_alone():
    environ = environment(TWO, {**FIRST, "trial": "1"}, environment="cloud", rpc_layer="grpc")
    assert Cluster.from_environment(environ) == read(TWO)


def test_an_index_may_be_a_string():
    assert read(TWO, {"type": "worker", "index": "1"}).rank == 1


def test_addresses_may_be_given_by_index():
    cluster = read({"worker": {"3": "d:1", "0": "a:1"}}, {"type": "worker", "index": 3})
    assert [str(task) for task in cluster.tasks] == ["worker 0 (a:1)", "worker 3 (d:1)"]
    assert cluster.rank == 1
    assert cluster.device_prefix(1) == "/job:worker/replica:0/task:3"
    assert cluster.cluster_spec().as_dict() == {"worker": {0: "a:1", 3: "d:1"}}


def test_an_address_of_ipv6_has_brackets():
    task = read({"worker": ["[2001:db8::1]:2222"]}).task
    assert (task.host, task.port) == ("2001:db8::1", 2222)


@pytest.mark.parametrize("text, message", [
    ('{"cluster": {', "TF_CONFIG: is not JSON: Expecting property name enclosed in double quotes at line 1 column 14"),
    ("{'cluster': 1}", "TF_CONFIG: is not JSON: Expecting property name enclosed in double quotes at line 1 column 2, "
                       "near \"{'cluster':\""),
    ("[1]", "TF_CONFIG: is [1]. Expected a JSON object"),
    ('"worker"', "TF_CONFIG: is 'worker'. Expected a JSON object"),
])
def test_text_that_is_no_json_object_is_refused(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Cluster.from_environment({"TF_CONFIG": text})


@pytest.mark.parametrize("cluster, message", [
    (["a:1"], "cluster is ['a:1']. Expected lists of addresses by task type"),
    ({"worker": "a:1"}, "cluster['worker'] is 'a:1'. Expected a list of addresses"),
    ({"worker": {"x": "a:1"}}, "cluster['worker'] has the key 'x'. Expected the number of a task"),
    ({"worker": ["a:1"], "ps": ["b:1"]}, "tasks of type 'ps'. Expected chief, worker, evaluator. Asynchronous training "
                                         "with parameter servers is not supported"),
    ({"master": ["a:1"]}, "tasks of type 'master'. Expected chief, worker, evaluator. TensorFlow 2 calls it \"chief\""),
    ({"wroker": ["a:1"]}, "tasks of type 'wroker'. Expected chief, worker, evaluator."),
    ({"chief": ["a:1", "b:1"]}, "lists 2 tasks of type 'chief'. Expected one at most"),
    ({"worker": ["a:1"], "evaluator": ["b:1", "c:1"]}, "lists 2 tasks of type 'evaluator'. Expected one at most"),
    ({"evaluator": ["a:1"]}, "cluster lists no chief and no worker: {'evaluator'"),
    ({"worker": []}, "cluster lists no chief and no worker: {'worker': []}"),
    ({"worker": ["a:1", "b:1", "a:1"]}, "gives worker 0 and worker 2 one address, 'a:1'"),
    ({"chief": ["a:1"], "worker": ["a:1"]}, "gives chief 0 and worker 0 one address, 'a:1'"),
])
def test_a_cluster_that_makes_no_sense_is_refused(cluster, message):
    start = time.monotonic()
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read(cluster)
    assert str(caught.value).startswith("TF_CONFIG: cluster")
    assert time.monotonic() - start < 1


@pytest.mark.parametrize("address", [
    "a", "a:", ":1", "a:b", "a:0", "a:65536", "a:-1", "a: 1", "a:1 ", "", "grpc://a:1", "::1:2222", "a:1:2", 2222,
    None])
def test_a_malformed_address_is_refused(address):
    with pytest.raises(ValueError, match=re.escape(
            f"TF_CONFIG: cluster['worker'][1] is {address!r}. Expected \"host:port\" with a port from 1 to 65535")):
        read({"worker": ["10.0.0.1:2222", address]})


@pytest.mark.parametrize("task, message", [
    (None, "`task` is None. Expected which task of the cluster this process is"),
    ("worker", "`task` is 'worker'. Expected which task"),
    ({}, "task.type is missing. Expected the type of this process's task, one of 'worker'"),
    ({"index": 0}, "task.type is missing"),
    ({"type": "chief", "index": 0}, "task.type is 'chief', which cluster does not list"),
    ({"type": ["worker"], "index": 0}, "task.type is ['worker'], which cluster does not list"),
    ({"type": "Worker", "index": 0}, "task.type is 'Worker', which cluster does not list"),
    ({"type": "ps", "index": 0}, "task.type is 'ps', which cluster does not list"),
    ({"type": "worker"}, "task.index is missing. Expected the number of this process among the 2 tasks of type "
                         "'worker': 0, 1."),
    ({"type": "worker", "index": 5}, "task.index is 5. Expected the number of this process among the 2 tasks"),
    ({"type": "worker", "index": "2"}, "task.index is '2'."),
    ({"type": "worker", "index": -1}, "task.index is -1."),
    ({"type": "worker", "index": 0.0}, "task.index is 0.0."),
    ({"type": "worker", "index": True}, "task.index is True."),
    ({"type": "worker", "index": "one"}, "task.index is 'one'."),
    ({"type": "evaluator", "index": 1}, "task.index is 1. Expected the number of this process among the 1 tasks of "),
])
def test_a_task_that_the_cluster_does_not_have_is_refused(task, message):
    with pytest.raises(ValueError, match=re.escape(f"TF_CONFIG: {message}")):
        read(TWO, task)


def test_a_missing_task_is_refused():
    with pytest.raises(ValueError, match=r"TF_CONFIG: `task` is missing\. .*\"index\": 0"):
        Cluster.from_environment({"TF_CONFIG": json.dumps({"cluster": TWO})})


def test_a_simple_resolver_gives_the_same_cluster():
    assert Cluster.from_resolver(simple(TWO, "worker", 1)) == read(TWO, {"type": "worker", "index": 1})


def test_the_tf_config_resolver_gives_the_same_cluster(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", environment(TWO)["TF_CONFIG"])
    assert Cluster.from_resolver(resolvers.TFConfigClusterResolver()) == read(TWO)
    assert Cluster.from_resolver(resolvers.TFConfigClusterResolver(task_id=1)).rank == 1


def test_the_tf_config_resolver_names_the_variable(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(ValueError, match="TF_CONFIG: is not JSON"):
        Cluster.from_resolver(resolvers.TFConfigClusterResolver())
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": "a:1"}}')
    with pytest.raises(ValueError, match="TF_CONFIG: cluster"):
        Cluster.from_resolver(resolvers.TFConfigClusterResolver())


def test_a_resolver_without_tasks_means_one_worker(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert Cluster.from_resolver(resolvers.TFConfigClusterResolver()) is None


def test_a_union_keeps_a_task_id_of_zero():
    union = resolvers.UnionResolver(simple(TWO, "worker", 1), task_type="worker", task_id=0)
    assert Cluster.from_resolver(union).rank == 0
    assert Cluster.from_resolver(resolvers.UnionResolver(union)).rank == 0
    assert Cluster.from_resolver(resolvers.UnionResolver(simple(TWO, "worker", 1))).rank == 1


def test_the_slurm_resolver_gives_its_task(monkeypatch):
    for name, value in {"PROCID": "3", "STEP_NUM_TASKS": "4", "STEP_NODELIST": "t[1-2]",
                        "STEP_TASKS_PER_NODE": "2(x2)"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    resolver = resolvers.SlurmClusterResolver(gpus_per_node=2, gpus_per_task=1, auto_set_gpu=False)
    cluster = Cluster.from_resolver(resolver)
    assert (str(cluster.task), cluster.num_workers) == ("worker 3 (t2:8889)", 4)


class Pods:
    """What the Kubernetes resolver asks a client for."""

    def list_pod_for_all_namespaces(self, label_selector):
        pods = [{"metadata": {"name": f"pod{number}"}, "status": {"phase": "Running", "host_ip": f"10.0.0.{number}"}}
                for number in (1, 2)]
        return _record({"items": pods})


def _record(value):
    return json.loads(json.dumps(value), object_hook=lambda fields: type("Record", (), fields))


def test_the_kubernetes_resolver_needs_its_task():
    resolver = resolvers.KubernetesClusterResolver({"worker": ["job-name=train"]}, override_client=Pods())
    with pytest.raises(ValueError, match="KubernetesClusterResolver: task_type is missing"):
        Cluster.from_resolver(resolver)
    resolver.task_type, resolver.task_id = "worker", 1
    assert str(Cluster.from_resolver(resolver).task) == "worker 1 (10.0.0.2:8470)"


def test_a_resolver_that_contradicts_itself_is_refused_by_its_attributes():
    with pytest.raises(ValueError, match=re.escape("SimpleClusterResolver: task_id is 2. Expected the number of this")):
        Cluster.from_resolver(simple(TWO, "worker", 2))
    with pytest.raises(ValueError, match=re.escape("SimpleClusterResolver: cluster_spec() has tasks of type 'ps'")):
        Cluster.from_resolver(simple({"ps": ["a:1"]}, "ps", 0))


def test_something_else_than_a_resolver_is_refused():
    with pytest.raises(TypeError, match="`cluster_resolver` is a dict"):
        Cluster.from_resolver(TWO)
