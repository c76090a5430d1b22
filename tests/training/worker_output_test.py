"""Tests of `lockstep.training.worker_output`: lines, progress bars, log files and broken outputs."""

import os
import threading

import pytest

from lockstep.training import worker_output
from lockstep.training.worker_output import Console, LogFile, WorkerOutput


class Clock:
    """Tells the time that the test sets."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Shown:
    """An output whose lines the test reads."""

    def __init__(self, log=None):
        self.clock = Clock()
        self._written = []
        self.output = WorkerOutput(b"> ", self._written.append, log, self.clock)

    @property
    def lines(self):
        lines = b"".join(self._written).decode(errors="replace").splitlines()
        assert all(line.startswith("> ") for line in lines)
        return [line[2:] for line in lines]


def shown(*chunks):
    output = Shown()
    for chunk in chunks:
        output.output.feed(chunk)
    output.output.close()
    return output.lines


@pytest.mark.parametrize("chunks, lines", [
    ([], []),
    ([b""], []),
    ([b"a\n"], ["a"]),
    ([b"a\nb\n\nc\n"], ["a", "b", "", "c"]),
    ([b"a", b"b", b"\n", b"c"], ["ab", "c"]),
    ([b"a\r\nb\r", b"\nc\r\n"], ["a", "b", "c"]),
    (["é".encode()[:1], "é\n".encode()[1:]], ["é"]),
    ([b"\xff\n"], ["\N{REPLACEMENT CHARACTER}"]),
])
def test_output_is_shown_in_whole_lines(chunks, lines):
    assert shown(*chunks) == lines


def test_a_line_without_end_is_shown_in_pieces(monkeypatch):
    monkeypatch.setattr(worker_output, "MAX_LINE_BYTES", 4)
    assert shown(b"abcd", b"e", b"f\n") == ["abcde", "f"]


@pytest.mark.parametrize("chunks, lines", [
    ([b"\r10%\r50%\r90%\rdone\n"], ["10%", "done"]),
    ([b"10%\r", b"50%\r", b"90%\r", b"100%\r", b"\n"], ["10%", "100%"]),
    ([b"10%\r\nnext\n"], ["10%", "next"]),
    ([b"10%\r", b"50%\r"], ["10%", "50%"]),
    ([b"10%\r", b"\n", b"\n"], ["10%", ""]),
    ([b"10%\r50%\r\n20%\n"], ["10%", "50%", "20%"]),
    ([b"\r"], []),
    ([b"1/2 loss" + b"\b" * 8 + b"\r2/2 loss" + b"\b" * 8 + b"\r2/2 loss 0.5\n"], ["1/2 loss", "2/2 loss 0.5"]),
])
def test_a_progress_bar_shows_its_first_and_its_last_state(chunks, lines):
    assert shown(*chunks) == lines


def test_a_progress_bar_shows_its_newest_state_once_a_second():
    output = Shown()
    for now, chunk in [(0, b"1%\r2%\r"), (0.5, b"3%\r4%\r"), (1.0, b"5%\r"), (1.9, b"6%\r"), (2.0, b"7%\r8%\r")]:
        output.clock.now = now
        output.output.feed(chunk)
    assert output.lines == ["1%", "4%", "6%"]
    output.output.feed(b"100%\n")
    output.output.close()
    assert output.lines == ["1%", "4%", "6%", "100%"]


def test_the_tail_keeps_the_last_lines(monkeypatch):
    monkeypatch.setattr(worker_output, "TAIL_LINES", 2)
    output = Shown()
    output.output.feed(b"a\nb\n1%\rc\nd")
    assert list(output.output.tail) == ["1%", "c"]
    output.output.close()
    assert list(output.output.tail) == ["c", "d"]


def test_a_log_file_gets_every_byte_and_is_added_to(tmp_path):
    path = tmp_path / "worker_0.log"
    path.write_bytes(b"before\n")
    log = LogFile(str(path), Console())
    output = Shown(log)
    for chunk in (b"a\r\n1%\r", b"2%\r3%\b\n", b"rest"):
        output.output.feed(chunk)
    output.output.close()
    log.close()
    assert path.read_bytes() == b"before\na\r\n1%\r2%\r3%\b\nrest\n"


def test_a_full_disk_ends_the_log_and_is_said_once(capfd):
    log = LogFile("/dev/full", Console())
    output = Shown(log)
    for line in (b"a\n", b"b\n"):
        output.output.feed(line)
    log.close()
    assert output.lines == ["a", "b"]
    assert capfd.readouterr().err == (
        "lockstep launch: /dev/full: No space left on device. Nothing more is written to it.\n")


def test_the_console_writes_to_both_streams(capfd):
    console = Console()
    console.out(b"out\n")
    console.err(b"err\n")
    console.say("said.")
    assert capfd.readouterr() == ("out\n", "err\nlockstep launch: said.\n")
    assert not console.is_broken


def test_a_stream_that_nobody_reads_is_given_up_and_the_other_goes_on():
    console = Console()
    (lost_reader, lost), (reader, kept) = os.pipe(), os.pipe()
    os.close(lost_reader)
    for descriptor in (lost, kept, lost):
        console._write(descriptor, b"text")
    assert console.is_broken
    assert os.read(reader, 100) == b"text"
    for descriptor in (lost, reader, kept):
        os.close(descriptor)


def test_a_stream_that_does_not_block_is_waited_for():
    console = Console()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data = bytes(range(256)) * 4096
    thread = threading.Thread(target=lambda: (console._write(writer, data), os.close(writer)))
    thread.start()
    with open(reader, "rb") as stream:
        assert stream.read() == data
    thread.join()
    assert not console.is_broken
