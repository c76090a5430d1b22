"""Errors of the collective layer.

Caller's mistakes (a dtype that cannot be summed, a `None` among the gradients) are ValueError and TypeError. What a
correct caller can meet at run time is a `CollectiveError`: the step failed, the variables keep the values they had at
that moment, and the next launch starts with clean queues.
"""


class CollectiveError(RuntimeError):
    """A collective could not be completed.

    >>> issubclass(lockstep.CollectiveError, RuntimeError)
    True
    """


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
