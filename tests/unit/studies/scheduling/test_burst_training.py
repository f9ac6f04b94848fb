from __future__ import annotations

from dataclasses import replace

import pytest

from inferway.studies import Results
from inferway.studies.scheduling import burst
from inferway.studies.scheduling.burst_training import (
    DEADLINE,
    DRIFT,
    EVEN,
    LEARNED,
    RULED,
    SHIELD,
    STUDY,
    WALK,
    ruled,
    site_of,
)
from inferway.twin.engine import GeneralEngine, engine_of

SETTINGS = STUDY.scales["paper"]


def test_whoever_decides_meets_the_same_drift():
    site = site_of(WALK)
    factors = []
    for one in (site, replace(site, policy="alias")):
        engine = engine_of(one, seed=3)
        assert isinstance(engine, GeneralEngine)
        seen = []
        for second in range(1, 40):
            engine.advance(1000, float(second))
            engine.slow_down()
            seen.append(engine.slowness[0])
        factors.append(seen)
    assert factors[0] == factors[1]
    assert len(set(factors[0])) > 30
    assert site.late == "drop"


def test_a_rule_is_run_in_both_worlds():
    alike = ruled(EVEN, "", "", requests=30_000, seed=5)
    best = ruled(DEADLINE, "", "", requests=30_000, seed=5)
    # All that the servers can do is done by whoever sends requests to those that are in time.
    assert alike["goodput_bursty_said"] == pytest.approx(best["goodput_bursty_said"], abs=0.002)
    assert alike["goodput_normal_said"] < best["goodput_normal_said"] - 0.01
    assert best["violations_bursty_said"] == 0 < best["violations_bursty_drift"]
    assert best["heavy_normal_said"] == 1.0
    assert best["late_bursty_said"] == 0.0 < best["late_bursty_drift"] < 0.1


def verdicts(changed):
    """Verdicts of the claims by their sentences: rows are alike but for what is changed."""
    rows = []
    for row in (*RULED, *LEARNED):
        for trial in range(3):
            columns = {
                f"{name}_{state}_{world}": {"goodput": 0.79}.get(name, 0.0) + 1e-5 * trial
                for name in ("goodput", "violations", "late", "heavy")
                for state in burst.PHASES
                for world in ("said", "drift")
            }
            own = {name: value for (who, name), value in changed.items() if who == row}
            columns |= {name: value + 1e-5 * trial for name, value in own.items()}
            rows.append({"row": row, "trial": trial, **columns})
    return {claim.says: claim.verdict for claim in STUDY.claims(SETTINGS, Results(rows))}


def test_claims_say_who_is_ahead():
    told = verdicts({(SHIELD, "goodput_bursty_said"): 0.80, (DRIFT, "goodput_bursty_drift"): 0.80})
    holds = {says for says, verdict in told.items() if verdict == "yes"}
    assert "Trained under the shield, RL-PO comes to more in bursts than trained without." in holds
    assert "In bursts with drift what has learned is ahead of `deadline`." in holds
    assert "It is then where `deadline` is." not in holds
    assert "Over both states `deadline` is ahead with drift, too." not in holds
    behind = verdicts({(DRIFT, "goodput_bursty_drift"): 0.70})
    assert behind["In bursts with drift what has learned is ahead of `deadline`."] == "no"
    assert behind["Over both states `deadline` is ahead with drift, too."] == "yes"
