"""Requests one by one against the counts by slot that the same demand gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import inferway
from inferway.network import deployed
from inferway.network.demand import Trace, requests_of
from inferway.workload.popularity import share_at

_FILE = """
tasks:
  digits:
    count: 5
    variants:
      tiny: {accuracy: 0.7, size: 1 MB, service: {mean: 1 ms}}
      big: {accuracy: 0.9, size: 2 MB, service: {mean: 10 ms}}
nodes:
  edge-1: {budget: 2 MB}
  edge-2: {budget: 2 MB}
  edge-3: {budget: 2 MB}
  cloud: {repository: true}
network:
  links:
    - {between: [edge-1, cloud], rtt: 20 ms}
    - {between: [edge-2, cloud], rtt: 20 ms}
    - {between: [edge-3, cloud], rtt: 20 ms}
placement: {policy: infida, slot: 10 s}
seed: 3
workload:
  digits: {arrivals: ARRIVALS, popularity: POPULARITY, entries: ENTRIES}
"""
POISSON = "{process: poisson, rate: 200/s}"
MARKOVIAN = "{process: map, d0: [[-31, 1], [2, -202]], d1: [[30, 0], [0, 200]]}"
FIXED = "{zipf: 1.2}"
SLIDING = "{zipf: 1.2, sliding: {shift: 2, every: 4 s}}"
PER_TASK = "{nodes: [edge-1, edge-2, edge-3], per_task: 2}"


@pytest.fixture
def load(tmp_path):
    def write(arrivals: str = POISSON, popularity: str = FIXED, entries: str = PER_TASK):
        text = _FILE.replace("ARRIVALS", arrivals).replace("POPULARITY", popularity)
        path = tmp_path / "network.yaml"
        path.write_text(text.replace("ENTRIES", entries))
        return inferway.load(path)

    return write


def by_slot(trace: Trace, types: int, slots: int, slot_s: float) -> np.ndarray:
    """(slots, types) counts."""
    found = np.zeros((slots, types), np.int64)
    np.add.at(found, ((trace.time_s / slot_s).astype(int), trace.type), 1)
    return found


@pytest.mark.parametrize("arrivals", [MARKOVIAN, "{process: constant, rate: 33.3/s}"])
def test_a_stream_counted_arrival_by_arrival_has_the_same_number_in_each_slot(load, arrivals):
    network, demand = deployed(load(arrivals))
    trace = requests_of(network, demand, 60.0)
    counted = by_slot(trace, demand.types, 6, demand.slot_s).sum(axis=1)
    assert counted.tolist() == [demand.counts(slot).sum() for slot in range(6)]


@pytest.mark.parametrize("popularity", [FIXED, SLIDING])
def test_counts_by_type_agree_in_law(load, popularity):
    network, demand = deployed(load(popularity=popularity))
    slots = 40
    counted = by_slot(requests_of(network, demand, slots * 10.0), demand.types, slots, 10.0)
    expected = np.array([demand.expected(slot) for slot in range(slots)])
    # Poisson counts: their squared deviations over their means add up to a chi-square's.
    freedom = counted.size
    chi_square = ((counted - expected) ** 2 / expected).sum()
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)


def test_tasks_follow_the_popularity_of_their_time(load):
    deployment = load(popularity=SLIDING)
    trace = requests_of(*deployed(deployment), 200.0)
    popularity = deployment.workload["digits"].popularity
    for period in range(5):
        here = (trace.time_s % 20 >= 4 * period) & (trace.time_s % 20 < 4 * (period + 1))
        found = np.bincount(trace.task[here], minlength=5) / here.sum()
        np.testing.assert_allclose(found, share_at(popularity, 5, 4 * period + 1), atol=0.02)


def test_each_task_enters_at_its_own_nodes_evenly(load):
    deployment = load()
    network, _ = deployed(deployment)
    trace = requests_of(*deployed(deployment), 100.0)
    for task in range(5):
        own = network.paths.node[
            network.paths.first[network.requests.path[network.requests.task == task]]
        ]
        entered = np.bincount(trace.entry[trace.task == task], minlength=len(network.nodes))
        assert np.flatnonzero(entered).tolist() == sorted(own.tolist())
        here = entered[entered > 0] / entered.sum()
        assert np.all(np.abs(here - 0.5) < 4 * 0.5 / np.sqrt(entered.sum()))
    assert np.array_equal(network.requests.task[trace.type], trace.task)


def test_a_longer_trace_begins_as_the_shorter_one_and_seeds_differ(load):
    deployment = load(popularity=SLIDING)
    network, demand = deployed(deployment)
    short, long = requests_of(network, demand, 10.0), requests_of(network, demand, 30.0)
    for one, other in zip(short, long, strict=True):
        np.testing.assert_array_equal(one, other[: len(one)])
    other, same = (requests_of(network, replace(demand, seed=k), 10.0) for k in (4, 3))
    assert not np.array_equal(short.time_s, other.time_s)
    assert np.array_equal(short.type, same.type)


def test_several_kinds_come_in_one_order(tmp_path):
    text = _FILE.replace("tasks:", "tasks:\n  other: {variants: {v: {accuracy: 0.5, size: 1 MB,"
                         " service: {mean: 1 ms}}}}")  # fmt: skip
    text = text.replace("ARRIVALS", POISSON).replace("POPULARITY", FIXED)
    text = text.replace("ENTRIES", PER_TASK) + (
        "  other: {arrivals: {process: constant, rate: 50/s}, entries: {nodes: [cloud]}}\n"
    )
    path = tmp_path / "two.yaml"
    path.write_text(text)
    deployment = inferway.load(path)
    network, _ = deployed(deployment)
    trace = requests_of(*deployed(deployment), 20.0)
    assert np.all(np.diff(trace.time_s) >= 0)
    other = trace.task == network.tasks.index("other")
    assert other.sum() == 1000
    assert set(trace.entry[other].tolist()) == {network.nodes.index("cloud")}
