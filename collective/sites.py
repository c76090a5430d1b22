"""Sites: the places of a program where workers exchange tensors, and the keys under which they find each other.

TensorFlow pairs the collectives of a group by a number. Workers are programs of their own: a counter would run apart as
soon as one of them traced a step more than the others. So the number is made of what the exchange is: the function that
holds it, its position in there, the op, the dtype and the static shape; in Python, where there is no position, its
name, or the line of the program. Workers that disagree wait under different keys, where the watch finds them
(strategy/watch.py) and tells each one's site. Before it comes to that, they compare what they have traced
(strategy/plan_agreement.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
import re
import threading
from typing import Any, Iterator

import tensorflow as tf

from .member import Exchange
from .user_lines import user_line

# Keys below serve one static shape each; those above serve a block of padded sizes.
_FIRST_BLOCK = 1 << 30
_BLOCK = 1 << 9
_NUM_BLOCKS = (1 << 30) // _BLOCK - 1

# The place of what is exchanged outside of functions.
PYTHON = "Python"

# How labels begin that do not say what is exchanged.
_SAY_NOTHING = ("reduce", "`gather`", "extended.reduce_to")

_NUMBERS = re.compile(r"_\d+\b")


@dataclasses.dataclass(frozen=True)
class Site:
    """An exchange of a traced function.

    Attributes:
        key: Its key.
        names: The names of its tensors, numbering left out: they may differ between workers that agree, since a batch
            of another static shape can make another graph.
        text: What a user is told of it.
    """

    key: int
    names: tuple[str, ...]
    text: str


class _Recording(threading.local):
    sites: list[Site] | None = None


_recording = _Recording()


@contextlib.contextmanager
def recorded() -> Iterator[list[Site]]:
    """The sites in functions that this thread traces meanwhile, in order."""
    before, _recording.sites = _recording.sites, []
    try:
        yield _recording.sites
    finally:
        _recording.sites = before


class Sites:
    """The sites of this process, by key."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._shown: dict[int, str] = {}
        self._lock = threading.Lock()

    def key(self, what: Exchange, place: str, shapes: str, is_block: bool = False, form: str = "") -> int:
        """The key of an exchange, the same on every worker.

        Args:
            what: The exchange.
            place: The function and the position, see `place_of`.
            shapes: The static shapes that every worker must have.
            is_block: Whether the key begins a block of keys, one for each padded size.
            form: What else must be the same, without being told.
        """
        names = tuple(_NUMBERS.sub("", name) for name in what.tensors)
        labels = [name for name in names if place == PYTHON and not name.startswith("shape ")]
        line = user_line()
        if place == PYTHON and all(label.startswith(_SAY_NOTHING) for label in labels):
            labels.append(os.path.basename(line))  # Nothing else tells two of them apart.
        text = f"{place}|{what.kind}|{what.op}|{what.dtype}|{what.algorithm}|{shapes}|{labels}|{is_block}|{form}"
        with self._lock:
            for attempt in itertools.count():
                digest = int.from_bytes(hashlib.sha256(f"{attempt}|{text}".encode()).digest()[:8], "big")
                key = _FIRST_BLOCK + digest % _NUM_BLOCKS * _BLOCK if is_block else 1 + digest % (_FIRST_BLOCK - 1)
                if self._texts.setdefault(key, text) == text:
                    break
            # Python asks each time: then it is this line that waits.
            self._shown[key] = f"{what}{' of shape ' + shapes if shapes else ''} in {place}, {line}"
            if _recording.sites is not None and place != PYTHON:
                _recording.sites.append(Site(key, names, self._shown[key]))
        return key

    def text(self, key: int) -> str:
        """What a user is told of the site with this key."""
        block = _FIRST_BLOCK + (key - _FIRST_BLOCK) // _BLOCK * _BLOCK
        return self._shown.get(key) or self._shown.get(block, f"exchange {key}")


def place_of(graph: Any) -> str:
    """The function that is being traced, and the position of the next exchange in it; "Python" outside of functions."""
    if tf.executing_eagerly():
        return PYTHON
    while type(graph).__name__ != "FuncGraph" and getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    number = graph._lockstep_num_exchanges = getattr(graph, "_lockstep_num_exchanges", 0) + 1
    return f"{_NUMBERS.sub('', getattr(graph, 'name', 'graph'))} (exchange {number})"
