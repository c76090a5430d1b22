"""What a traced function depends on: its code, its defaults and what it closes over.

Launches are cached by this key, so that a lambda written again in each step is not traced again, and a changed Python
number is. It counts what the function closes over and what it reads of its module, by value where that is a number, a
string or a small container of them, else by identity; attributes of objects are part of the object, as in
`tf.function`. Tensors and per-replica values are neither: they are `lifted`, and become arguments of the launch.
"""

from __future__ import annotations

import dis
import functools
import types
from typing import Any, Callable, Collection, Sequence

import numpy as np
import tensorflow as tf

from ._tf import PolymorphicFunction
from .values import is_distributed, select

_SIMPLE = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), tf.DType)
_MAX_ARRAY_BYTES = 4096
_MAX_DEPTH = 8
_MAX_ITEMS = 1000


class Closure:
    """What a function refers to by name, with its tensors lifted out.

    Args:
        function: Any callable; only a plain Python function has names to lift from.

    Attributes:
        lifted: The tensors and per-replica values that the function closes over or finds in its module.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._cells: list[str] = []
        self._globals: list[str] = []
        if isinstance(function, types.FunctionType):
            cells = dict(zip(function.__code__.co_freevars, map(_contents, function.__closure__ or ())))
            self._cells = [name for name, value in cells.items() if _is_lifted(value)]
            self._globals = [name for name, value in _globals_of(function).items() if _is_lifted(value)]
            self.lifted = [cells[name] for name in self._cells]
            self.lifted += [function.__globals__[name] for name in self._globals]
        else:
            self.lifted = []

    def bound(self, values: Sequence[Any]) -> Callable[..., Any]:
        """The function with `values` in the place of what was lifted."""
        if not self.lifted:
            return self._function
        function: Any = self._function
        cells = dict(zip(self._cells, values))
        closure = tuple(types.CellType(cells[name]) if name in cells else cell
                        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()))
        names = function.__globals__
        if self._globals:
            names = {**names, **dict(zip(self._globals, values[len(self._cells):]))}
        copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__dict__.update(function.__dict__)
        return copy

    def of_replica(self, replica: int) -> Callable[..., Any]:
        """The function as a replica sees it: a per-replica value is the replica's component."""
        if not any(is_distributed(value) for value in self.lifted):
            return self._function
        return self.bound([select(replica, value) for value in self.lifted])


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


@functools.lru_cache(maxsize=1024)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """The module-level names that a function's code reads, comprehensions and inner functions included."""
    names = {instruction.argval for instruction in dis.get_instructions(code)
             if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [_global_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return tuple(sorted(names.union(*inner)))


def _globals_of(function: types.FunctionType) -> dict[str, Any]:
    """What a function reads of its module, by name; other modules count as part of the program."""
    found = {name: function.__globals__[name] for name in _global_names(function.__code__)
             if name in function.__globals__}
    return {name: value for name, value in found.items() if not isinstance(value, types.ModuleType)}


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
        self._entered: set[int] = set()

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
        if depth and id(function) in self._entered:
            return ("again", id(function))  # A function that refers to itself, or that several others refer to.
        self._entered.add(id(function))
        self.kept.append(function)
        closure = tuple("lifted" if depth == 0 and _is_lifted(value) else self.of(value, depth + 1)
                        for name, value in _closure_of(function).items() if name not in self._ignored)
        code = function.__code__
        named = tuple((name, "lifted" if depth == 0 and _is_lifted(value) else self._of_global(function, value, depth))
                      for name, value in _globals_of(function).items() if (code, name) not in self._ignored)
        return ("function", function.__module__, function.__code__, self.of(function.__defaults__, depth + 1),
                self.of(function.__kwdefaults__, depth + 1), closure, named)

    def _of_global(self, function: types.FunctionType, value: Any, depth: int) -> Any:
        """The key of what a function finds in its module. Functions from elsewhere count as they are."""
        if isinstance(value, types.FunctionType) and value.__module__ != function.__module__:
            return self._identity(value)
        return self.of(value, depth + 1)

    def of(self, value: Any, depth: int = 0) -> Any:
        """The key of any value."""
        if isinstance(value, _SIMPLE):
            return (type(value), value)
        if depth < _MAX_DEPTH and not (isinstance(value, (list, tuple, dict, set)) and len(value) > _MAX_ITEMS):
            if isinstance(value, (set, frozenset)):
                return (type(value), frozenset(self.of(item, depth + 1) for item in value))
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


def named_keys(function: Callable[..., Any]) -> dict[Any, Any]:
    """The keys of what a function closes over and reads of its module, by (code, name)."""
    if not isinstance(function, types.FunctionType):
        return {}
    named = _closure_of(function) | {(function.__code__, name): value for name, value in _globals_of(function).items()}
    return {name: "lifted" if _is_lifted(value) else Keys().of(value) for name, value in named.items()}
