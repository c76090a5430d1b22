"""Errors of a launch, told with the replica that raised them."""

from __future__ import annotations

import contextlib
import re
from typing import Iterator

import tensorflow as tf

from ..collective import CollectiveError, CollectiveMismatchError
from ..collective.local import MISMATCH, TOO_LATE
from .equal_copies import after_failure

_CALL = re.compile(r"\breplica_(\d+)/")


@contextlib.contextmanager
def naming_the_replica(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Adds to a TensorFlow error of a launch which replica raised it; the class of the error stays.

    The copies of variables that only some replicas had written are made equal.

    Raises:
        CollectiveMismatchError: Replicas met in different collectives.
        CollectiveError: A replica has not come to a collective in time.
    """
    try:
        with after_failure(strategy):
            yield
    except tf.errors.OpError as error:
        problems = strategy.extended.queues.take_problems()
        message = problems[0] if problems else error.message or ""
        if TOO_LATE in message:
            text = message[message.index(TOO_LATE) + len(TOO_LATE):].split(";")[0]
            raise CollectiveError(
                f"`strategy.run`: {text}. Look for what holds it up: a loop that does not end, a Python function or an "
                "input that blocks. The limit is `CollectiveOptions(timeout_seconds)`.") from error
        if MISMATCH in message:
            text = message[message.index(MISMATCH):].split("\n")[0]
            raise CollectiveMismatchError(
                f"`strategy.run`: {text}. All replicas must call the same collectives in the same order: move the call "
                "out of the branch that depends on the replica.") from error
        if problems:
            raise tf.errors.InvalidArgumentError(error.node_def, error.op, message) from error
        if isinstance(error, tf.errors.CancelledError):
            raise tf.errors.CancelledError(
                error.node_def, error.op, "`strategy.run`: a replica failed before the others had started, and "
                "TensorFlow reports that they were cancelled instead of why it failed. Check the step's inputs. "
                f"{message}"
            ) from error
        replica = _CALL.search(message)
        if replica is None or isinstance(error, tf.errors.OutOfRangeError):
            raise
        index = int(replica.group(1))
        device = strategy.extended.worker_devices[index]
        index += strategy.extended.first_replica
        raise type(error)(error.node_def, error.op,
                          f"`strategy.run`: replica {index} ({device}) raised: {message}") from error
