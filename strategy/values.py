"""Per-replica values: what `Strategy.run` takes apart and puts together.

A `PerReplica` holds one component per local replica. The input pipeline makes them, `run` hands component r to
replica r (`select`), and gathers what the replicas return (`regroup`). A `Mirrored` value is the same with the
promise that all components are equal.

    parts = PerReplica((tf.constant([1.0, 2.0]), tf.constant([3.0])))
    select(0, {"x": parts, "scale": 2.0})  # {"x": <component 0>, "scale": 2.0}
"""

from __future__ import annotations

import operator
from typing import Any, Callable, Sequence

import numpy as np
import tensorflow as tf

from ._tf import CompositeTensor
from .split_batch import relaxed_rows

_ROWS_VARY = "_lockstep_rows_vary"
# What a value of several components is asked for when it is taken for a tensor.
_OF_A_TENSOR = frozenset({"device", "dtype", "get_shape", "item", "ndim", "numpy", "shape", "size", "tolist"})
_TENSORS = (tf.Tensor, tf.IndexedSlices, tf.RaggedTensor, tf.SparseTensor)


class PerReplica(tf.types.experimental.distributed.PerReplica, CompositeTensor):
    """One value per local replica, not kept equal.

    A composite tensor, so it passes through `tf.function` as its components do.

    >>> value = lockstep.PerReplica((tf.constant(1), tf.constant(2)))
    >>> [int(part) for part in value.values]
    [1, 2]

    Args:
        values: One component per local replica, in the order of the replicas: tensors, composite tensors, or
            (outside `tf.function` arguments) any Python objects.

    Raises:
        ValueError: `values` is empty.
    """

    def __init__(self, values: Sequence[Any]):
        self._values = tuple(values)
        if not self._values:
            raise ValueError("PerReplica: got no component. Pass one component for each local replica.")

    @property
    def values(self) -> tuple[Any, ...]:
        """The components, in the order of the local replicas."""
        return self._values

    @property
    def _type_spec(self) -> "PerReplicaSpec":
        return PerReplicaSpec(*map(spec_of, self._values))

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        if self._is_one_value:
            return tf.convert_to_tensor(self._values[0], dtype=dtype, name=name)
        raise ValueError(self._used_as_one("was used as one tensor"))

    # What is done to a tensor or to a number is done to the only component, or refused with the same text.

    @property
    def _is_one_value(self) -> bool:
        return len(self._values) == 1

    def _used_as_one(self, how: str) -> str:
        return (f"{type(self).__name__}: a value with {len(self._values)} components {how}. Outside `strategy.run` "
                "there is no single value. Pass it to `strategy.run(fn, args=(value,))`, combine it with "
                "`strategy.reduce`, or take it apart with `strategy.experimental_local_results`.")

    def _one(self, how: str) -> Any:
        """The only value.

        Raises:
            TypeError: There are several.
        """
        if self._is_one_value:
            return self._values[0]
        raise TypeError(self._used_as_one(how))

    def __getattr__(self, name: str) -> Any:
        if name in _OF_A_TENSOR and not self._is_one_value:
            raise AttributeError(self._used_as_one(f"was asked for `{name}`"), name=name, obj=self)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._one("was used as one array"), dtype)

    def __format__(self, spec: str) -> str:
        return format(self._one(f"was formatted as one number, {spec!r}"), spec) if spec else str(self)

    def __repr__(self) -> str:
        lines = ",\n".join(f"  {index}: {value!r}" for index, value in enumerate(self._values))
        return f"{type(self).__name__}:{{\n{lines}\n}}"

    __str__ = __repr__


def _operation(name: str, operate: Callable[..., Any], is_reflected: bool = False) -> Callable[..., Any]:
    """The special method of `PerReplica` that does `operate` to the only value."""
    def method(self: PerReplica, *others: Any) -> Any:
        one = self._one(f"was used as one tensor, by `{name}`")
        return operate(*others, one) if is_reflected else operate(one, *others)

    method.__name__ = f"__{name}__"
    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(PerReplica, f"__{_name}__", _operation(_name, getattr(operator, _name)))
    setattr(PerReplica, f"__r{_name}__", _operation(f"r{_name}", getattr(operator, _name), is_reflected=True))
for _name in ("lt", "le", "gt", "ge", "neg", "abs", "getitem"):
    setattr(PerReplica, f"__{_name}__", _operation(_name, getattr(operator, _name)))
for _builtin in (bool, float, int, len):
    setattr(PerReplica, f"__{_builtin.__name__}__", _operation(_builtin.__name__, _builtin))


class PerReplicaSpec(tf.TypeSpec):
    """Type of a `PerReplica`: the specs of its components."""

    __slots__ = ["_value_specs"]

    def __init__(self, *value_specs: tf.TypeSpec):
        self._value_specs = tuple(value_specs)

    @property
    def value_type(self) -> type:
        return PerReplica

    @property
    def value_specs(self) -> tuple[tf.TypeSpec, ...]:
        """The specs of the components, in the order of the local replicas."""
        return self._value_specs

    def _serialize(self) -> tuple[tf.TypeSpec, ...]:
        return self._value_specs

    @property
    def _component_specs(self) -> tuple[tf.TypeSpec, ...]:
        return self._value_specs

    def _to_components(self, value: PerReplica) -> tuple[Any, ...]:
        return value.values

    def _from_components(self, components: Sequence[Any]) -> PerReplica:
        return PerReplica(components)


class Mirrored(PerReplica, tf.types.experimental.distributed.Mirrored):
    """A per-replica value whose components are equal: the result of a reduction to several devices."""

    @property
    def _type_spec(self) -> "MirroredSpec":
        return MirroredSpec(*(tf.type_spec_from_value(value) for value in self._values))

    @property
    def _is_one_value(self) -> bool:
        return True


class MirroredSpec(PerReplicaSpec):
    """Type of a `Mirrored` value."""

    __slots__ = []

    @property
    def value_type(self) -> type:
        return Mirrored

    def _from_components(self, components: Sequence[Any]) -> Mirrored:
        return Mirrored(components)


def rows_vary(value: Any) -> Any:
    """Marks a tensor whose number of rows says nothing of other batches and workers: traces must not rely on it.

    Workers trace for themselves. If one had traced for the rows of its own part, and another for any number, their
    steps could be different programs.
    """
    setattr(value, _ROWS_VARY, True)
    return value


def spec_of(value: Any) -> tf.TypeSpec:
    """The spec of a tensor, with any number of rows where they vary."""
    spec = tf.type_spec_from_value(value)
    return relaxed_rows(spec) if getattr(value, _ROWS_VARY, False) else spec


def is_distributed(value: Any) -> bool:
    """Whether `value` is a per-replica value that `run` takes apart (a replicated variable stays whole)."""
    return isinstance(value, tf.distribute.DistributedValues) and not isinstance(value, tf.Variable)


def components(value: tf.distribute.DistributedValues) -> tuple[Any, ...]:
    """The components of any per-replica value, ours or TensorFlow's."""
    return value.values if isinstance(value, PerReplica) else value._values


def select(replica: int, structure: Any) -> Any:
    """Returns `structure` with each per-replica value replaced by its component `replica`."""
    return map_structure(lambda leaf: components(leaf)[replica] if is_distributed(leaf) else leaf, structure)


def regroup(structures: Sequence[Any]) -> Any:
    """Joins one structure per replica into one structure of per-replica values.

    Tensors become per-replica values. Any other leaf that is the same Python object on every replica stays as it is;
    the copies of one replicated variable collapse to the variable.

    Raises:
        ValueError: The structures differ in their keys, lengths or types; the message names the replica.
    """
    first = structures[0]
    for replica, other in enumerate(structures[1:], start=1):
        try:
            tf.nest.assert_same_structure(first, other)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"`strategy.run`: replica {replica} returned another structure than replica 0: {other!r} against "
                f"{first!r}. Every replica must return the same keys, lengths and types.") from error
    flat = [tf.nest.flatten(structure) for structure in structures]
    return tf.nest.pack_sequence_as(first, [regroup_leaf(leaves) for leaves in zip(*flat, strict=True)])


def regroup_leaf(leaves: Sequence[Any]) -> Any:
    """Joins the replicas' values of one leaf, see `regroup`."""
    first = leaves[0]
    # Tensors are joined even if they are one object: what `run` returns must not depend on how the step was run.
    if all(leaf is first for leaf in leaves) and (len(leaves) == 1 or not isinstance(first, _TENSORS)):
        return first
    owners = [getattr(leaf, "_distributed_container", lambda: None)() for leaf in leaves]
    if owners[0] is not None and all(owner is owners[0] for owner in owners):
        return owners[0]
    return PerReplica(leaves)


def flat_leaves(structure: Any) -> list[Any]:
    """`tf.nest.flatten` that keeps a structure it cannot order (mixed dictionary keys) as one leaf."""
    try:
        return tf.nest.flatten(structure)
    except TypeError:
        return [structure]


def map_structure(fn: Callable[[Any], Any], structure: Any) -> Any:
    """`tf.nest.map_structure` with the leaves of `flat_leaves`."""
    leaves = flat_leaves(structure)
    if len(leaves) == 1 and leaves[0] is structure:
        return fn(structure)
    return tf.nest.pack_sequence_as(structure, [fn(leaf) for leaf in leaves])
