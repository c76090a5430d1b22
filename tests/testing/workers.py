"""Real worker processes for tests: a program on free ports, with a deadline, and none left behind.

    jobs = run_workers("training", num_workers=2, replicas=2)
    assert [job.code for job in jobs] == [0, 0]
    jobs[0].results["weights"]

A program, `tests/programs/<name>.py`, says what it has found with `report(name, value)`; values travel as JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Iterator, Sequence

from lockstep.training.free_ports import free_ports

PROGRAMS = pathlib.Path(__file__).parent.parent / "programs"
_MARK = "RESULT "


@dataclasses.dataclass
class Worker:
    """A worker that has ended.

    Attributes:
        code: Its exit code, negative for a signal.
        output: What it wrote, to both streams.
        seconds: When it ended, after the start of all.
        results: What it reported, by name.
    """

    code: int
    output: str
    seconds: float
    results: dict[str, Any]


def report(name: str, value: Any) -> None:
    """Called by a program: says what it has found."""
    print(f"{_MARK}{json.dumps([name, value])}", flush=True)


def free_addresses(count: int) -> list[str]:
    """Addresses of this machine on which nobody listens, for a test that listens on them at once."""
    with free_ports(count) as ports:
        return [f"127.0.0.1:{port}" for port in ports]


def run_workers(program: str, num_workers: int, replicas: int = 1, args: Sequence[str] = (),
                started: Sequence[int] | None = None, deadline: float = 120.0,
                abandoned: Sequence[int] = ()) -> list[Worker]:
    """Runs a program as the workers of a cluster, and waits for all.

    Args:
        program: The name of the program.
        num_workers: How many workers the cluster has.
        replicas: How many logical CPUs each worker has.
        args: The program's arguments.
        started: The ranks that are started, all if None.
        deadline: Seconds after which those that still run are killed.
        abandoned: Positions of those that are killed as soon as all others have ended.
    """
    with contextlib.ExitStack() as stack:
        addresses = [f"127.0.0.1:{port}" for port in stack.enter_context(free_ports(num_workers))]
        runs = []
        for rank in range(num_workers) if started is None else started:
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
            runs.append(stack.enter_context(_process(program, args, config, replicas)))
        return _wait(runs, deadline, abandoned)


@contextlib.contextmanager
def _process(program: str, args: Sequence[str], config: dict[str, Any], replicas: int
             ) -> Iterator[tuple[subprocess.Popen[bytes], Any]]:
    environment = {**os.environ, "TF_CONFIG": json.dumps(config), "LOCKSTEP_TEST_REPLICAS": str(replicas),
                   "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", "PYTHONUNBUFFERED": "1",
                   "PYTHONPATH": os.pathsep.join([str(PROGRAMS.parent), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([sys.executable, str(PROGRAMS / f"{program}.py"), *args], env=environment,
                                   stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield process, output
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(runs: Sequence[tuple[subprocess.Popen[bytes], Any]], deadline: float, abandoned: Sequence[int]
          ) -> list[Worker]:
    start = time.monotonic()
    ended: dict[int, float] = {}
    for index in sorted(range(len(runs)), key=lambda index: index in abandoned):
        process, _ = runs[index]
        try:
            process.wait(0.1 if index in abandoned else max(deadline - (time.monotonic() - start), 0.1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        ended[index] = time.monotonic() - start
    workers = []
    for index, (process, output) in enumerate(runs):
        output.seek(0)
        text = output.read().decode(errors="replace")
        results = dict(json.loads(line[len(_MARK):]) for line in text.splitlines() if line.startswith(_MARK))
        workers.append(Worker(process.returncode, text, ended[index], results))
    return workers
