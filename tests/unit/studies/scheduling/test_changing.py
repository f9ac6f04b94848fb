from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from inferway.scheduling import UNKNOWN
from inferway.studies import Results
from inferway.studies.scheduling import burst
from inferway.studies.scheduling.changing import (
    ANY,
    DEADLINE,
    HAND,
    LEARNED,
    LONGER,
    RULED,
    SETS,
    STUDY,
    SWITCHED,
    WHOLE,
    _only,
    control_of,
    ruled,
    site_of,
    slots_of,
)
from inferway.twin.engine import engine_of

SETTINGS = STUDY.scales["paper"]


def test_training_is_shared_out_among_the_sets():
    assert len(SETS) == 8
    assert slots_of(ANY, 600_000) == slots_of(WHOLE, 600_000) == {(2, 2): 600_000}
    switched, longer = (slots_of(row, 600_000) for row in (SWITCHED, LONGER))
    assert switched.keys() == longer.keys() == {one for one in SETS if sum(one) > 1}
    assert sum(switched.values()) == 600_000
    assert set(longer.values()) == {600_000}


def test_only_the_policy_of_any_part_sees_who_is_there():
    assert control_of((2, 2), changes=True).features == 136
    assert control_of((2, 2), changes=False).features == 132
    assert control_of((0, 2), changes=False).reward_gains == (burst.GAINS[1],)


def test_whoever_decides_meets_the_same_outages():
    found = []
    for policy in ("deadline", "alias"):
        engine = engine_of(replace(site_of(True), policy=policy), seed=3, kind="general")
        seen = []
        for second in range(1, 400):
            engine.advance(10_000, float(second))
            seen.append(engine.site.healthy.tolist())
        found.append(seen)
    assert found[0] == found[1]
    assert any(one != other for one, other in pairwise(found[0]))


def test_a_single_instance_has_all_requests(tmp_path):
    for counts, name in (((1, 0), "light"), ((0, 1), "heavy")):
        _only(control_of(counts, changes=False), tmp_path / f"{name}.npz")
    site = site_of(False).scheduled("rl-po", checkpoint=tmp_path)
    controller, view = site.controller(), engine_of(site, seed=1, kind="general").site
    for server in (0, 3):
        view.healthy[:] = np.arange(4) == server
        (routing,) = controller.decide([view], [UNKNOWN])
        assert routing.probabilities[server] == 1.0
    view.healthy[:] = True
    assert controller.decide([view], [UNKNOWN]) == [None]


def test_outages_cost_a_rule_something_in_bursts():
    found = ruled(DEADLINE, requests=30_000, seed=5)
    assert found["goodput_bursty_outages"] < found["goodput_bursty_all"] - 0.01
    assert found["violations_bursty_all"] == pytest.approx(0.0, abs=1e-3)
    assert ruled(HAND, requests=30_000, seed=5)["goodput_outages"] < found["goodput_outages"]


def test_claims_say_who_is_ahead():
    def verdicts(changed):
        rows = []
        for row in (*RULED, *LEARNED):
            for trial in range(3):
                columns = {
                    f"{name}_{part}": 0.78 + 1e-5 * trial
                    for name in ("goodput", "violations", "heavy")
                    for world in ("outages", "all")
                    for part in (world, f"bursty_{world}", f"normal_{world}")
                }
                own = {name: value for (who, name), value in changed.items() if who == row}
                columns |= {name: value + 1e-5 * trial for name, value in own.items()}
                rows.append({"row": row, "trial": trial, **columns})
        return [claim.verdict for claim in STUDY.claims(SETTINGS, Results(rows))]

    assert verdicts({(ANY, "goodput_outages"): 0.77})[:5] == ["no", "no", "yes", "yes", "yes"]
    ahead = {(ANY, "goodput_outages"): 0.79, (ANY, "goodput_all"): 0.77}
    assert verdicts(ahead) == ["yes", "yes", "no", "no", "no", "yes"]
