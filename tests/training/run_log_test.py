"""The log of a run: what is written is read back, and a line that is none is named by its number."""

import math

import pytest

from lockstep.training.run_log import LogLine, RunLog, read_log

LINE = '{"call": "train", "step": 1, "rows": 2, "outputs": {"loss": 0.5}, "seconds": 1.5}'


def test_what_is_written_is_read_back(tmp_path):
    path = str(tmp_path / "log.jsonl")
    log = RunLog(path)
    log.write("train", 3, 96, {"loss": 0.1, "norm": math.inf})
    log.write("evaluate", 3, 10, {})
    first, second = read_log(path)
    assert first == LogLine("train", 3, 96, {"loss": 0.1, "norm": math.inf}, first.seconds)
    assert second == LogLine("evaluate", 3, 10, {}, second.seconds)
    assert 0 <= first.seconds <= second.seconds


def test_tokens_that_are_not_finite_are_numbers(tmp_path):
    (tmp_path / "log").write_text(LINE.replace("0.5", "NaN") + "\n" + LINE.replace("0.5", "-Infinity") + "\n")
    first, second = read_log(str(tmp_path / "log"))
    assert math.isnan(first.outputs["loss"]) and second.outputs["loss"] == -math.inf


@pytest.mark.parametrize("broken", [
    "", "{", "[]", "3", "null", '{"call": "train"}', LINE[:39], LINE.replace("train", "predict"),
    LINE.replace(": 1,", ": 1.5,"), LINE.replace(": 1,", ": true,"), LINE.replace(": 2,", ": -2,"),
    LINE.replace("0.5", "null"), LINE.replace("0.5", '"low"'), LINE.replace("1.5", "NaN"), LINE.replace("1.5", '"now"'),
    LINE.replace('{"loss": 0.5}', "[0.5]")])
def test_a_broken_line_is_named_by_its_number(tmp_path, broken):
    path = tmp_path / "log.jsonl"
    path.write_text(f"{LINE}\n{broken}\n{LINE}\n")
    with pytest.raises(ValueError) as caught:
        read_log(str(path))
    assert str(caught.value) == (
        f"{path}: line 2 is {broken[:60]!r}. Expected a line that a Trainer has written. Remove it, or go on with the "
        "run, which cuts its log where it goes on.")


def test_bytes_that_are_no_text_are_a_broken_line(tmp_path):
    (tmp_path / "log").write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(ValueError, match="line 1 is "):
        read_log(str(tmp_path / "log"))
