"""The simulation of queries that are cancelled and rerouted, against closed forms and the twin."""

from __future__ import annotations

import pytest

from inferway.studies.queueing.rerouted import rerouted
from inferway.studies.queueing.system import FOUR_CLASSES, System, simulated


def ran(system: System, servers: int, target: float, load: float, **more: object) -> dict:
    given = {"queries": 210_000, "shuffles": True, "seed": 1, **more}
    return rerouted(system=system.arguments(), servers=servers, target=target, load=load, **given)


def test_one_server_is_the_m_m_1_queue() -> None:
    row = ran(System((2.0,), (0.8,), (1.0,)), 1, 0.7, 0.6)
    assert row["response_s"] == pytest.approx(1 / (2.0 - 1.2), abs=4 * row["response_s_se"])
    assert 0 < row["response_s_se"] < 0.05
    assert row["accuracy"] == pytest.approx(0.8)
    assert row["moved"] == 0


def test_a_class_of_its_own_is_join_the_idle_queue() -> None:
    alike = System((1.0,), (0.8,), (1.0,))
    row = ran(alike, 8, 0.7, 0.9)
    given = {"system": alike.arguments(), "servers": 8, "target": 0.7, "load": 0.9, "seed": 2}
    twin = simulated(policy="r-jiq", queries=300_000, **given)
    error = row["response_s_se"] + twin["response_s_se"]
    assert row["response_s"] == pytest.approx(twin["response_s"], abs=4 * error)


def test_rerouting_keeps_the_target_where_pairs_shuffle() -> None:
    row = ran(FOUR_CLASSES, 1024, 0.76, 0.9)
    assert row["moved"] > 0.01
    assert row["accuracy"] == pytest.approx(0.76, abs=4 * row["accuracy_se"] + 2e-4)
    assert row["response_s"] + 4 * row["response_s_se"] >= row["bound_s"]
    assert ran(FOUR_CLASSES, 1024, 0.76, 0.9, shuffles=False)["moved"] == 0
