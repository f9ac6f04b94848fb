"""How a call to a remote server fails, so that whoever called can tell what to do about it."""

from __future__ import annotations

import enum


class Fault(enum.Enum):
    """Kinds of failure; the values are label values of metrics."""

    REFUSED = "refused"
    """The server takes no such input: another one it may take."""
    OVERLOADED = "overloaded"
    """The server works and has no room now."""
    UNAVAILABLE = "unavailable"
    """The server works and does not serve the model now."""
    UNREACHABLE = "unreachable"
    """There was no connection, or it ended before the request was out."""
    LATE = "late"
    """There was no whole answer in time."""
    BROKEN = "broken"
    """The server failed at the request, or what it answered is no answer to it."""
    UNFIT = "unfit"
    """The server's model is not what it should be: another signature, or none that can be used."""


class RemoteError(RuntimeError):
    """A call to a remote server that gave no answer; the message is one sentence.

    Parameters
    ----------
    fault
        What kind of failure it is.
    reason
        The sentence.
    unserved
        Whether it is certain that the model has not run: the request may be given to another.
    retry_after_s
        When the server says that another try may be worth it, in seconds; 0 where it says nothing.

    Attributes
    ----------
    hung
        Whether the server was asked afterwards whether it lives, and did not say so.
    """

    def __init__(
        self, fault: Fault, reason: str, *, unserved: bool = False, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(reason)
        self.fault = fault
        self.unserved = unserved
        self.retry_after_s = retry_after_s
        self.hung = False
