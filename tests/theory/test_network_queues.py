"""The event twin of a network where queues have closed forms: M/M/1, M/D/1, forwarded or not."""

from __future__ import annotations

import numpy as np
import pytest

import inferway
from inferway.placement.delays import MeasuredDelays
from inferway.twin.network.events import simulate_events

FILE = """
tasks:
  t:
    variants:
      a: {{accuracy: 0.9, size: 1 GB, service: {{distribution: {law}, mean: 20 ms}}}}
dispatch: {{policy: least-cost}}
nodes: {{edge: {{budget: 1 B}}, cloud: {{repository: true}}}}
network: {{links: [{{between: [edge, cloud], rtt: {rtt}}}]}}
placement: {{policy: repository-only, slot: 60 s}}
seed: 5
workload: {{t: {{arrivals: {{process: poisson, rate: {rate}/s}}, entries: {{nodes: [edge]}}}}}}
"""


def run(tmp_path, *, law, rate, rtt="40 ms", slots=60):
    file = tmp_path / "one.yaml"
    file.write_text(FILE.format(law=law, rate=rate, rtt=rtt))
    return simulate_events(inferway.load(file), slots=slots)


@pytest.mark.parametrize("rate", [10, 25, 35])
def test_one_instance_that_all_is_forwarded_to_is_m_m_1(tmp_path, rate) -> None:
    found = run(tmp_path, law="exponential", rate=rate)
    assert found.tiers["network"].share == 1
    assert found.forwarded == 1
    time_s = 1 / (50 - rate)
    assert found.latency_s - 0.04 == pytest.approx(time_s, rel=0.04)
    # Exponential times: percentiles follow.
    assert found.p95_s - 0.04 == pytest.approx(-np.log(0.05) * time_s, rel=0.06)
    assert found.gain.sum() / found.requests.sum() == pytest.approx(
        -1000 * (time_s - 0.02), rel=0.1
    )


def test_with_constant_service_times_it_is_m_d_1(tmp_path) -> None:
    found = run(tmp_path, law="deterministic", rate=30)
    load = 0.6
    wait_s = load * 0.02 / (2 * (1 - load))  # Pollaczek and Khinchine
    assert found.latency_s - 0.06 == pytest.approx(wait_s, rel=0.04)


def test_more_under_way_than_virtual_servers_wait_at_the_entry(tmp_path) -> None:
    # 1024 requests may be under way to a repository: at 0.02 + 20 s each, 51 per second. More than
    # these wait at the edge, and the cloud sees no queue.
    light = run(tmp_path, law="deterministic", rate=4, rtt="20 s", slots=10)
    assert light.latency_s == pytest.approx(20.02, abs=0.05)
    heavy = run(tmp_path, law="deterministic", rate=60, rtt="20 s", slots=10)
    assert heavy.latency_s > 30


@pytest.mark.parametrize("letters", [{}, {"letters_s": 0.0}])
def test_nodes_measure_what_queues_have_closed_forms_of(tmp_path, monkeypatch, letters) -> None:
    told = []
    take = MeasuredDelays.take

    def taken(delays, measured, x) -> None:
        told.extend(measured.sojourns.values())
        take(delays, measured, x)
        if delays.wait_s.any():
            scales.append(delays.scale)

    scales: list[float] = []
    monkeypatch.setattr(MeasuredDelays, "take", taken)
    file = tmp_path / "one.yaml"
    text = FILE.format(law="deterministic", rate=30, rtt="40 ms")
    file.write_text(text.replace("repository-only", "exchange, delays: measured"))
    simulate_events(inferway.load(file), slots=60, **letters)
    requests, service_s, wait_s, busy_s = np.sum(told, axis=0)
    assert requests > 100_000
    assert service_s == busy_s == pytest.approx(0.02 * requests)
    # Pollaczek and Khinchine, as the price of waiting foresees.
    assert wait_s / requests == pytest.approx(0.6 * 0.02 / (2 * (1 - 0.6)), rel=0.04)
    assert np.mean(scales[10:]) == pytest.approx(1.0, rel=0.05)
