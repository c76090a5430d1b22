"""What a run shows of itself: a live bar on a terminal, plain lines elsewhere, or nothing.

The driver (`trainer.py`) calls `start`, then `update` after every loop, then `stop`, always in this
order. A display of one's own is a subclass of `Progress`.

    progress = make_progress("auto")
    progress.start("train", total_steps=300)
    progress.update(num_steps=10, num_rows=1280, values={"loss": 0.25})
    progress.stop()
"""

import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

import rich.console
import rich.progress
import rich.table

from .pace import Pace, status_line

KINDS = ("auto", "bar", "lines", "none")


class Progress:
    """Shows nothing, and says what a display is told: the base of all displays.

    >>> class Losses(lockstep.training.Progress):
    ...     def update(self, num_steps, num_rows, values):
    ...         print(num_steps, "steps with a loss of", values["loss"])
    >>> Losses().update(num_steps=10, num_rows=1280, values={"loss": 0.25})
    10 steps with a loss of 0.25
    """

    def start(self, title: str, total_steps: int | None) -> None:
        """A run starts.

        Args:
          title: What runs, "train" or "evaluate".
          total_steps: How many steps it will take, None where that is unknown.
        """

    def update(self, num_steps: int, num_rows: int, values: Mapping[str, float]) -> None:
        """A loop of steps ended.

        Args:
          num_steps: How many steps it ran.
          num_rows: How many rows these saw in all replicas.
          values: What the steps returned, averaged over this loop.
        """

    def stop(self) -> None:
        """The run ended, at its last step or with an error."""


class LineProgress(Progress):
    """Writes plain lines: after the first loop, then one in so many seconds, and after the last.

    >>> progress = lockstep.training.LineProgress(every_secs=60)
    >>> progress.start("train", total_steps=300)
    >>> progress.update(num_steps=10, num_rows=1280, values={"loss": 0.25})
    train: step 10/300, loss 0.2500
    >>> progress.stop()
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        every_secs: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares the display.

        Args:
          stream: Where the lines go; by default to the standard output of the moment.
          every_secs: How many seconds lie between two lines; 0 writes a line for every loop.
          clock: Tells the time in seconds.
        """
        self._stream = stream
        self._every_secs = every_secs
        self._clock = clock
        self._title = ""
        self._pace = Pace(None)
        self._values: Mapping[str, float] = {}
        self._shown_at: float | None = None
        self._shown_steps = 0

    def start(self, title: str, total_steps: int | None) -> None:
        self._title = title
        self._pace = Pace(total_steps)
        self._shown_at = None
        self._shown_steps = 0

    def update(self, num_steps: int, num_rows: int, values: Mapping[str, float]) -> None:
        now = self._clock()
        self._pace.update(now, num_steps, num_rows)
        self._values = values
        if self._shown_at is None or now - self._shown_at >= self._every_secs:
            self._show(now)

    def stop(self) -> None:
        if self._pace.num_steps > self._shown_steps:
            self._show(self._clock())

    def _show(self, now: float) -> None:
        stream = self._stream or sys.stdout
        stream.write(f"{self._title}: {status_line(self._pace, self._values)}\n")
        stream.flush()
        self._shown_at = now
        self._shown_steps = self._pace.num_steps


class BarProgress(Progress):
    """Draws one live bar on a terminal, and leaves it there at the end.

    A stream that is no terminal gets the last state of the bar only.

    >>> import io
    >>> terminal = io.StringIO()
    >>> progress = lockstep.training.BarProgress(terminal)
    >>> progress.start("train", total_steps=10)
    >>> progress.update(num_steps=10, num_rows=1280, values={"loss": 0.25})
    >>> progress.stop()
    >>> "10/10, loss 0.2500" in terminal.getvalue()
    True
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepares the display.

        Args:
          stream: The terminal; by default the standard output of the moment.
          clock: Tells the time in seconds.
        """
        self._stream = stream
        self._clock = clock
        self._pace = Pace(None)
        self._live: rich.progress.Progress | None = None

    def start(self, title: str, total_steps: int | None) -> None:
        self._pace = Pace(total_steps)
        self._live = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}", style="bold"),
            # Stretches over what the text leaves of the line; a long text wraps on a narrow terminal.
            rich.progress.BarColumn(bar_width=None, table_column=rich.table.Column(min_width=4, ratio=1)),
            rich.progress.TextColumn("{task.fields[status]}", table_column=rich.table.Column()),
            console=_console(self._stream),
            refresh_per_second=4,
            expand=True,
            get_time=self._clock,
        )
        self._live.add_task(title, total=total_steps, status="first step")
        self._live.start()

    def update(self, num_steps: int, num_rows: int, values: Mapping[str, float]) -> None:
        self._pace.update(self._clock(), num_steps, num_rows)
        if self._live is not None:
            (task,) = self._live.task_ids
            self._live.update(task, completed=self._pace.num_steps, status=self._status(values))

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _status(self, values: Mapping[str, float]) -> str:
        """The line without its first word, for which 80 columns have no room beside a bar."""
        return status_line(self._pace, values).removeprefix("step ")


def make_progress(kind: str | Progress) -> Progress:
    """The display of a kind, or the display itself where it is given.

    Args:
      kind: "bar", "lines", "none", "auto" (a bar where standard output is a terminal, else
        lines), or a `Progress`.

    Raises:
      ValueError: `kind` is another string or object.
    """
    if isinstance(kind, Progress):
        return kind
    if kind not in KINDS:
        raise ValueError(
            f"`progress`: is {kind!r}. Expected one of {', '.join(map(repr, KINDS))}, or a `Progress`. "
            "`progress=\"none\"` shows nothing."
        )
    if kind == "none":
        return Progress()
    if kind == "bar" or (kind == "auto" and _is_terminal()):
        return BarProgress()
    return LineProgress()


def _console(stream: TextIO | None = None) -> rich.console.Console:
    return rich.console.Console(file=stream or sys.stdout)


def _is_terminal() -> bool:
    console = _console()
    return console.is_terminal and not console.is_dumb_terminal
