"""`Strategy.plan`: what a launch will do, read off the traced body without running it."""

from __future__ import annotations

import dataclasses

from ..collective import Exchange
from ..collective._tf import ANNOTATION
from .body import Body


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a launch of a step does.

    >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> def step(x):
    ...     return tf.distribute.get_replica_context().all_reduce("SUM", [x + 1, 2 * x])
    >>> print(strategy.plan(step, args=(tf.zeros([3]),)))
    step on 2 replicas: 1 exchange, 24 bytes per replica
      1. all-reduce SUM, local, 2 tensors of float32, 24 bytes: add:0, mul:0

    Attributes:
        name: The step's name.
        num_replicas: Number of replicas that run it.
        exchanges: The collectives in the order in which the step reaches them. One that stands in a branch, a loop or a
            nested function is listed once, however often it runs.
        num_traced_ops: Number of ops in the step's graph.
    """

    name: str
    num_replicas: int
    exchanges: tuple[Exchange, ...]
    num_traced_ops: int

    @property
    def num_bytes(self) -> int | None:
        """Bytes that each replica hands over in all exchanges, or None where a size is not known before running."""
        sizes = [exchange.num_bytes for exchange in self.exchanges]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def __str__(self) -> str:
        count = len(self.exchanges)
        lines = [f"{self.name} on {self.num_replicas} replicas: {count} exchange{'s' * (count != 1)}, "
                 f"{_bytes(self.num_bytes)} per replica"]
        for number, exchange in enumerate(self.exchanges, start=1):
            tensors = len(exchange.tensors)
            lines.append(f"  {number}. {exchange.kind}{' ' * bool(exchange.op)}{exchange.op}, {exchange.algorithm}, "
                         f"{tensors} tensor{'s' * (tensors != 1)} of {exchange.dtype}, {_bytes(exchange.num_bytes)}: "
                         f"{', '.join(exchange.tensors[:4])}{', ...' * (tensors > 4)}")
        return "\n".join(lines)


def plan_of(body: Body, name: str, num_replicas: int) -> Plan:
    """Reads the plan of a traced body, nested functions included, each where it is called first."""
    definition = body.graph.as_graph_def()
    functions = {function.signature.name: function.node_def for function in definition.library.function}
    found: list[Exchange] = []
    entered: set[str] = set()

    def read(nodes: object) -> None:
        for node in nodes:  # type: ignore[attr-defined]
            if ANNOTATION in node.attr:
                text = node.attr[ANNOTATION].s.decode()
                if text:
                    found.append(Exchange.from_json(text))
                continue
            for attribute in node.attr.values():
                for called in [attribute.func.name, *(function.name for function in attribute.list.func)]:
                    if called in functions and called not in entered:
                        entered.add(called)
                        read(functions[called])

    read(definition.node)
    return Plan(name, num_replicas, tuple(found), len(definition.node))


def _bytes(count: int | None) -> str:
    return "bytes not known before running" if count is None else f"{count:,} bytes"
