"""The arguments of a launch: which differ between replicas, which are shared, which are part of the program.

Every leaf of (args, kwargs, closure) is one of

    per replica   a per-replica value of tensors: component r is replica r's input
    shared        a tensor: every replica's input
    static        any other object: part of the traced program, and of the cache's key

Components whose shapes differ are no obstacle: the body is traced for the spec that covers them all.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Sequence

import numpy as np
import tensorflow as tf

from .function_key import Closure, Keys
from .values import components, flat_leaves, is_distributed, spec_of

PER_REPLICA, SHARED, STATIC = "per replica", "shared", "static"


class DifferentObjectsError(Exception):
    """A per-replica argument holds Python objects, or tensors of different kinds: the step has no single trace."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of the arguments.

    Attributes:
        kind: PER_REPLICA, SHARED or STATIC.
        spec: The spec of the body's input; None for STATIC.
        value: The per-replica value, the tensor, or the object.
    """

    kind: str
    spec: tf.TypeSpec | None
    value: Any


class Arguments:
    """What a function is called with, taken apart.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.
        closure: The function's closure, whose tensors and per-replica values are arguments too.
        num_replicas: Number of local replicas.
        arrays_are_tensors: Whether numpy arrays become shared tensors (as `tf.function` does) or stay objects.

    Raises:
        DifferentObjectsError: See there.
        ValueError: A per-replica value with another number of components than there are replicas.
    """

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any], closure: Closure, num_replicas: int,
                 arrays_are_tensors: bool):
        self._structure = (tuple(args), kwargs, closure.lifted)
        self._closure = closure
        self._num_replicas = num_replicas
        self.leaves = [self._leaf(value, arrays_are_tensors) for value in tf.nest.flatten(self._structure)]

    def _leaf(self, value: Any, arrays_are_tensors: bool) -> Leaf:
        if is_distributed(value):
            check_num_components(value, self._num_replicas)
            return _per_replica_leaf(value, components(value))
        if isinstance(value, tf.Variable):
            return Leaf(STATIC, None, value)
        if isinstance(value, (np.ndarray, np.generic)) and arrays_are_tensors:
            value = tf.convert_to_tensor(value)
        if _has_spec(value):
            return Leaf(SHARED, spec_of(value), value)
        return Leaf(STATIC, None, value)

    @property
    def signature(self) -> tuple[tf.TypeSpec, ...]:
        """The specs of the body's inputs, in order."""
        return tuple(leaf.spec for leaf in self.leaves if leaf.spec is not None)

    def static_key(self, keys: Keys) -> Any:
        """What the trace depends on besides the specs: the structure and the static leaves."""
        return (_structure_key(self._structure), tuple(keys.of(leaf.value) if leaf.kind == STATIC else leaf.kind
                                                       for leaf in self.leaves))

    def with_signature(self, signature: Sequence[tf.TypeSpec]) -> "Arguments":
        """The same arguments, to be traced for other (wider) specs."""
        copy = object.__new__(Arguments)
        copy.__dict__.update(self.__dict__)
        specs = iter(signature)
        copy.leaves = [leaf if leaf.spec is None else dataclasses.replace(leaf, spec=next(specs))
                       for leaf in self.leaves]
        return copy

    def tensors_of(self, replica: int) -> list[tf.Tensor]:
        """Replica's flat input tensors, composite tensors taken apart, in the order of the body's inputs."""
        tensors: list[tf.Tensor] = []
        for leaf in self.leaves:
            if leaf.kind != STATIC:
                value = components(leaf.value)[replica] if leaf.kind == PER_REPLICA else leaf.value
                tensors.extend(tf.nest.flatten(_as_spec(value, leaf.spec), expand_composites=True))
        return tensors

    def shared_of(self, inputs: Sequence[Any]) -> list[Any]:
        """Those of the body's inputs that every replica gets alike."""
        kinds = [leaf.kind for leaf in self.leaves if leaf.kind != STATIC]
        return [value for kind, value in zip(kinds, inputs, strict=True) if kind == SHARED]

    def rebuild(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with the body's inputs in place of tensors; keeps the function's part for `bound_function`."""
        given = iter(inputs)
        flat = [leaf.value if leaf.kind == STATIC else next(given) for leaf in self.leaves]
        args, kwargs, self._lifted_inputs = tf.nest.pack_sequence_as(self._structure, flat)
        return args, kwargs

    def bound_function(self) -> Callable[..., Any]:
        """The function, the body's inputs in the place of the tensors that it refers to; after `rebuild`."""
        return self._closure.bound(self._lifted_inputs)


def check_call(where: str, name: str, function: Any, args: Any, kwargs: Any) -> None:
    """Raises for a function, `args` or `kwargs` with which nothing can be called.

    Args:
        where: The caller, for error texts.
        name: What the caller calls the function.
        function: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments, or None.

    Raises:
        TypeError: `function` is none.
        ValueError: `args` is no list or tuple, or `kwargs` no dictionary.
    """
    if not callable(function):
        raise TypeError(f"`{where}`: `{name}` is {function!r}. Expected a function: pass the function itself, not "
                        "what it returns.")
    if not isinstance(args, (list, tuple)):
        raise ValueError(f"`{where}`: `args` is {args!r}. Expected a list or tuple: `args=(value,)`.")
    if not isinstance(kwargs, (dict, type(None))):
        raise ValueError(f"`{where}`: `kwargs` is {kwargs!r}. Expected a dictionary: `kwargs={{\"x\": value}}`.")


def check_num_components(structure: Any, num_replicas: int, what: str = "`strategy.run`: an argument") -> None:
    """Raises ValueError for a per-replica value that has not one component for each local replica."""
    for value in flat_leaves(structure):
        if is_distributed(value) and len(components(value)) != num_replicas:
            raise ValueError(f"{what} has {len(components(value))} components for {num_replicas} replicas. A "
                             "per-replica value has one for each local replica; was it made by another strategy?")


def _per_replica_leaf(value: Any, parts: Sequence[Any]) -> Leaf:
    if all(_has_spec(part) or isinstance(part, (np.ndarray, np.generic)) for part in parts):
        specs = [spec_of(part if _has_spec(part) else tf.convert_to_tensor(part)) for part in parts]
        spec = specs[0].most_specific_common_supertype(specs[1:])
        if spec is not None:
            return Leaf(PER_REPLICA, spec, value)
    elif all(part is parts[0] for part in parts) or _all_equal(parts):
        return Leaf(STATIC, None, parts[0])
    raise DifferentObjectsError


def _all_equal(parts: Sequence[Any]) -> bool:
    simple = (bool, int, float, str, bytes, type(None))
    return all(isinstance(part, simple) and type(part) is type(parts[0]) and part == parts[0] for part in parts)


def _has_spec(value: Any) -> bool:
    return tf.is_tensor(value) or isinstance(value, (tf.IndexedSlices, tf.RaggedTensor, tf.SparseTensor))


def _as_spec(value: Any, spec: tf.TypeSpec | None) -> Any:
    return tf.convert_to_tensor(value) if isinstance(spec, tf.TensorSpec) else value


def _structure_key(structure: Any) -> Any:
    if isinstance(structure, dict):
        return (type(structure), tuple((key, _structure_key(structure[key])) for key in sorted(structure)))
    if isinstance(structure, (list, tuple)):
        return (type(structure), tuple(_structure_key(item) for item in structure))
    return None
