"""Tests of `lockstep.training.progress`: what each display shows, with a clock set by hand."""

import io

import pytest

from lockstep.training.progress import BarProgress, LineProgress, Progress, make_progress


class Clock:
    """Tells the time that the test sets."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(progress, clock, loops, total_steps=None):
    """Runs loops of one step of 4 rows, each ending at a given time."""
    progress.start("train", total_steps)
    for now in loops:
        clock.now = now
        progress.update(1, 4, {"loss": now})
    progress.stop()


def lines(loops, **options):
    stream, clock = io.StringIO(), Clock()
    run(LineProgress(stream, clock=clock, **options), clock, loops, len(loops))
    return stream.getvalue().splitlines()


def test_lines_come_first_then_every_some_seconds_then_last():
    assert lines([0.0, 1.0, 2.0, 5.0, 6.0, 7.0], every_secs=5.0) == [
        "train: step 1/6, loss 0.0000",
        "train: step 4/6, loss 5.0000, 2 examples/s, 0:04 left",
        "train: step 6/6, loss 7.0000, 3 examples/s",
    ]


def test_the_last_step_is_not_shown_twice():
    assert len(lines([0.0, 10.0], every_secs=5.0)) == 2


def test_no_interval_shows_every_loop():
    assert len(lines([0.0, 0.0, 0.0], every_secs=0.0)) == 3


def test_a_run_without_steps_shows_nothing():
    assert lines([]) == []


def test_a_display_is_used_again():
    stream, clock = io.StringIO(), Clock()
    progress = LineProgress(stream, clock=clock)
    for _ in range(2):
        run(progress, clock, [clock.now])
    assert stream.getvalue() == "train: step 1, loss 0.0000\n" * 2


def test_lines_go_to_the_standard_output_of_the_moment(capsys):
    clock = Clock()
    run(LineProgress(clock=clock), clock, [1.0])
    assert capsys.readouterr().out == "train: step 1, loss 1.0000\n"


def test_a_bar_is_drawn_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    terminal, clock = Terminal(), Clock()
    run(BarProgress(terminal, clock=clock), clock, [0.0, 1.0, 2.0], total_steps=3)
    assert "train" in terminal.getvalue()
    assert "━" in terminal.getvalue()
    assert "3/3, loss 2.0000, 4 examples/s" in terminal.getvalue()
    assert "\x1b[" in terminal.getvalue()


def test_a_bar_without_a_total_moves(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    terminal, clock = Terminal(), Clock()
    run(BarProgress(terminal, clock=clock), clock, [0.0])
    assert "1, loss 0.0000" in terminal.getvalue()


def test_stopping_a_bar_twice_does_nothing():
    progress = BarProgress(io.StringIO())
    progress.start("train", 1)
    progress.stop()
    progress.stop()


def test_the_base_shows_nothing(capsys):
    clock = Clock()
    run(Progress(), clock, [1.0])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind, kind_of", [("none", Progress), ("lines", LineProgress), ("bar", BarProgress)])
def test_kinds_by_name(kind, kind_of):
    assert type(make_progress(kind)) is kind_of


@pytest.mark.parametrize("stream, kind", [(Terminal, BarProgress), (io.StringIO, LineProgress)])
def test_auto_looks_at_standard_output(monkeypatch, stream, kind):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", stream())
    assert type(make_progress("auto")) is kind


def test_auto_writes_lines_on_a_dumb_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout", Terminal())
    assert type(make_progress("auto")) is LineProgress


def test_a_display_of_ones_own_is_taken():
    progress = Progress()
    assert make_progress(progress) is progress


@pytest.mark.parametrize("kind", ["loud", None, 3, True])
def test_other_kinds_are_refused(kind):
    with pytest.raises(ValueError, match=f"`progress`: is {kind!r}. Expected one of 'auto'"):
        make_progress(kind)
