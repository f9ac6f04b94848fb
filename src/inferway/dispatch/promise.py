"""The promise of a task: its mean accuracy against its target, and the verdict on it.

An accuracy target promises the running mean of the accuracies that count: those of profiles, or
what feedback has measured. A verdict needs answers to rest on; it says `missed` of a mean that is
lower than rounding and the last few answers explain, and `at-risk` of one that is kept, but owes
something or serves more than the bound allows.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

from inferway.deployment.policies import ESCALATE
from inferway.dispatch.bounds import max_rate
from inferway.dispatch.escalation_bounds import max_escalation_rate
from inferway.site.fleet import Fleet

State = Literal["kept", "at-risk", "missed", "unknown"]

SLACK: Final = 0.0005
"""How far a running mean may be below its target and still count as kept."""
FEWEST: Final = 2_000
"""Answers before which nothing is said."""


VERDICTS: Final = {
    "kept": "kept",
    "at-risk": "at risk",
    "missed": "missed",
    "unknown": "too early to say",
    "none": "nothing promised",
}
"""The words for each state, and for a task without a target."""


class Promise(NamedTuple):
    """The promise of one task, and what became of it."""

    target: float
    mean: float | None  # Of the answers, since the start or the last change of the target
    by: str  # Whose accuracies they are: `profile` or `measured`
    state: State
    # Running sum of (accuracy - target); a server's moves at dispatch, a client's with answers.
    balance: float
    answers: int
    labels: dict[str, Any] | None = None  # `mean` and `interval` by labels, where there are any

    @property
    def mean_name(self) -> str:
        """Say of whose accuracies the mean is."""
        return "mean as measured" if self.by == "measured" else "mean by profile"

    def reason(self, rate_per_s: float = 0.0, max_rate_per_s: float | None = math.inf) -> str:
        """Say why it is in its state, in a sentence or two.

        Parameters
        ----------
        rate_per_s
            At which requests come.
        max_rate_per_s
            The greatest at which any policy keeps it; None where none does at any rate.
        """
        if self.state in ("at-risk", "missed"):
            if max_rate_per_s is None:
                return "No mix of the healthy variants reaches the target."
            if rate_per_s > max_rate_per_s:
                return (
                    f"{_rate(rate_per_s)} requests come a second, more than the "
                    f"{_rate(max_rate_per_s)} at which any policy can keep the target."
                )
        answers = f"{self.answers:,}"
        match self.state:
            case "kept":
                return f"The mean of {answers} answers is at its target or above it."
            case "at-risk":
                owed = f"a balance of {self.balance:+.3g} is owed"
                return f"The mean is at its target yet, but {owed}."
            case "missed":
                return f"The mean of {answers} answers is below its target."
        given = f"{answers} of the {FEWEST:,} answers that a verdict needs have been given."
        if self.mean is None:
            return given
        side = "below its target" if self.mean < self.target else "at its target or above it"
        return f"{given} Their mean is {side}."

    @property
    def margin(self) -> float | None:
        """How far the mean is above the target; None without answers."""
        return None if self.mean is None else self.mean - self.target

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return self._asdict()


def promise_of(
    target: float | None,
    answers: int,
    accuracy_sum: float,
    *,
    balance: float | None = None,
    overloaded: bool = False,
    by: str = "profile",
) -> Promise | None:
    """Judge a promise; None without a target.

    Parameters
    ----------
    target
        Promised mean accuracy, 0..1, or None.
    answers, accuracy_sum
        Answers (rows) that count, and the sum of their variants' accuracies.
    balance
        Accuracy balance; that of these answers if not given.
    overloaded
        Whether requests come faster than the bound allows at this target.
    by
        Whose accuracies these are, `profile` or `measured`.
    """
    if target is None:
        return None
    mean = accuracy_sum / answers if answers else None
    if balance is None:
        balance = accuracy_sum - answers * target
    state: State
    if mean is None or answers < FEWEST:
        state = "unknown"
    elif mean < target - SLACK:
        state = "missed"
    else:
        state = "at-risk" if balance < 0.0 or overloaded else "kept"
    return Promise(target, mean, by, state, balance, answers)


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100.0 else f"{per_s:.3g}"


def overloads(
    rate_per_s: float,
    fleet: Fleet,
    target: float | None,
    energy_budget: float | None = None,
    *,
    policy: str = "",
) -> bool:
    """Tell whether a rate is above the greatest at which a policy keeps what is promised.

    NaN is not. A policy without a name chooses before it sees an answer.
    """
    if math.isnan(rate_per_s):
        return False
    # The first is a sum and enough most of the time, the second a linear program.
    for greatest in (max_rate, max_escalation_rate)[: 1 + (policy == ESCALATE)]:
        with suppress(ValueError):  # no rate keeps it
            if rate_per_s <= greatest(fleet, target, energy_budget):
                return False
    return True
