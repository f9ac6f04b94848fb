"""A link that becomes slow in the middle of everything, and quick again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from clients import Answers, Clients
from figures import write
from numpy.typing import NDArray
from ring import Ring

Send = Callable[..., Clients]
RTT_S = 0.3
AVOIDED_S = 2.0
AGAIN_S = 4.0
"""Within so long the slow link is to be avoided, and used again when it is as it was."""
WINDOW_S = 0.5


@pytest.mark.parametrize(("one", "other"), [("left", "cloud"), ("edge", "left")])
def test_a_slow_link_costs_time_and_no_request(
    ring: Ring, send: Send, one: str, other: str
) -> None:
    clients = send(17.0)
    slowed_s = clients.at(4.0)
    ring.network.slow(one, other, rtt_s=RTT_S)
    healed_s = clients.at(10.0)
    ring.network.heal()
    answers = clients.answers()
    before = answers.between(clients.begun_s + 1.0, slowed_s - 0.5)
    after = answers.between(healed_s + 3.0, np.inf)
    # What was on its way when it happened counts, too.
    slow = answers.between(slowed_s - RTT_S, healed_s) & (answers.took_s >= RTT_S)
    forwarded = np.char.find(answers.paths, f"{one},{other}") >= 0
    usual = float(np.mean(forwarded[before]))
    figures = answers.summary() | {
        "recovered_s": answers.recovered_s(slowed_s, healed_s),
        "slow": int(slow.sum()),
        "avoided_s": max(0.0, float(answers.due_s[slow][-1]) - slowed_s) if slow.any() else 0.0,
        "used_again_s": used_again_s(answers, forwarded, healed_s, usual / 2),
        "forwarded_before": usual,
        "forwarded_slow": float(np.mean(forwarded[answers.between(slowed_s + 3.0, healed_s)])),
        "before_p50_s": float(np.median(answers.took_s[before])),
        "after_p50_s": float(np.median(answers.took_s[after])),
        "used_most": ring.used_most(clients.begun_s),
    }
    write(f"link {one}-{other} slowed to {RTT_S * 1e3:g} ms", figures)
    assert answers.answered.all(), figures["failures"]
    assert figures["after_p50_s"] < 0.1
    assert figures["avoided_s"] < AVOIDED_S
    assert figures["used_again_s"] < AGAIN_S
    assert max(figures["used_most"].values()) <= 1.0


def used_again_s(
    answers: Answers, forwarded: NDArray[np.bool_], healed_s: float, share: float
) -> float:
    """Tell how long after healing as many requests as this share go by the link again.

    Returns
    -------
    float
        Until the first request that goes by it, where from there on for `WINDOW_S` at least this
        share of them does; inf where that does not come.
    """
    for row in np.flatnonzero(forwarded & answers.between(healed_s, np.inf)):
        due_s = float(answers.due_s[row])
        window = answers.between(due_s, due_s + WINDOW_S)
        if due_s + WINDOW_S <= answers.due_s[-1] and np.mean(forwarded[window]) >= share:
            return max(0.0, due_s - healed_s)
    return float("inf")
