"""The network twin."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import inferway
from inferway.network import deployed
from inferway.placement import build_policy, minimal, serve
from inferway.placement.contract import expected_batches
from inferway.twin.slots import run_slots, simulate_slots

EXAMPLE = Path(__file__).parents[3] / "examples" / "topology-1.yaml"
NO_REPOSITORY = """
tasks:
  t: {variants: {a: {accuracy: 0.8, size: 1 GiB, service: {mean: 10 ms}}}}
nodes: {here: {budget: 4 GiB}}
workload: {t: {arrivals: {process: poisson, rate: 3/s}}}
"""


@pytest.fixture(scope="module")
def deployment():
    return inferway.load(EXAMPLE)


def test_the_result_has_what_the_commands_print(deployment) -> None:
    result = simulate_slots(deployment, slots=6)
    printed = json.loads(json.dumps(result.to_json()))
    needed = ["ntag_ms", "mu_bytes_per_slot", "latency_s", "inaccuracy", "slots", "cpu_s_per_slot"]
    assert {*needed, "tiers"} <= set(printed)
    assert printed["slots"] == 6
    assert list(printed["tiers"]) == ["cloud", "isp", "metro", "office", "base"]
    assert len(printed["tasks"]) == 20
    for parts in (result.tiers, result.tasks):
        assert sum(part.share for part in parts.values()) == pytest.approx(1)
        served = [part for part in parts.values() if part.share > 0]
        assert sum(p.share * p.latency_s for p in served) == pytest.approx(result.latency_s)
        assert sum(p.share * p.inaccuracy for p in served) == pytest.approx(result.inaccuracy)
        moved = sum(part.mu_bytes_per_slot for part in parts.values())
        assert moved == pytest.approx(result.mu_bytes_per_slot)
    gains = sum(part.share * part.ntag_ms for part in result.tasks.values())
    assert gains == pytest.approx(result.ntag_ms)
    assert "cloud" not in [name for name, part in result.tiers.items() if part.used is not None]
    assert all(0 < part.used <= 1 for part in result.tiers.values() if part.used is not None)


def test_gain_and_bytes_are_equations_23_and_24(deployment) -> None:
    network, demand = deployed(deployment)
    policy = build_policy("infida", network, rounding="fresh")
    result = run_slots(network, demand, policy, slots=5)
    again = build_policy("infida", network, rounding="fresh")
    from inferway.placement import Observation

    ntag, mu, before = 0.0, 0.0, None
    for slot in range(5):
        requests = demand.counts(slot).astype(float)
        x = again.allocation.copy()
        load = serve(network, requests, x)
        alone = serve(network, requests, minimal(network).astype(np.uint8))
        ntag += network.options.cost @ (alone - load) / requests.sum() / 5
        if before is not None:
            grown = np.maximum(0, x.astype(int) - before.astype(int))
            mu += network.pairs.size @ grown / 5
        before = x
        again.step(Observation(requests, load))
    assert result.ntag_ms == pytest.approx(ntag)
    assert result.mu_bytes_per_slot == pytest.approx(mu)
    frame = result.to_frame()
    assert frame.moved_bytes.sum() / 5 == pytest.approx(mu)
    assert frame.gain_ms.mean() == pytest.approx(ntag)


def test_runs_are_seeded(deployment) -> None:
    one, same, other = (
        simulate_slots(deployment, slots=4, seed=seed).gain.tolist() for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_a_repository_alone_gains_nothing_and_serves_all(deployment) -> None:
    result = simulate_slots(deployment, slots=3, policy="repository-only")
    assert result.ntag_ms == 0
    assert result.mu_bytes_per_slot == 0
    assert result.tiers["cloud"].share == pytest.approx(1)
    assert result.latency_s > 0.067
    assert result.fractional is None


def test_hindsight_is_given_mean_requests(deployment) -> None:
    _, demand = deployed(deployment)
    batches = expected_batches(demand, 130)
    assert len(np.unique(batches, axis=0)) == 3  # popularity slides once an hour
    assert batches.sum(axis=1) == pytest.approx(7500 * 60)
    result = simulate_slots(deployment, slots=3, policy="static-greedy")
    assert result.ntag_ms > 55
    assert np.all((result.presence == 0) | (result.presence == 1))


def test_regret_is_against_the_best_static_allocation(deployment) -> None:
    result = simulate_slots(deployment, slots=8, regret=True)
    assert result.regret is not None
    best = simulate_slots(deployment, slots=8, policy="exact")
    assert result.regret.best == pytest.approx(best.gain)
    assert result.regret.plain == pytest.approx(best.gain.sum() - result.gain.sum())
    assert result.regret.discounted < result.regret.plain < result.regret.bound
    assert result.regret.gap < 0.001
    assert set(result.to_json()["regret"]) == {"plain", "discounted", "bound", "optimality_gap"}


def test_options_of_the_file_hold_and_may_be_changed(deployment, tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace("policy: infida,", "policy: infida, refresh: 3,")
    file = tmp_path / "refresh.yaml"
    file.write_text(text)
    slow = simulate_slots(inferway.load(file), slots=7)
    assert np.flatnonzero(slow.moved).tolist() == [3, 6]
    quick = simulate_slots(inferway.load(file), slots=7, refresh=2)
    assert np.flatnonzero(quick.moved).tolist() == [2, 4, 6]


def test_progress_is_told(deployment) -> None:
    told: list[int] = []
    simulate_slots(deployment, slots=3, policy="repository-only", progress=told.append)
    assert told == [1, 1, 1]


def test_what_cannot_be_simulated_is_said(deployment, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one slot or more, not 0"):
        simulate_slots(deployment, slots=0)
    with pytest.raises(ValueError, match="unknown placement policy 'magic'"):
        simulate_slots(deployment, slots=2, policy="magic")
    file = tmp_path / "site.yaml"
    file.write_text(NO_REPOSITORY)
    with pytest.raises(inferway.DeploymentError, match="no `network`"):
        simulate_slots(inferway.load(file), slots=2)
