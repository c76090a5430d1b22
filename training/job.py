"""One attempt of a launched job: its workers from their start until the last one has ended.

    job = Job(options, addresses, gpus, restart_count=0, console=console, signals=signals)
    job.run()
    job.failed      # the workers that failed by themselves, the earliest first
"""

import os
import selectors
import signal
import time
from collections.abc import Sequence

from .launch_options import LaunchOptions
from .orphan_guard import OrphanGuard
from .stop_signals import StopSignals
from .worker_environment import share_cores, worker_environment
from .worker_output import Console, LogFile
from .worker_process import Stream, WorkerProcess


class Job:
    """The workers of this machine.

    Attributes:
      failed: Those that ended with an error before any was stopped, the earliest first.
      stopped: Those that the launcher had to stop.
    """

    def __init__(
        self,
        options: LaunchOptions,
        addresses: Sequence[str],
        gpus: Sequence[str | None],
        restart_count: int,
        console: Console,
        signals: StopSignals,
    ) -> None:
        """Prepares a job.

        Args:
          options: What to run.
          addresses: Where all workers of the job listen, other machines' too.
          gpus: CUDA_VISIBLE_DEVICES of each worker of this machine.
          restart_count: How often the job was started before.
          console: Where the workers' lines go.
          signals: The signals that the launcher gets.
        """
        self.failed: list[WorkerProcess] = []
        self.stopped: list[WorkerProcess] = []
        self._options = options
        self._addresses = addresses
        self._gpus = gpus
        self._restart_count = restart_count
        self._console = console
        self._signals = signals
        self._num_signals = 0
        self._running: list[WorkerProcess] = []
        # Once the job is ending: what the workers that still run are sent next, and when.
        self._is_ending = False
        self._next: list[signal.Signals] = []
        self._deadline: float | None = None

    def run(self) -> None:
        """Starts the workers and returns when all have ended; none is left, also after an error here.

        Raises:
          OSError: A worker could not be started.
        """
        self._selector = selectors.DefaultSelector()
        guard = OrphanGuard()
        try:
            self._selector.register(self._signals, selectors.EVENT_READ)
            self._start(guard)
            while self._running:
                self._wait()
                self._notice_signals()
                self._notice_ends()
                self._send_what_is_due()
        finally:
            for worker in self._running:
                worker.kill()
            guard.close()
            self._selector.close()

    def _start(self, guard: OrphanGuard) -> None:
        cores = share_cores(self._options.num_workers)
        for rank, gpus in zip(self._options.ranks, self._gpus):
            environ = worker_environment(self._addresses, rank, cores, gpus, self._restart_count, os.environ)
            log = None if self._options.log_dir is None else LogFile(self._options.log_path(rank), self._console)
            worker = WorkerProcess(rank, self._options.program, environ, guard, self._console, log)
            self._running.append(worker)
            for stream in worker.streams:
                self._selector.register(stream, selectors.EVENT_READ)

    def _wait(self) -> None:
        """Waits until something has happened, and passes on what the workers wrote."""
        seconds = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        for key, _ in self._selector.select(seconds):
            if isinstance(key.fileobj, Stream):
                key.fileobj.read()
                if key.fileobj.at_end:
                    self._selector.unregister(key.fileobj)
            else:
                self._signals.drain()

    def _notice_signals(self) -> None:
        """Passes on the signals that came. That nobody reads the output any more is one too."""
        came = self._signals.received + ([signal.SIGPIPE] if self._console.is_broken else [])
        for signum in came[self._num_signals:]:
            if not self._num_signals:
                self._give_grace(signal.SIGKILL)
            self._num_signals += 1
            if came[:self._num_signals].count(signal.SIGINT) > 1:
                self._deadline = time.monotonic()
            self._send(signal.SIGTERM if signum == signal.SIGPIPE else signum)
            self._console.say(f"{signum.name}: waits {self._options.grace_secs:g} s for {self._names()} to end.")

    def _notice_ends(self) -> None:
        """Takes the workers that have ended off the list; the first failure gives the others time to notice it."""
        for worker in list(self._running):
            if not worker.has_ended():
                continue
            self._running.remove(worker)
            for stream in worker.streams:
                if not stream.at_end:
                    self._selector.unregister(stream)
            worker.close()
            if worker.is_stopped:
                self.stopped.append(worker)
            elif worker.returncode:
                self.failed.append(worker)
        if self.failed and self._running and not self._is_ending:
            self._give_grace(signal.SIGTERM, signal.SIGKILL)
            self._console.say(f"worker {self.failed[0].rank} failed. Waits {self._options.grace_secs:g} s for "
                              f"{self._names()} to notice it.")

    def _send_what_is_due(self) -> None:
        """Ends the workers that took too long."""
        while self._running and self._next and self._deadline is not None and time.monotonic() >= self._deadline:
            signum, *self._next = self._next
            self._console.say(f"{signum.name} to {self._names()}: still running.")
            self._send(signum)
            self._deadline = time.monotonic() + self._options.grace_secs if self._next else None

    def _give_grace(self, *then: signal.Signals) -> None:
        self._is_ending = True
        self._next = list(then)
        self._deadline = time.monotonic() + self._options.grace_secs

    def _send(self, signum: signal.Signals) -> None:
        for worker in self._running:
            worker.send(signum)

    def _names(self) -> str:
        """The running workers, as a list for people."""
        *ranks, last = [str(worker.rank) for worker in self._running]
        return f"workers {', '.join(ranks)} and {last}" if ranks else f"worker {last}"
