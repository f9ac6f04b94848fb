"""What the failure of a run means: for the client who asked, and for the instance that ran it."""

from __future__ import annotations

from typing import Final, NamedTuple

from inferway.live.request import Outcome
from inferway.protocol.refusal import RefusalError
from inferway.runtime import Fault, RemoteError

FAILURES: Final = 3
"""Failures in a row after which an instance is run on zeros: one that fails at these too takes no
more requests; one that answers them works, and the requests were at fault."""

RETRY_S: Final = 1.0
"""What a client is told to wait where a remote server does not say."""


class Verdict(NamedTuple):
    """How a failed run is judged.

    Attributes
    ----------
    outcome
        How the request ends.
    weight
        As how many failures it counts.
    certain
        Whether the instance rests after `FAILURES` without being run on zeros first.
    unserved
        Whether the model has certainly not run, so that another variant may be asked.
    retry_after_s
        When another try may be worth it, in seconds.
    """

    outcome: Outcome
    weight: int = 1
    certain: bool = False
    unserved: bool = False
    retry_after_s: float = 0.0


_FAILED: Final = Verdict(Outcome.FAILED)
_MALFORMED: Final = Verdict(Outcome.INVALID, weight=0)
_REMOTE: Final = {
    Fault.REFUSED: Verdict(Outcome.INVALID),
    # It works; it has too much to do.
    Fault.OVERLOADED: Verdict(Outcome.REJECTED, weight=0),
    Fault.UNAVAILABLE: Verdict(Outcome.UNAVAILABLE, certain=True),
    Fault.UNREACHABLE: Verdict(Outcome.UNAVAILABLE, weight=FAILURES, certain=True),
    # To run a server on zeros that does not answer would take as long again.
    Fault.LATE: Verdict(Outcome.EXPIRED, certain=True),
    Fault.BROKEN: _FAILED,
    Fault.UNFIT: Verdict(Outcome.FAILED, weight=FAILURES, certain=True),
}


def verdict(error: Exception) -> Verdict:
    """Judge what a runtime raised."""
    if isinstance(error, RefusalError):  # of data that nobody had decoded before
        return _MALFORMED
    if not isinstance(error, RemoteError):
        return _FAILED
    found = _REMOTE[error.fault]._replace(unserved=error.unserved)
    if error.hung:
        found = found._replace(weight=FAILURES)
    if found.outcome in (Outcome.REJECTED, Outcome.UNAVAILABLE):
        found = found._replace(retry_after_s=error.retry_after_s or RETRY_S)
    return found
