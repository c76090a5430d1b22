"""`lockstep plot`: the figure that it writes, and one line for what it cannot read, draw or write."""

import importlib
import json
import math
import re
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from lockstep.training import Trainer, plot
from testing.replicas import mirrored


def line(call, step, outputs, seconds=None):
    return json.dumps({"call": call, "step": step, "rows": 8, "outputs": outputs,
                       "seconds": step / 4 if seconds is None else seconds}) + "\n"


@pytest.fixture(name="run")
def fixture_run(tmp_path):
    """The folder of a run with one output, trained and evaluated."""
    folder = tmp_path / "digits"
    folder.mkdir()
    lines = [line("train", step, {"loss": 1 / step}) for step in range(1, 9)] + [line("evaluate", 8, {"loss": 0.1})]
    (folder / "log.jsonl").write_text("".join(lines))
    return folder


def written(capsys, *argv):
    """Draws, and returns the name of the file that it says it wrote."""
    code = plot.main([str(argument) for argument in argv])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    return re.fullmatch(r"wrote (.*)\n", out).group(1)


def texts(path):
    return re.findall(r"<text[^>]*>([^<]*)</text>", Path(path).read_text(encoding="utf-8"))


def shade(color):
    return [int(color[start:start + 2], 16) / 255 for start in (1, 3, 5)]


def count_of(color, image):
    return int(np.isclose(image[:, :, :3], shade(color), atol=1 / 255).all(axis=-1).sum())


def test_a_run_is_drawn_beside_its_log_with_a_panel_for_each_output_and_one_for_the_throughput(capsys, run):
    name = written(capsys, run)
    assert name == str(run / "log.png")
    image = matplotlib.image.imread(name)
    assert image.shape[:2] == (384, 2 * 576)
    left, right = image[:, :576], image[:, 576:]
    assert count_of(plot.TRAIN, left) > 100 and count_of(plot.TRAIN, right) > 100
    assert count_of(plot.EVALUATE, left) > 10 and count_of(plot.EVALUATE, right) == 0


def test_the_log_itself_can_be_named(capsys, run):
    assert written(capsys, run / "log.jsonl") == str(run / "log.png")


def test_an_svg_holds_the_labels_as_text(capsys, run, tmp_path):
    found = texts(written(capsys, run, f"--output={tmp_path / 'figure.SVG'}"))
    assert {"digits", "loss", "rows per second", "step", "train", "evaluate"} <= set(found)
    assert found.count("step") == 2


@pytest.mark.parametrize("kept", ["train", "evaluate"])
def test_a_legend_stands_only_where_there_are_both(capsys, run, kept):
    log = run / "log.jsonl"
    log.write_text("".join(text for text in log.read_text().splitlines(True) if f'"{kept}"' in text))
    assert {"train", "evaluate"}.isdisjoint(texts(written(capsys, run, f"--output={run / 'x.svg'}")))


def test_names_are_drawn_as_they_are_written(capsys, run):
    (run / "log.jsonl").write_text(line("train", 1, {"cost$_x^{": 1.0, "$a$": 1.0}))
    assert {"cost$_x^{", "$a$"} <= set(texts(written(capsys, run, f"--output={run / 'x.svg'}")))


def test_what_is_not_finite_is_a_gap_and_what_stands_between_gaps_a_point(capsys, run):
    values = [1.0, math.nan, 2.0, math.inf, 3.0]
    (run / "log.jsonl").write_text("".join(line("train", step, {"loss": value}, 1.0)
                                           for step, value in enumerate(values, start=1)))
    drawn = Path(written(capsys, run, f"--output={run / 'x.svg'}")).read_text(encoding="utf-8")
    assert len(re.findall(rf'<use [^>]*style="fill: {plot.TRAIN}', drawn)) == 3
    assert "nothing to draw" in drawn  # All at one instant: no throughput.


@pytest.mark.parametrize("num_panels, expected", [
    (1, (1, 1)), (2, (1, 2)), (3, (1, 3)), (4, (2, 2)), (5, (2, 3)), (7, (3, 3)), (10, (4, 3))])
def test_the_grid_has_room_for_all_panels(num_panels, expected):
    assert plot.grid(num_panels) == expected


def test_the_log_of_a_trainer_can_be_drawn(capsys, tmp_path):
    trainer = Trainer(mirrored(2), lambda x: {"x": tf.cast(x, tf.float32)}, tf.data.Dataset.range(8).batch(2),
                      progress="none", model_dir=tmp_path, state={"variable": tf.Variable(1.0)})
    trainer.train(epochs=1)
    trainer.evaluate(lambda x: {"x": tf.cast(x, tf.float32)}, tf.data.Dataset.range(3).batch(2))
    assert {"x", "train", "evaluate"} <= set(texts(written(capsys, tmp_path, f"--output={tmp_path / 'x.svg'}")))


def failure(capsys, *argv):
    code = plot.main([str(argument) for argument in argv])
    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    assert err.startswith("lockstep plot: ") and err.count("\n") == 1
    return err.removeprefix("lockstep plot: ").rstrip()


def test_a_log_that_cannot_be_read_is_told_in_one_line(capsys, tmp_path):
    rest = "Expected the `model_dir` of a Trainer, or the log.jsonl in it. Give the folder that the program trains in."
    missing, log = tmp_path / "missing", tmp_path / "log.jsonl"
    assert failure(capsys, missing) == f"cannot read {missing}: No such file or directory. {rest}"
    assert failure(capsys, tmp_path) == f"cannot read {log}: No such file or directory. {rest}"
    log.touch()
    assert failure(capsys, tmp_path) == (
        f"{log} is empty. Expected a line for each loop of steps. Wait for the first one.")
    log.write_text(line("train", 1, {}) + "{\n")
    assert failure(capsys, tmp_path).startswith(f"{log}: line 2 is '{{'. Expected ")


def test_a_figure_that_cannot_be_written_is_told_in_one_line(capsys, run):
    path = run / "missing" / "x.png"
    assert failure(capsys, run, f"--output={path}") == (
        f"cannot write {path}: No such file or directory. Give another file: --output=FILE.")


def test_without_matplotlib_one_line_says_what_to_install(capsys, monkeypatch, run):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    importlib.reload(plot)  # Which does not need it either.
    assert re.fullmatch(r"cannot import matplotlib \(.*\)\. Install it: pip install 'lockstep-tf\[plot\]'\.",
                        failure(capsys, run))


@pytest.mark.parametrize("argv, problem", [
    ([], "the following arguments are required: RUN"),
    (["run", "--output=x.pdf"], "argument --output: is 'x.pdf'. Expected a name that ends in .png or .svg"),
    (["run", "more"], "unrecognized arguments: more")])
def test_arguments_that_make_no_sense_are_refused_in_one_line(capsys, argv, problem):
    with pytest.raises(SystemExit) as caught:
        plot.main(argv)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"lockstep plot: {problem}. See `lockstep plot --help`.\n"
