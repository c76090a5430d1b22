"""`lockstep plot`: draws the log of a run.

    lockstep plot run                          # writes run/log.png
    lockstep plot run --output=digits.svg

One panel for each output, and one for the throughput. Needs matplotlib, which `pip install 'lockstep-tf[plot]'` brings.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import textwrap
from typing import TYPE_CHECKING, Sequence

import numpy as np

from .command_line import Parser
from .log_series import Series, output_names, output_series, thinned, throughput_series
from .run_log import LogLine, read_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOG = "log.jsonl"
FORMATS = (".png", ".svg")
# Of a panel, in inches.
WIDTH, HEIGHT = 4.8, 3.2
DOTS_PER_INCH = 120
# Two shades of one colour.
TRAIN, EVALUATE = "#5b9bd5", "#123a66"


def main(argv: Sequence[str]) -> int:
    """Runs `lockstep plot`.

    Args:
      argv: The arguments after `plot`.

    Returns:
      1 where the log cannot be read or drawn, else 0.
    """
    parser = Parser(
        prog="lockstep plot",
        description="Draws the log of a Trainer's run: each output, and the rows per second of the training, over the "
        "steps. Exit code: 1 where the log cannot be read or the figure not be written, else 0.",
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", help=f"the `model_dir` of a Trainer, or the {LOG} in it")
    parser.add_argument(
        "--output", type=_figure_file, metavar="FILE", help="what to write, .png or .svg (log.png beside the log)"
    )
    arguments = parser.parse_args(argv)
    log = os.path.join(arguments.run, LOG) if os.path.isdir(arguments.run) else arguments.run
    output = arguments.output or os.path.splitext(log)[0] + ".png"
    try:
        lines = read_log(log)
    except ValueError as error:
        return _failed(str(error))
    except OSError as error:
        return _failed(f"cannot read {log}: {error.strerror}. Expected the `model_dir` of a Trainer, or the {LOG} in "
                       "it. Give the folder that the program trains in.")
    if not lines:
        return _failed(f"{log} is empty. Expected a line for each loop of steps. Wait for the first one.")
    try:
        draw(lines, os.path.basename(os.path.dirname(os.path.abspath(log))), output)
    except ImportError as error:
        return _failed(f"cannot import matplotlib ({error}). Install it: pip install 'lockstep-tf[plot]'.")
    except OSError as error:
        return _failed(f"cannot write {output}: {error.strerror or error}. Give another file: --output=FILE.")
    sys.stdout.write(f"wrote {output}\n")
    return 0


def draw(lines: Sequence[LogLine], title: str, path: str) -> None:
    """Draws a log.

    Args:
      lines: The log, one line or more.
      title: Stands above.
      path: The file to write, .png or .svg.

    Raises:
      ImportError: There is no matplotlib.
      OSError: The file cannot be written.
    """
    # A figure without pyplot draws with Agg, or the writer of SVG, and never looks for a screen.
    from matplotlib import style
    from matplotlib.figure import Figure

    names, rate = output_names(lines), thinned(throughput_series(lines))
    panels = [(name, thinned(output_series(lines, "train", name)), thinned(output_series(lines, "evaluate", name)))
              for name in names]
    panels.append(("rows per second", rate, output_series([], "evaluate", "")))
    rows, columns = grid(len(panels))
    with style.context(["default", {"svg.fonttype": "none"}]):
        figure = Figure(figsize=(columns * WIDTH, rows * HEIGHT), layout="constrained")
        figure.suptitle(textwrap.fill(title, 50 * columns), parse_math=False)
        axes: Axes | None = None
        for position, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(rows, columns, position, sharex=axes)
            _draw_panel(axes, *panel)
        if axes is not None and np.any(rate.values > 0):
            axes.set_ylim(0, 1.1 * np.nanmax(rate.values))
        figure.savefig(path, dpi=DOTS_PER_INCH, format=path[-3:].lower())


def grid(num_panels: int) -> tuple[int, int]:
    """Rows and columns of the panels: three in a row, two where there are two or four in all."""
    columns = 2 if num_panels == 4 else min(num_panels, 3)
    return math.ceil(num_panels / columns), columns


def _draw_panel(axes: Axes, name: str, trained: Series, evaluated: Series) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    lonely = _lonely(trained.values)
    axes.plot(trained.steps, trained.values, color=TRAIN, label="train")
    axes.plot(trained.steps[lonely], trained.values[lonely], "o", color=TRAIN, markersize=3)
    axes.plot(evaluated.steps, evaluated.values, "o", color=EVALUATE, label="evaluate", markersize=4)
    if len(trained.steps) and len(evaluated.steps):
        axes.legend()
    if not any(np.isfinite(series.values).any() for series in (trained, evaluated)):
        axes.text(0.5, 0.5, "nothing to draw", transform=axes.transAxes, ha="center", va="center", color="gray")
        axes.set_yticks([])
    axes.set_xlabel("step")
    axes.set_ylabel(textwrap.fill(name, 32), parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)


def _lonely(values: np.ndarray) -> np.ndarray:
    """Which values stand between two gaps, so that a line shows nothing of them."""
    is_gap = np.concatenate([[True], np.isnan(values), [True]])
    return ~is_gap[1:-1] & is_gap[:-2] & is_gap[2:]


def _figure_file(text: str) -> str:
    """The type of an argument that is the name of a figure."""
    if not text.lower().endswith(FORMATS):
        raise argparse.ArgumentTypeError(f"is {text!r}. Expected a name that ends in {' or '.join(FORMATS)}")
    return text


def _failed(problem: str) -> int:
    sys.stderr.write(f"lockstep plot: {problem}\n")
    return 1
