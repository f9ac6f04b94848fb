"""Links that are cut in the middle of everything, and healed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from clients import Clients
from figures import write
from ring import Ring

Send = Callable[..., Clients]


def test_a_cut_is_routed_around_within_2_s(ring: Ring, send: Send) -> None:
    clients = send(11.0)
    cut_s = clients.at(3.0)
    ring.network.cut("left", "cloud")
    healed_s = clients.at(7.0)
    ring.network.heal()
    answers = clients.answers()
    around = np.flatnonzero(answers.paths == "edge,right,cloud")
    figures = answers.summary() | {
        "recovered_s": answers.recovered_s(cut_s, healed_s),
        "healed_s": answers.recovered_s(healed_s),
        "around_s": float(answers.due_s[around[0]]) - cut_s if len(around) else None,
        "used_most": ring.used_most(clients.begun_s),
    }
    write("cut, with another way", figures)
    # What was on the link itself, too: it has been given to another, as the task is idempotent.
    assert answers.answered.all(), figures["failures"]
    assert figures["around_s"] < 2.0
    assert figures["recovered_s"] < 2.0
    assert figures["healed_s"] < 2.0
    assert max(figures["used_most"].values()) <= 1.0
    assert not answers.degraded[answers.between(cut_s + 2.0, healed_s)].any()


def test_without_another_way_answers_say_what_they_lack(ring: Ring, send: Send) -> None:
    clients = send(12.0)
    cut_s = clients.at(3.0)
    ring.network.cut("cloud")
    healed_s = clients.at(7.0)
    ring.network.heal()
    answers = clients.answers()
    alone = answers.between(cut_s + 2.0, healed_s)
    figures = answers.summary() | {
        "recovered_s": answers.recovered_s(cut_s, healed_s),
        "healed_s": answers.recovered_s(healed_s),
        "degraded": int((answers.degraded != "").sum()),
        "says": sorted(set(answers.degraded.tolist()) - {""}),
        "used_most": ring.used_most(clients.begun_s),
    }
    write("cut, without another way", figures)
    assert figures["recovered_s"] < 2.0
    assert answers.answered.all(), figures["failures"]
    assert (answers.degraded[alone] != "").all()
    assert max(figures["used_most"].values()) <= 1.0
    # It finds back by itself, and says so.
    last = answers.between(healed_s + 4.0, np.inf)
    assert (answers.paths[last] == "edge,left,cloud").any()
    assert not answers.degraded[last].any()
