"""A canary: a new variant that gets a share of the requests until labels decide on it."""

from __future__ import annotations

import time
from typing import Final, Literal

import msgspec

from inferway.deployment.tasks import Canary

CanaryState = Literal["trying", "promoted", "taken-back"]
CANARY_STATES: Final[tuple[CanaryState, ...]] = ("trying", "promoted", "taken-back")


class CanaryOutcome(msgspec.Struct, frozen=True):
    """The decision on a canary.

    Attributes
    ----------
    state
        `promoted` or `taken-back`.
    reason
        Why, in words.
    at
        When, s since 1970.
    """

    state: CanaryState
    reason: str
    at: float


class CanaryStatus(msgspec.Struct, frozen=True):
    """A canary as it is told of.

    Attributes
    ----------
    variant, share, labels, at_least
        Its terms, as the file has them.
    state
        `trying`, `promoted` or `taken-back`.
    reason
        Why, in words; empty while it is tried.
    requests
        Requests that it was given as a canary since the server has it.
    """

    variant: str
    share: float
    labels: int
    at_least: float
    state: CanaryState
    reason: str
    requests: int


class CanaryTrial:
    """A canary of one fleet: which requests it gets, and what has become of it.

    Belongs to the event loop.

    Parameters
    ----------
    terms
        As the file has them.
    mask
        Its classes, as a bit mask.

    Attributes
    ----------
    state, reason
        What has become of it, and why; empty while it is tried.
    requests
        Requests that it was given as a canary.
    """

    def __init__(self, terms: Canary, mask: int) -> None:
        self.terms, self._mask = terms, mask
        self.state: CanaryState = "trying"
        self.reason, self.requests = "", 0

    @property
    def status(self) -> CanaryStatus:
        """Tell of it as it is now."""
        terms = self.terms
        return CanaryStatus(
            terms.variant,
            terms.share,
            terms.labels,
            terms.at_least,
            self.state,
            self.reason,
            self.requests,
        )

    def takes(self, word: int) -> bool:
        """Tell whether a request with this random word of 64 bits is one of the canary's share."""
        return self.state == "trying" and word < self.terms.share * 2.0**64

    def only(self, classes: int) -> int:
        """Leave of the classes that may answer, a bit mask, those of the canary."""
        return classes & self._mask

    def without(self, classes: int) -> int:
        """Leave of the classes that may answer those that the policy may choose among."""
        return classes if self.state == "promoted" else classes & ~self._mask

    def judge(self, labels: int, mean: float | None) -> CanaryOutcome | None:
        """Decide on it by the labels that it has, and their mean; None while that is too early."""
        terms = self.terms
        if self.state != "trying" or labels < terms.labels or mean is None:
            return None
        good = mean >= terms.at_least
        reason = (
            f"{labels:,} labels say {mean:.4f}, which is {'at least' if good else 'below'} "
            f"{terms.at_least:g}"
        )
        return CanaryOutcome("promoted" if good else "taken-back", reason, time.time())

    def settle(self, outcome: CanaryOutcome) -> None:
        """Do as has been decided, now or in an earlier run."""
        self.state, self.reason = outcome.state, outcome.reason
