"""What the states of the workers say about their waits: who disagrees, who is late, who has left too early.

All exchanges are numbered alike on all workers, by how many each has completed before. So two workers that have
completed as many and wait in different exchanges disagree, and will wait for ever; one that has completed less is
behind.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

from ..collective import CollectiveOptions
from .connection import Connection

# How long two workers must have waited in different exchanges, or one for a worker that has left, to be sure of it.
SETTLED = 1.5

# How much longer the text on a disagreement waits for those whose exchange is not known yet.
ALL_SETTLED_WITHIN = 3.0

START = {"at": 0, "done": 0, "text": "", "busy": "", "line": ""}


@dataclasses.dataclass
class Peer:
    """What is known of a worker.

    Attributes:
        name: For texts.
        connection: To it, None for this worker itself and where only the chief has one.
        changed: When `at` or `done` last changed.
        heard: When it last said anything.
        state: The last that it said: "at", the key of the exchange that it waits in, 0 if none; "done", exchanges
            completed; "text", that exchange in words; "busy", what else it does that may take long; "line", where its
            main thread is.
        has_left: Whether it has said that it leaves.
    """

    name: str
    connection: Connection | None
    changed: float
    heard: float
    state: dict[str, Any] = dataclasses.field(default_factory=lambda: dict(START))
    has_left: bool = False

    def take(self, state: dict[str, Any], now: float) -> None:
        """Takes a new state."""
        if (state["at"], state["done"]) != (self.state["at"], self.state["done"]):
            self.changed = now
        self.state = state

    @property
    def seen(self) -> str:
        """What it was seen to do last, for texts."""
        if self.state["busy"]:
            return f"busy: {self.state['busy']}"
        return f"at {self.state['line']}" if self.state["line"] else "not heard of since the start"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is to be done about the waits.

    Attributes:
        failure: Why the job cannot go on, "" if it can.
        warning: What the log should tell, "" if nothing.
        is_quiet: Whether nobody waits for long.
    """

    failure: str = ""
    warning: str = ""
    is_quiet: bool = False


def judged(everybody: Sequence[Peer], are_all_known: bool, options: CollectiveOptions, now: float) -> Verdict:
    """Looks at the waits of all workers.

    Args:
        everybody: The workers, this one first.
        are_all_known: Whether these are all; without the others nobody can be said to be missing.
        options: The time limits.
        now: The time.
    """
    waiting = [peer for peer in everybody if peer.state["at"] and now - peer.changed >= SETTLED]
    if not waiting:
        return Verdict(is_quiet=True)
    first = min(waiting, key=lambda peer: peer.changed)
    left = [peer.name for peer in everybody if peer.has_left]
    if left:
        return Verdict(failure=f"{left[0]} has left (its program has ended) while {first.name} still needs it, in "
                               f"{first.state['text']}. Every worker must run the same number of steps: decide "
                               "together when to stop, for example by reducing the decision first.")
    if not are_all_known:
        return Verdict()
    waited = now - first.changed
    if len(waiting) == len(everybody) or waited >= SETTLED + ALL_SETTLED_WITHIN:
        disagreement = _disagreement(waiting)
        if disagreement:
            return Verdict(failure=disagreement)
    absent = [peer for peer in everybody if not peer.state["at"]]
    text, advice = _missed(first, waited, absent) if absent else _stuck(waiting, waited)
    if waited >= options.timeout_seconds and not any(peer.state["busy"] for peer in absent):
        return Verdict(failure=f"{text} (timeout_seconds is {options.timeout_seconds:g}). {advice}")
    return Verdict(warning=f"{text}. {advice}" if waited >= options.warn_seconds else "")


def _disagreement(waiting: Sequence[Peer]) -> str:
    """Which exchanges those wait in that have completed as many and wait in different ones."""
    for done in {peer.state["done"] for peer in waiting}:
        level = [peer for peer in waiting if peer.state["done"] == done]
        if len({peer.state["at"] for peer in level}) > 1:
            listed = "; ".join(f"{peer.name}: {peer.state['text']}" for peer in level)
            return (f"the workers disagree on what to exchange. {listed}. All workers must call the same collectives "
                    "in the same order, with the same ops, dtypes and shapes: take the call out of the branch that "
                    "depends on the worker, or reduce the decision first.")
    return ""


def _missed(first: Peer, waited: float, absent: Sequence[Peer]) -> tuple[str, str]:
    names = ", ".join(peer.name for peer in absent)
    seen = ", ".join(f"{peer.name} ({peer.seen})" for peer in absent)
    return (f"{names} did not come within {waited:.0f} s to where {first.name} waits, {first.state['text']}",
            f"Seen last: {seen}.")


def _stuck(waiting: Sequence[Peer], waited: float) -> tuple[str, str]:
    behind = min(peer.state["done"] for peer in waiting)
    last = [peer for peer in waiting if peer.state["done"] == behind]
    return (f"nobody is missing, and {', '.join(peer.name for peer in last)} wait{'s' * (len(last) == 1)} for "
            f"{waited:.0f} s to complete {last[0].state['text']}",
            "A worker may not reach the address of another one: `lockstep doctor`, run on all at the same time instead "
            "of the program, finds out. Or the network is slow for so much data.")
