"""`lockstep doctor`: checks the cluster that `TF_CONFIG` describes, before a training run waits for it in vain.

    lockstep launch --workers=2 -m lockstep doctor       # the workers of one machine
    lockstep doctor                                      # on every machine at the same time, with its TF_CONFIG

Every task listens on its own address for some seconds, asks all others, and compares: see `peer_facts.py`.
"""

import dataclasses
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import rich.console
import rich.table
import rich.text
import tensorflow as tf

from ..strategy.cluster import Cluster, Task
from .command_line import Parser, seconds
from .peer_facts import Answer, Facts, FactServer, ask_peers

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
STYLES = {OK: "green", FAILED: "bold red", UNKNOWN: "yellow"}
# How wide the table is where there is no terminal.
WIDTH = 120


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the report: what was checked, OK, FAILED or UNKNOWN, and what was found."""

    name: str
    result: str
    detail: str


def main(argv: Sequence[str]) -> int:
    """Runs `lockstep doctor`.

    Args:
      argv: The arguments after `doctor`.

    Returns:
      1 where a check failed, else 0.
    """
    parser = Parser(
        prog="lockstep doctor",
        description="Checks this task of the cluster that TF_CONFIG describes, and what the others say. Run it on all "
        "at the same time, each with its own TF_CONFIG; `lockstep launch --workers=N -m lockstep doctor` does so on "
        "one machine. Exit code: 1 where a check failed, else 0.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--timeout", type=seconds, default=5.0, metavar="SECONDS", help="how long to wait for the other tasks (5)"
    )
    checks = diagnose(os.environ, parser.parse_args(argv).timeout)
    _show(checks)
    return int(any(check.result == FAILED for check in checks))


def diagnose(environ: Mapping[str, str], timeout_secs: float, versions: Mapping[str, str] | None = None) -> list[Check]:
    """Makes all checks.

    Args:
      environ: Holds TF_CONFIG.
      timeout_secs: How long the other tasks have to answer.
      versions: The versions to tell and compare; by default what is installed.
    """
    versions = dict(versions or installed_versions())
    devices = {kind: len(tf.config.list_physical_devices(kind)) for kind in ("CPU", "GPU")}
    checks = [
        Check("versions here", OK, ", ".join(f"{name} {version}" for name, version in versions.items())),
        Check("devices here", OK, _devices(devices)),
    ]
    if devices["GPU"]:
        nccl = [f"{name}={value}" for name, value in sorted(environ.items()) if name.startswith("NCCL_")]
        checks.append(Check("NCCL variables", OK, ", ".join(nccl) or "none set"))
    try:
        cluster = Cluster.from_environment(environ)
    except ValueError as error:
        return [Check("TF_CONFIG", FAILED, str(error)), *checks]
    if cluster is None:
        return [Check("TF_CONFIG", OK, "not set, or without a cluster: one worker"), *checks]
    if cluster.is_evaluator:
        return [Check("TF_CONFIG", OK, f"{cluster.task}, which trains with nobody"), *checks]
    facts = Facts(cluster.rank, tuple(task.address for task in cluster.tasks), versions, devices)
    checks.insert(0, Check("TF_CONFIG", OK, f"{cluster.task}, one of {cluster.num_workers} that train"))
    return checks + _check_network(cluster, facts, time.monotonic() + timeout_secs)


def installed_versions() -> dict[str, str]:
    """The versions that must be the same on all tasks."""
    try:
        own = importlib.metadata.version("lockstep-tf")
    except importlib.metadata.PackageNotFoundError:
        own = "not installed"
    return {"python": platform.python_version(), "tensorflow": tf.__version__, "keras": keras.__version__,
            "numpy": np.__version__, "lockstep": own}


def _check_network(cluster: Cluster, facts: Facts, deadline: float) -> list[Check]:
    try:
        server = FactServer(cluster, facts)
    except OSError as error:
        failed = Check("own port", FAILED, f"cannot listen on port {cluster.task.port}: "
                       f"{os.strerror(error.errno or 0)}. Stop what uses it, or give this task another address.")
        answers = ask_peers(cluster, facts, deadline)
        return [failed, *_check_peers(cluster, facts, answers, set())]
    with server:
        answers = ask_peers(cluster, facts, deadline)
        doctors = {rank for rank, answer in answers.items() if answer.facts is not None}
        silent = server.wait_until_asked_by(doctors, deadline)
    return [Check("own port", OK, f"can listen on port {cluster.task.port}"),
            *_check_peers(cluster, facts, answers, silent)]


def _check_peers(cluster: Cluster, facts: Facts, answers: Mapping[int, Answer], silent: set[int]) -> list[Check]:
    """A check for each peer, and one for all their versions."""
    if not answers:
        return []
    checks = [_check_peer(cluster.tasks[rank], rank, facts, answer, rank in silent) for rank, answer in answers.items()]
    differ = [
        f"{cluster.tasks[rank]} has {name} {answer.facts.versions.get(name, 'unknown')}, this task {version}"
        for rank, answer in answers.items() if answer.facts is not None
        for name, version in facts.versions.items() if answer.facts.versions.get(name) != version
    ]
    unknown = [str(cluster.tasks[rank]) for rank, answer in answers.items() if answer.facts is None]
    if differ:
        return [*checks, Check("versions on all", FAILED, "; ".join(differ) + ". Install the same everywhere.")]
    if unknown:
        return [*checks, Check("versions on all", UNKNOWN, f"no doctor answered on {', '.join(unknown)}")]
    return [*checks, Check("versions on all", OK, f"the same on {cluster.num_workers} tasks")]


def _check_peer(task: Task, rank: int, facts: Facts, answer: Answer, is_silent: bool) -> Check:
    if not answer.reached:
        return Check(str(task), FAILED, answer.problem)
    if answer.facts is None:
        return Check(str(task), OK, "something listens there that is no doctor (a job that runs already?)")
    if answer.facts.addresses != facts.addresses:
        return Check(str(task), FAILED, f"its TF_CONFIG lists {', '.join(answer.facts.addresses)}, that of this task "
                     f"{', '.join(facts.addresses)}. Give every task the same cluster.")
    if answer.facts.rank != rank:
        return Check(str(task), FAILED, "the task that listens there has another task.index in its TF_CONFIG. Give "
                     "every task the index of its own address.")
    if is_silent:
        return Check(str(task), FAILED, "reached, and did not reach this task in time (a firewall?)")
    return Check(str(task), OK, f"reached, and reached this task; {_devices(answer.facts.devices)}")


def _devices(devices: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in devices.items())


def _show(checks: Sequence[Check]) -> None:
    table = rich.table.Table("check", "result", "detail")
    for check in checks:
        table.add_row(rich.text.Text(check.name), rich.text.Text(check.result, STYLES[check.result]),
                      rich.text.Text(check.detail, overflow="fold"))
    console = rich.console.Console(file=sys.stdout)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
