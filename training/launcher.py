"""`lockstep launch`: starts the workers of a job on this machine, watches them, and starts them again when they fail.

    lockstep launch --workers=2 train.py --epochs=5

Nothing here imports TensorFlow. The parts: `launch_options.py` reads the command line, `worker_environment.py` says
what each worker finds in its environment, `worker_process.py` is one worker and `worker_output.py` what it writes,
`job.py` is one attempt, `first_failure.py` finds the cause, `orphan_guard.py` ends the workers of a dead launcher.
"""

import contextlib
import dataclasses
import os
import signal
from collections.abc import Iterator, Sequence

from . import isolation
from .first_failure import cause_text, consequences_text, exit_code, first_failure
from .free_ports import free_ports
from .job import Job
from .launch_options import LaunchOptions, parse_options
from .stop_signals import StopSignals
from .worker_environment import share_gpus, visible_gpus
from .worker_output import Console


def main(argv: Sequence[str]) -> int:
    """Runs `lockstep launch`.

    Args:
      argv: The arguments after `launch`.

    Returns:
      The exit code, see `lockstep launch --help`.
    """
    options = parse_options(argv)
    if options.is_isolated and not isolation.is_inside():
        isolation.enter()
    console = Console()
    try:
        with StopSignals() as signals:
            return _launch(options, console, signals)
    except OSError as error:
        console.say(f"cannot start the workers: {error}.")
        return 1


def _launch(options: LaunchOptions, console: Console, signals: StopSignals) -> int:
    gpus, note = share_gpus(visible_gpus(os.environ), options.num_workers)
    if note:
        console.say(note)
    if options.meeting is not None:
        nodes = options.meeting.meet(console.say, signals)
        if not nodes:
            return 128 + signals.received[0]
        options = dataclasses.replace(options, nodes=nodes)
    for restart_count in range(options.max_restarts + 1):
        if restart_count:
            console.say(f"restart {restart_count} of {options.max_restarts}.")
        with _addresses(options) as addresses:
            job = Job(options, addresses, gpus, restart_count, console, signals)
            job.run()
        code = _tell(job, console)
        if signals.received or console.is_broken:
            stopped_by = signals.received[0] if signals.received else signal.SIGPIPE
            return code or 128 + stopped_by
        if not code:
            break
    return code


@contextlib.contextmanager
def _addresses(options: LaunchOptions) -> Iterator[list[str]]:
    """The addresses of the job's workers: free ports of this machine, or what `--nodes` says."""
    if options.nodes:
        yield options.node_addresses()
        return
    with free_ports(options.num_workers) as ports:
        yield [f"127.0.0.1:{port}" for port in ports]


def _tell(job: Job, console: Console) -> int:
    """Says how a job failed, the cause last; returns its exit code, 0 where it did not fail."""
    if not job.failed:
        return 0
    cause = first_failure(job.failed)
    others = consequences_text(cause, [*job.failed, *job.stopped])
    if others:
        console.say(others)
    console.say(cause_text(cause))
    return exit_code(cause)
