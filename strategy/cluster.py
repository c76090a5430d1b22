"""The workers that train together, and which of them this process is.

Read from `TF_CONFIG` or from a cluster resolver, and checked before anything touches the network: a mistake is an error
in this process at once, not a wait for workers that never come.

    cluster = Cluster.from_environment()       # None without TF_CONFIG: one worker
    cluster.task, cluster.num_workers          # Task("worker", 1, "10.0.0.2:2222"), 2
    cluster.device_prefix(cluster.rank)        # "/job:worker/replica:0/task:1"
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from typing import Any, Mapping

import tensorflow as tf

from ..collective.options import is_integer

TRAINING_KINDS = ("chief", "worker")
KINDS = (*TRAINING_KINDS, "evaluator")
VARIABLE = "TF_CONFIG"


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of the cluster.

    Attributes:
        kind: "chief", "worker" or "evaluator".
        index: Its number among the tasks of its kind.
        address: "host:port"; "" for an evaluator that the cluster does not list.
    """

    kind: str
    index: int
    address: str

    def __str__(self) -> str:
        return f"{self.kind} {self.index}" + (f" ({self.address})" if self.address else "")

    @property
    def host(self) -> str:
        """The host of the address, an IPv6 one without its brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port of the address."""
        return int(self.address.rpartition(":")[2])


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The tasks that train together.

    Attributes:
        tasks: The chief first, where there is one, then the workers by index. An evaluator stands alone.
        rank: This process's position in `tasks`.
        is_evaluator: Whether this process evaluates beside the training, alone.
    """

    tasks: tuple[Task, ...]
    rank: int
    is_evaluator: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Cluster | None:
        """Returns the cluster that `TF_CONFIG` describes; None where it is unset or lists no cluster: one worker.

        Raises:
            ValueError: `TF_CONFIG` is no JSON object, its cluster or its task is missing a part, contradicts itself, or
                asks for what is not supported. The text names the key.
        """
        config = _read_config(environ)
        if not config.get("cluster"):
            return None
        names = _Names(VARIABLE, "cluster", "task.type", "task.index")
        jobs = _jobs(config["cluster"], names)
        task = config.get("task")
        if not isinstance(task, dict):
            was = f"`task` is {task!r}" if "task" in config else "`task` is missing"
            raise ValueError(f'{VARIABLE}: {was}. Expected which task of the cluster this process is, such as "task": '
                             '{"type": "worker", "index": 0}. Set it, with another index in every process.')
        return cls._build(jobs, task.get("type"), task.get("index"), names)

    @classmethod
    def from_resolver(cls, resolver: tf.distribute.cluster_resolver.ClusterResolver) -> Cluster | None:
        """Returns the cluster that a resolver describes; None where it lists no task: one worker.

        Raises:
            TypeError: `resolver` is no cluster resolver.
            ValueError: What `from_environment` raises, named by the attributes of the resolver.
        """
        if not isinstance(resolver, tf.distribute.cluster_resolver.ClusterResolver):
            raise TypeError(f"`cluster_resolver` is a {type(resolver).__name__}. Expected a "
                            "tf.distribute.cluster_resolver.ClusterResolver.")
        if isinstance(resolver, tf.distribute.cluster_resolver.TFConfigClusterResolver):
            config = _read_config(os.environ)
            _jobs(config.get("cluster") or {}, _Names(VARIABLE, "cluster", "task.type", "task.index"))
        spec = resolver.cluster_spec().as_dict()  # First: the Slurm resolver knows its task only after this.
        if not spec:
            return None
        names = _Names(type(resolver).__name__, "cluster_spec()", "task_type", "task_id")
        return cls._build(_jobs(spec, names), resolver.task_type, _resolved_task_id(resolver), names)

    @classmethod
    def _build(cls, jobs: dict[str, dict[int, str]], kind: Any, index: Any, names: _Names) -> Cluster:
        own = _own_task(jobs, kind, index, names)
        if own.kind == "evaluator":
            return cls((own,), 0, is_evaluator=True)
        tasks = tuple(Task(kind, number, jobs[kind][number])
                      for kind in TRAINING_KINDS if kind in jobs for number in sorted(jobs[kind]))
        return cls(tasks, tasks.index(own))

    @property
    def task(self) -> Task:
        """This process."""
        return self.tasks[self.rank]

    @property
    def num_workers(self) -> int:
        """Number of tasks that train together; 1 for an evaluator."""
        return len(self.tasks)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints and summaries: the first task; an evaluator for its own."""
        return self.rank == 0

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The tasks that train, as TensorFlow takes them; an evaluator is none."""
        jobs: dict[str, dict[int, str]] = {}
        for task in self.tasks:
            if task.kind in TRAINING_KINDS:
                jobs.setdefault(task.kind, {})[task.index] = task.address
        return tf.train.ClusterSpec(jobs)

    def device_prefix(self, rank: int) -> str:
        """How the names of a task's devices begin, "/job:worker/replica:0/task:1"."""
        return f"/job:{self.tasks[rank].kind}/replica:0/task:{self.tasks[rank].index}"


@dataclasses.dataclass(frozen=True)
class _Names:
    """What the parts of a description are called where the user wrote it."""

    where: str
    cluster: str
    kind: str
    index: str


def _read_config(environ: Mapping[str, str]) -> dict[str, Any]:
    """`TF_CONFIG` as a dict, empty where it is unset."""
    text = environ.get(VARIABLE, "")
    if not text.strip():
        return {}
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        near = text[max(error.pos - 10, 0):error.pos + 10]
        raise ValueError(f"{VARIABLE}: is not JSON: {error.msg} at line {error.lineno} column {error.colno}, near "
                         f"{near!r}. Write it with `json.dumps`.") from None
    if not isinstance(config, dict):
        raise ValueError(f'{VARIABLE}: is {config!r}. Expected a JSON object with the keys "cluster" and "task".')
    return config


def _jobs(cluster: Any, names: _Names) -> dict[str, dict[int, str]]:
    """The addresses by kind and index, checked."""
    if not isinstance(cluster, dict):
        raise ValueError(f"{names.where}: {names.cluster} is {cluster!r}. Expected lists of addresses by task type, "
                         'such as {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}.')
    jobs = {kind: _addresses(kind, tasks, names) for kind, tasks in cluster.items() if _known(kind, names)}
    for kind in ("chief", "evaluator"):
        if len(jobs.get(kind, ())) > 1:
            raise ValueError(f"{names.where}: {names.cluster} lists {len(jobs[kind])} tasks of type {kind!r}. "
                             "Expected one at most. List the others as workers.")
    if jobs and not any(jobs.get(kind) for kind in TRAINING_KINDS):
        raise ValueError(f"{names.where}: {names.cluster} lists no chief and no worker: {cluster!r}. Expected the "
                         'tasks that train, such as "worker": ["10.0.0.1:2222"].')
    owner: dict[str, str] = {}
    for kind, tasks in jobs.items():
        for index, address in tasks.items():
            if address in owner:
                raise ValueError(f"{names.where}: {names.cluster} gives {owner[address]} and {kind} {index} one "
                                 f"address, {address!r}. Every task needs a host and port of its own.")
            owner[address] = f"{kind} {index}"
    return jobs


def _known(kind: Any, names: _Names) -> bool:
    if kind in KINDS:
        return True
    advice = {
        "ps": " Asynchronous training with parameter servers is not supported: list all tasks that train as workers.",
        "master": ' TensorFlow 2 calls it "chief": rename it.',
    }.get(kind, "")
    raise ValueError(f"{names.where}: {names.cluster} has tasks of type {kind!r}. Expected {', '.join(KINDS)}.{advice}")


def _addresses(kind: str, tasks: Any, names: _Names) -> dict[int, str]:
    where = f"{names.where}: {names.cluster}[{kind!r}]"
    if isinstance(tasks, dict):
        numbered = {}
        for key, address in tasks.items():
            number = _whole_number(key)
            if number is None:
                raise ValueError(f"{where} has the key {key!r}. Expected the number of a task, 0 or more.")
            numbered[number] = address
    elif isinstance(tasks, (list, tuple)):
        numbered = dict(enumerate(tasks))
    else:
        raise ValueError(f'{where} is {tasks!r}. Expected a list of addresses, such as ["10.0.0.1:2222"].')
    for number, address in numbered.items():
        if not _is_address(address):
            raise ValueError(f"{where}[{number}] is {address!r}. Expected \"host:port\" with a port from 1 to 65535, "
                             'such as "10.0.0.1:2222" or "[2001:db8::1]:2222".')
    return numbered


def _is_address(address: Any) -> bool:
    if not isinstance(address, str):
        return False
    match = re.fullmatch(r"(?:\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):([0-9]{1,5})", address)
    return match is not None and 1 <= int(match.group(1)) <= 65535


def _own_task(jobs: dict[str, dict[int, str]], kind: Any, index: Any, names: _Names) -> Task:
    """The task that this process is."""
    # As in TensorFlow, the cluster need not list the evaluator: nobody connects to it.
    listed = {"evaluator": {0: ""}, **{kind: tasks for kind, tasks in jobs.items() if tasks}}
    if not isinstance(kind, str) or kind not in listed:
        was = "missing" if kind is None else f"{kind!r}, which {names.cluster} does not list"
        raise ValueError(f"{names.where}: {names.kind} is {was}. Expected the type of this process's task, one of "
                         f"{', '.join(repr(kind) for kind in listed if kind in jobs)}. Set it.")
    number = _whole_number(index)
    if number is None or number not in listed[kind]:
        was = "missing" if index is None else repr(index)
        there = ", ".join(str(known) for known in sorted(listed[kind])[:8]) + (", ..." if len(listed[kind]) > 8 else "")
        raise ValueError(f"{names.where}: {names.index} is {was}. Expected the number of this process among the "
                         f"{len(listed[kind])} tasks of type {kind!r}: {there}. Set it, another one in every process.")
    return Task(kind, number, listed[kind][number])


def _whole_number(value: Any) -> int | None:
    """A whole number, 0 or more, also as a string; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]+", value):
        return int(value)
    return int(value) if is_integer(value) and value >= 0 else None


def _resolved_task_id(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> Any:
    """The resolver's task id; the public property of a `UnionResolver` takes an id of 0 for none."""
    own = vars(resolver).get("_task_id")
    if own is None and isinstance(resolver, tf.distribute.cluster_resolver.UnionResolver):
        return _resolved_task_id(vars(resolver)["_cluster_resolvers"][0])
    return resolver.task_id if own is None else own
