"""Replacing functions of another library, in our steps only.

A `Correction` names one function, what is wrong with it, and what takes its place. The replacement acts only in a step
that several replicas run; everywhere else the original does. It is written for what the original does: the source's
fingerprint is compared, and where it is another one the step raises and says so, instead of training on wrong numbers.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib
import inspect
import sys
import textwrap
from typing import Any, Callable, Sequence

from ..collective import Member
from . import replica_scope

Replacement = Callable[..., Any]
disabled: set[str] = set()


@dataclasses.dataclass(frozen=True)
class Correction:
    """One function of Keras that is replaced.

    Attributes:
        name: The name for `set_keras_correction`; several functions may share it.
        fault: What Keras does.
        module: The module that holds the function.
        path: The function's name in the module, `Class.method` for a method.
        fingerprints: Of the function's source, for each release that the replacement was written for.
        replacement: Called with the original and its arguments.
        anywhere: Whether it acts outside of steps too.
    """

    name: str
    fault: str
    module: str
    path: str
    fingerprints: tuple[str, ...]
    replacement: Replacement
    anywhere: bool = False


def install(corrections: Sequence[Correction]) -> None:
    """Puts replacements in place."""
    for correction in corrections:
        owner: Any = importlib.import_module(correction.module)
        *outer, name = correction.path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        setattr(owner, name, _corrected(correction, getattr(owner, name)))


def _corrected(correction: Correction, original: Callable[..., Any]) -> Callable[..., Any]:
    is_known = fingerprint(inspect.unwrap(original)) in correction.fingerprints

    @functools.wraps(original)
    def corrected(*args: Any, **kwargs: Any) -> Any:
        if correction.name in disabled or not (correction.anywhere or running_member() is not None):
            return original(*args, **kwargs)
        if not is_known:
            raise RuntimeError(
                f"{_release(correction.module)}: `{correction.module}.{correction.path}` has changed, and "
                f"Lockstep's correction {correction.name!r} was not written for it ({correction.fault}). Install the "
                "release that Lockstep was written for, or train on what it computes after "
                f"`lockstep.set_keras_correction({correction.name!r}, enabled=False)`.")
        return correction.replacement(original, *args, **kwargs)

    return corrected


def fingerprint(function: Callable[..., Any]) -> str:
    """A short hash of a function's code, comments and docstrings left out."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]


def _release(module: str) -> str:
    name = module.split(".")[0]
    return f"{name} {getattr(sys.modules[name], '__version__', '')}"


def running_member() -> Member | None:
    """The seat of the running replica, where it has others to agree with."""
    scope = replica_scope.current()
    return scope.member if scope is not None and scope.member.size > 1 else None
