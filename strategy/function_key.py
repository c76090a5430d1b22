"""What a traced function depends on: its code, its defaults and what it closes over.

Launches are cached by this key, so that a lambda written again in each step is not traced again, and a changed Python
number in a closure is. Tensors and per-replica values that the function itself closes over are neither: they are
`lifted`, and become arguments of the launch.
"""

from __future__ import annotations

import contextlib
import functools
import types
from typing import Any, Callable, Collection, Iterator

import numpy as np
import tensorflow as tf

from ._tf import PolymorphicFunction
from .values import is_distributed, select

_SIMPLE = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), tf.DType)
_MAX_ARRAY_BYTES = 4096
_MAX_DEPTH = 8


class Closure:
    """The closure of a function, with its tensors lifted out.

    Args:
        function: Any callable; only a plain Python function has a closure to lift from.

    Attributes:
        lifted: The tensors and per-replica values that the function closes over.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        cells = function.__closure__ or () if isinstance(function, types.FunctionType) else ()
        self._cells = [cell for cell in cells if _is_lifted(_contents(cell))]
        self.lifted = [cell.cell_contents for cell in self._cells]

    @contextlib.contextmanager
    def filled(self, values: list[Any]) -> Iterator[None]:
        """Puts `values` in the place of what was lifted."""
        for cell, value in zip(self._cells, values):
            cell.cell_contents = value
        try:
            yield
        finally:
            for cell, value in zip(self._cells, self.lifted):
                cell.cell_contents = value

    def of_replica(self, replica: int) -> Callable[..., Any]:
        """The function as a replica sees it: a per-replica value in its closure is the replica's component."""
        if not any(is_distributed(value) for value in self.lifted):
            return self._function
        own = {id(cell): types.CellType(select(replica, value)) for cell, value in zip(self._cells, self.lifted)
               if is_distributed(value)}
        cells = tuple(own.get(id(cell), cell) for cell in self._function.__closure__ or ())
        copy = types.FunctionType(self._function.__code__, self._function.__globals__, self._function.__name__,
                                  self._function.__defaults__, cells)
        copy.__kwdefaults__ = self._function.__kwdefaults__
        return copy


class _Empty:
    """Stands for the contents of a cell that has none yet."""


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _Empty


def _is_lifted(value: Any) -> bool:
    is_variable = isinstance(value, tf.Variable) or hasattr(value, "_should_act_as_resource_variable")
    return is_distributed(value) or tf.is_tensor(value) and not is_variable


class Keys:
    """Makes hashable keys of Python values: equal for values that one trace serves.

    Numbers, strings and containers of them count by value, functions by their code and closure, everything else by
    identity.

    Args:
        ignored: Closure values that count for nothing, as `closure_keys` names them: what a step changes while it is
            traced (a counter of its traces) is no part of the program.

    Attributes:
        kept: The objects that a key refers to by identity. Whoever keeps the key keeps these, so that no other object
            takes their place in memory.
    """

    def __init__(self, ignored: Collection[Any] = ()) -> None:
        self.kept: list[Any] = []
        self._ignored = ignored

    def of_function(self, function: Callable[..., Any], depth: int = 0) -> Any:
        """The key of a function. At depth 0 the tensors in its closure are left out: they are lifted."""
        if isinstance(function, functools.partial):
            return ("partial", self.of_function(function.func, depth), self.of(function.args, depth),
                    self.of(function.keywords, depth))
        if isinstance(function, PolymorphicFunction):
            return ("tf.function", self.of_function(function.python_function, depth), self.of(function, _MAX_DEPTH))
        if isinstance(function, types.MethodType):
            return ("method", self.of_function(function.__func__, depth), self.of(function.__self__, _MAX_DEPTH))
        if not isinstance(function, types.FunctionType):
            return self._identity(function)
        closure = tuple("lifted" if depth == 0 and _is_lifted(value) else self.of(value, depth + 1)
                        for name, value in _closure_of(function).items() if name not in self._ignored)
        # Module-level numbers and strings that the code names; other globals count as part of the module.
        named = tuple((name, function.__globals__[name]) for name in function.__code__.co_names
                      if isinstance(function.__globals__.get(name, _Empty), _SIMPLE))
        return ("function", function.__module__, function.__code__, self.of(function.__defaults__, depth + 1),
                self.of(function.__kwdefaults__, depth + 1), closure, self.of(named, depth + 1))

    def of(self, value: Any, depth: int = 0) -> Any:
        """The key of any value."""
        if isinstance(value, _SIMPLE):
            return (type(value), value)
        if depth < _MAX_DEPTH:
            if isinstance(value, (list, tuple)):
                return (type(value), tuple(self.of(item, depth + 1) for item in value))
            if isinstance(value, dict):
                return (type(value), tuple((self.of(key, depth + 1), self.of(item, depth + 1))
                                           for key, item in value.items()))
            if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
                return self.of_function(value, depth + 1)
        if isinstance(value, (np.ndarray, np.generic)) and value.nbytes <= _MAX_ARRAY_BYTES and value.dtype != object:
            return (type(value), value.dtype.str, value.shape, value.tobytes())
        return self._identity(value)

    def _identity(self, value: Any) -> Any:
        self.kept.append(value)
        return ("object", id(value))


def _closure_of(function: types.FunctionType) -> dict[Any, Any]:
    """What a function closes over, by (code, name)."""
    names = function.__code__.co_freevars
    return {(function.__code__, name): _contents(cell) for name, cell in zip(names, function.__closure__ or ())}


def closure_keys(function: Callable[..., Any]) -> dict[Any, Any]:
    """The keys of a function's closure values, by (code, name); empty for what has no closure."""
    if not isinstance(function, types.FunctionType):
        return {}
    return {name: "lifted" if _is_lifted(value) else Keys().of(value) for name, value in _closure_of(function).items()}
