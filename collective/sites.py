"""Sites: the places of a program where workers exchange tensors, and the keys under which they find each other.

TensorFlow pairs the collectives of a group by a number. Workers are programs of their own: a counter would run apart as
soon as one of them traced a step more than the others. So the number is made of what the exchange is: the function that
holds it, its position in there, the op, the dtype, the static shape, and the names of the tensors. Workers that
disagree on any of these wait under different keys, where the watch finds them (strategy/watch.py) and tells each one's
site.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
from typing import Any

import tensorflow as tf

from .member import Exchange

# Keys below serve one static shape each; those above serve a block of padded sizes.
_FIRST_BLOCK = 1 << 30
_BLOCK = 1 << 9
_NUM_BLOCKS = (1 << 30) // _BLOCK - 1

_NUMBERS = re.compile(r"_\d+\b")
_NOT_THE_USERS = ("/tensorflow/", "/keras/", "/lockstep/")


class Sites:
    """The sites of this process, by key."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._shown: dict[int, str] = {}
        self._lock = threading.Lock()

    def key(self, what: Exchange, place: str, shapes: str, is_block: bool = False) -> int:
        """The key of an exchange, the same on every worker.

        Args:
            what: The exchange.
            place: The function and the position, see `place_of`.
            shapes: The static shapes that every worker must have.
            is_block: Whether the key begins a block of keys, one for each padded size.
        """
        names = ", ".join(_NUMBERS.sub("", name) for name in what.tensors)
        text = f"{place}|{what.kind}|{what.op}|{what.dtype}|{what.algorithm}|{shapes}|{names}|{is_block}"
        with self._lock:
            for attempt in range(1 << 10):
                digest = int.from_bytes(hashlib.sha256(f"{attempt}|{text}".encode()).digest()[:8], "big")
                key = _FIRST_BLOCK + digest % _NUM_BLOCKS * _BLOCK if is_block else 1 + digest % (_FIRST_BLOCK - 1)
                if self._texts.setdefault(key, text) == text:
                    break
            self._shown.setdefault(key, f"{what}{' of shape ' + shapes if shapes else ''} in {place}, "
                                        f"{_users_line()}")
        return key

    def text(self, key: int) -> str:
        """What a user is told of the site with this key."""
        block = _FIRST_BLOCK + (key - _FIRST_BLOCK) // _BLOCK * _BLOCK
        return self._shown.get(key) or self._shown.get(block, f"exchange {key}")


def place_of(graph: Any) -> str:
    """The function that is being traced, and the position of the next exchange in it; "Python" outside of functions."""
    if tf.executing_eagerly():
        return "Python"
    while type(graph).__name__ != "FuncGraph" and getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    number = graph._lockstep_num_exchanges = getattr(graph, "_lockstep_num_exchanges", 0) + 1
    return f"{_NUMBERS.sub('', getattr(graph, 'name', 'graph'))} (exchange {number})"


def _users_line() -> str:
    """File and line of the innermost frame that is the user's."""
    frame: Any = sys._getframe(1)
    generated = None
    while frame is not None:
        name = frame.f_code.co_filename
        if "__autograph_generated_file" in name:
            generated = generated or _origin(frame)
        elif not any(part in name for part in _NOT_THE_USERS) and not _is_ours(frame) and not name.startswith("<"):
            if "/lib/python" not in name:
                return generated or f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return generated or "line unknown"


def _is_ours(frame: Any) -> bool:
    return frame.f_globals.get("__name__", "").split(".")[0] == __name__.split(".")[0]


def _origin(frame: Any) -> str | None:
    """Where a line that autograph has generated comes from."""
    for value in (*frame.f_locals.values(), *frame.f_globals.values()):
        source_map = getattr(value, "ag_source_map", None)
        for location, origin in source_map.items() if isinstance(source_map, dict) else ():
            if location.filename == frame.f_code.co_filename and location.lineno == frame.f_lineno:
                return f"{origin.loc.filename}:{origin.loc.lineno}"
    return None
