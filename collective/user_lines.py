"""Which line is the user's: the innermost that belongs to the program, and not to a library.

    user_line()                      # "/home/me/train.py:17", also in code that autograph has made of it
    is_users("/home/me/train.py")    # True
"""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import Any

import tensorflow as tf

from ._tf import extract_stack

_INSTALLED = "-packages/"
_MADE_BY_AUTOGRAPH = "__autograph_generated_file"
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TENSORFLOW = os.path.dirname(tf.__file__)
_LIBRARIES = tuple(folder + os.sep for folder in (
    *(os.path.join(_OWN, layer) for layer in ("collective", "strategy", "training")),
    _TENSORFLOW, os.path.join(os.path.dirname(_TENSORFLOW), "keras")))
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep


def is_users(path: str) -> bool:
    """Whether a source file belongs to the program: not to Python, nor to an installed package."""
    return _may_be_users(path) and _INSTALLED not in path


def user_line() -> str:
    """File and line of this thread's innermost frame that is the user's, "line unknown" if there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if _MADE_BY_AUTOGRAPH in path:
            return _line_of([(one.filename, one.lineno) for one in reversed(list(extract_stack()))])
        if is_users(path):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return _line_of(_places(sys._getframe(1)))


def users_frame(frame: Any) -> Any:
    """The innermost frame, from `frame` outwards, that is the user's; None if there is none."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _may_be_users(path: str) -> bool:
    """Whether a source file belongs to the program, which may be installed as a package."""
    if path.startswith(("<", *_LIBRARIES)) or _MADE_BY_AUTOGRAPH in path:
        return False
    return not path.startswith(_STANDARD_LIBRARY) or _INSTALLED in path


def _line_of(places: list[tuple[str, int]]) -> str:
    """The first of `places`, innermost first, that is the user's; one of an installed package if need be."""
    for belongs in (is_users, _may_be_users):
        for path, line in places:
            if belongs(path):
                return f"{path}:{line}"
    return "line unknown"


def _places(frame: Any) -> list[tuple[str, int]]:
    places = []
    while frame is not None:
        places.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return places
