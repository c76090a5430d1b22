"""Resources that exist once per replica: variables, queues, random streams.

A step is traced once, with the copy of the first local replica. `Copies` hangs on that copy's handle and tells the
launch which handle stands for it on every other replica.
"""

from __future__ import annotations

import weakref
from typing import Any, Sequence

import tensorflow as tf


class Copies:
    """Handles of one resource on every local replica.

    Attributes:
        handles: Resource handles, in the order of the local replicas.
        owner: What the handles belong to, for error texts: an object with a `name`, or a string.
        group: The sync group's identity; a body of another group must not use the handles.
        is_equal: Whether reading the resource gives the same on every replica.
        is_queue: Whether the replicas exchange tensors through the resource.
    """

    def __init__(self, handles: Sequence[tf.Tensor], owner: Any, group: object, is_equal: bool,
                 is_queue: bool = False):
        self.handles = tuple(handles)
        self._owner = weakref.ref(owner) if hasattr(owner, "__weakref__") else lambda: owner
        self.group = group
        self.is_equal = is_equal
        self.is_queue = is_queue
        self.handles[0]._lockstep_copies = weakref.ref(self)

    @property
    def owner_name(self) -> str:
        owner = self._owner()
        return getattr(owner, "name", None) or str(owner)

    @staticmethod
    def of(handle: tf.Tensor) -> "Copies | None":
        """The copies that `handle` stands for, or None."""
        reference = getattr(handle, "_lockstep_copies", None)
        return None if reference is None else reference()


def is_meeting_place(handle: tf.Tensor) -> bool:
    """Whether the replicas meet through a resource, one that each has or one for all."""
    copies = Copies.of(handle)
    return copies.is_queue if copies is not None else getattr(handle, "_lockstep_queue", False)
