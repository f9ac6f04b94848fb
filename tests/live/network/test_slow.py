"""A link that becomes slow in the middle of everything."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from clients import Clients
from figures import write
from ring import Ring

Send = Callable[..., Clients]
RTT_S = 0.3


def test_a_slow_link_costs_time_and_no_request(ring: Ring, send: Send) -> None:
    clients = send(10.0)
    slowed_s = clients.at(3.0)
    ring.network.slow("left", "cloud", rtt_s=RTT_S)
    healed_s = clients.at(7.0)
    ring.network.heal()
    answers = clients.answers()
    slow, after = answers.between(slowed_s, healed_s), answers.between(healed_s + 1.0, np.inf)
    before = answers.between(clients.begun_s, slowed_s - 1.0)
    figures = answers.summary() | {
        "recovered_s": answers.recovered_s(slowed_s, healed_s),
        "before_p50_s": float(np.median(answers.took_s[before])),
        "slow_p50_s": float(np.median(answers.took_s[slow])),
        "slow_p99_s": float(np.quantile(answers.took_s[slow], 0.99)),
        "after_p50_s": float(np.median(answers.took_s[after])),
        "used_most": ring.used_most(clients.begun_s),
    }
    write(f"link slowed to {RTT_S * 1e3:g} ms", figures)
    assert answers.answered.all(), figures["failures"]
    assert figures["after_p50_s"] < 0.1
    assert max(figures["used_most"].values()) <= 1.0
