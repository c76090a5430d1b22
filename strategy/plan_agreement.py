"""Workers compare what they have traced, before it runs for the first time.

Each worker traces a step for itself. If the traces exchange different things, or the same in another order, the workers
would wait for each other, or add what does not belong together. So a trace with exchanges that have not been agreed on
yet is compared with the others' traces of the same function: all workers meet once for each such trace, and a trace
with a plan that has been agreed on waits for nobody.
"""

from __future__ import annotations

import hashlib
import json
from typing import Sequence

import tensorflow as tf

from ..collective import CollectiveMismatchError, WorkerGroup
from ..collective.sites import Site
from . import over_workers

_ADVICE = ("All workers must call the same collectives in the same order, with the same ops, dtypes and shapes: take "
           "the call out of the branch that depends on the worker, or reduce the decision first.")


def agree_on_plan(workers: WorkerGroup | None, name: str, sites: Sequence[Site]) -> None:
    """Compares what the workers' traces of a function exchange.

    Synchronisation: every worker calls, unless it has agreed on the same plan before.

    Args:
        workers: The workers, None if there is one.
        name: The function's name.
        sites: The exchanges of this worker's trace, in order.

    Raises:
        CollectiveMismatchError: They differ; on all workers alike.
    """
    if workers is None or not sites:
        return
    plan = hashlib.sha256(str([site.key for site in sites]).encode()).hexdigest()
    if plan in workers.agreed_plans:
        return
    own = json.dumps([[site.key, site.names, site.text] for site in sites])
    with tf.init_scope():
        parts = over_workers.all_parts(workers, [[tf.constant(own)]], f"the plan of {name}, traced anew",
                                       one_per_worker=True)
    plans = [[Site(key, tuple(names), text) for key, names, text in json.loads(part.numpy())] for part, in parts]
    for other in plans[1:]:
        position = _first_difference(plans[0], other)
        if position is not None:
            listed = "; ".join(f"{worker}: {_text(theirs, position)}" for worker, theirs in zip(workers.names, plans))
            raise CollectiveMismatchError(
                f"`strategy.run`: the workers disagree on what to exchange. {listed}. {_ADVICE}")
    workers.agreed_plans.add(plan)


def _first_difference(one: Sequence[Site], other: Sequence[Site]) -> int | None:
    """The position of the first exchange that is not the same, None if all are."""
    for position in range(max(len(one), len(other))):
        if position >= min(len(one), len(other)) or one[position].key != other[position].key:
            return position
    for position, (mine, theirs) in enumerate(zip(one, other)):
        # Other names alone are no disagreement, but names that have changed places are.
        if mine.names != theirs.names and any(later.names == theirs.names for later in one) \
                and any(later.names == mine.names for later in other):
            return position
    return None


def _text(plan: Sequence[Site], position: int) -> str:
    return plan[position].text if position < len(plan) else f"no exchange {position + 1}"
