"""Errors of the collective layer.

Caller's mistakes (a dtype that cannot be summed, a `None` among the gradients) are ValueError and TypeError. What a
correct caller can meet at run time is a `CollectiveError`: the step failed, the variables keep the values they had at
that moment, and the next launch starts with clean queues.
"""

from __future__ import annotations

import tensorflow as tf


class CollectiveError(RuntimeError):
    """A collective could not be completed.

    >>> issubclass(lockstep.CollectiveError, RuntimeError)
    True
    """

    ag_pass_through = True  # Autograph would raise it again as a StagingError, which nobody catches.


class PeerError(CollectiveError):
    """Another worker failed, left, fell silent or disagreed; the text names it and says what is known.

    The collectives of this process are closed after it: restart the job, from its last checkpoint.

    >>> issubclass(lockstep.PeerError, lockstep.CollectiveError)
    True
    """


class CollectiveMismatchError(CollectiveError):
    """The replicas met in different collectives, or one ended its step while others waited for it.

    >>> issubclass(lockstep.CollectiveMismatchError, lockstep.CollectiveError)
    True
    """


def unfit(text: str) -> tf.errors.InvalidArgumentError:
    """The error of replicas whose values do not fit together, of the class that a graph raises when it runs."""
    error = tf.errors.InvalidArgumentError(None, None, text)
    error.ag_pass_through = True  # As above: autograph would put the library's own lines around it.
    return error
