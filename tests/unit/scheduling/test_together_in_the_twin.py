"""One policy for several tasks in the twin: when it is asked, what it is shown, who obeys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from exported import ABOUT, BOTH, SIGNS, TASKS, arrays_of, fleets, side_by_side

from inferway.deployment import ServiceTime
from inferway.deployment.workloads import MapArrivals
from inferway.scheduling import Routing, Signal
from inferway.site import Site
from inferway.site.devices import DeviceSlots
from inferway.twin import Scenario, joint, run
from inferway.twin.joint import seed_among
from inferway.twin.replication import replicate, replicate_together

ABOUTS = (ABOUT, SIGNS)
BURSTY = MapArrivals.read(
    {"process": "map", "d0": [[-151, 1], [0.5, -20.5]], "d1": [[150, 0], [0, 20]]}
)
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def write(arrays: dict[str, np.ndarray], name: str = "both.npz") -> Path:
        np.savez(tmp_path / name, **arrays)  # type: ignore[arg-type]
        return tmp_path / name

    return write


def devices(taken: tuple[int, int]) -> DeviceSlots:
    return DeviceSlots(
        names=("cpu",),
        slots=np.array([3]),
        exclusive=np.array([False]),
        overhead_s=np.zeros(1),
        device=np.zeros(2, np.int64),
        taken=np.array(taken),
    )


def scenarios(shared: bool = False, **changes: Any) -> dict[str, Scenario]:
    """Both tasks, of which each has servers of its own, on cores that they share or not."""
    found = {}
    for fleet, about in zip(fleets(), ABOUTS, strict=True):
        own = replace(fleet, devices=devices((1, 1))) if shared else fleet
        service = tuple(ServiceTime("deterministic", mean_s) for mean_s in about.service_s)
        given = {"deadline_s": about.deadline_s, "policy": "alias", **changes}
        found[about.task] = Scenario(own, service, BURSTY, **given)
    return found


def scheduled(place: Path, shared: bool = False, **changes: Any) -> dict[str, Scenario]:
    options: dict[str, Any] = {"checkpoint": place, "tasks": TASKS, **changes}
    every = scenarios(shared)
    return {name: one.scheduled("rl-po", **options) for name, one in every.items()}


def together(every: dict[str, Scenario], queries: int = 3000, seed: int = 3) -> dict[str, Any]:
    """Records of both tasks, and the results."""
    kept: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in every}

    def sink(name: str) -> Callable[[int, Any], None]:
        def keep(_: int, rows: Any) -> None:
            size = rows.size[0]
            kept[name].append({n: getattr(rows, n)[:size].copy() for n in rows._fields[:-1]})

        return keep

    replicate_together(
        every,
        queries=queries,
        seed=seed,
        replication=0,
        kinds=dict.fromkeys(every, "general"),
        warmup=0,
        sinks={name: sink(name) for name in every},
        stop=Event(),
        progress={},
    )
    return {name: joined(rows) for name, rows in kept.items()}


def joined(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    every = {name: np.concatenate([one[name] for one in rows]) for name in rows[0]}
    order = np.argsort(every["arrived_s"], kind="stable")
    return {name: of[order] for name, of in every.items()}


def test_tasks_that_share_nothing_run_as_each_alone(save: Save) -> None:
    """With a policy whose parts look at nothing of each other, decision for decision."""
    alone = [arrays_of(ABOUT, 1), arrays_of(SIGNS, 2)]
    found = together(scheduled(save(side_by_side(*alone))))
    for k, about in enumerate(ABOUTS):
        path = save(alone[k], f"alone-{k}.npz")
        rows: list[dict[str, np.ndarray]] = []

        def keep(_: int, some: Any, rows: list[dict[str, np.ndarray]] = rows) -> None:
            size = some.size[0]
            rows.append({n: getattr(some, n)[:size].copy() for n in some._fields[:-1]})

        one = scenarios()[about.task].scheduled("rl-po", checkpoint=path)
        replicate(one, queries=3000, seed=seed_among(3, k), replication=0, warmup=0, sink=keep)
        own, expected = alike(found[about.task], joined(rows))
        assert len(own["server"]) > 300
        for name in ("server", "left_s"):
            np.testing.assert_allclose(own[name], expected[name], rtol=1e-12)


def alike(*runs: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Records of the requests that all runs have, but for the last, which one run may have cut."""
    both, *places = np.intersect1d(*(one["arrived_s"] for one in runs), return_indices=True)
    assert len(both) > 200
    return [
        {name: of[place[:-200]] for name, of in one.items()}
        for one, place in zip(runs, places, strict=True)
    ]


class Probe:
    """Writes down what it is shown, and sends all requests of a task to one of its servers."""

    slot_s, sees_phase = 0.5, True

    def __init__(self, on_rejection: bool) -> None:
        self.on_rejection = on_rejection
        self.seen: list[tuple[list[float], list[int], list[int]]] = []

    def decide(self, sites: Sequence[Site], signals: Sequence[Signal]) -> list[Routing | None]:
        clocks = [float(site.clock_s[0]) for site in sites]
        phases = [signal.phase for signal in signals]
        self.seen.append((clocks, phases, [int(site.queue.sum()) for site in sites]))
        number, ones = len(self.seen) - 1, np.ones(2, np.int64)
        return [
            Routing(np.eye(servers)[(number + k) % servers], ones, ones)
            for k, servers in enumerate((4, 3))
        ]


def probed(
    monkeypatch: pytest.MonkeyPatch, path: Path, *, shared: bool, on_rejection: bool = False
) -> tuple[Probe, dict[str, Any]]:
    probe, every = Probe(on_rejection), scheduled(path, shared)
    if not on_rejection:  # each server takes what it is sent
        rare = {"arrivals": rarer(BURSTY, 0.1), "late": "serve"}
        every = {name: replace(one, **rare) for name, one in every.items()}
    monkeypatch.setattr(joint, "controller_of", lambda *_: probe)
    return probe, together(every)


@pytest.mark.parametrize("shared", [False, True])
def test_all_are_shown_at_once_each_slot_and_all_obey(
    monkeypatch: pytest.MonkeyPatch, save: Save, shared: bool
) -> None:
    probe, found = probed(monkeypatch, save(arrays_of(BOTH)), shared=shared)
    slots = len(probe.seen)
    assert slots > 10
    for number, (clocks, phases, _) in enumerate(probe.seen):
        assert clocks == pytest.approx([0.5 * number] * 2, abs=1e-12)
        assert set(phases) <= {0, 1}
    assert any(waiting[0] and waiting[1] for _, _, waiting in probe.seen)
    for k, rows in enumerate(found.values()):
        went = rows["server"] >= 0
        slot = np.floor(rows["arrived_s"][went] / 0.5).astype(int)
        expected = (slot + k) % (4, 3)[k]
        assert rows["server"][went].tolist() == expected.tolist()


def test_a_rejection_of_one_task_lets_it_decide_for_all(
    monkeypatch: pytest.MonkeyPatch, save: Save
) -> None:
    probe, found = probed(monkeypatch, save(arrays_of(BOTH)), shared=True, on_rejection=True)
    rejected_s = {
        float(time_s)
        for rows in found.values()
        for time_s in rows["arrived_s"][rows["server"] < 0].tolist()
    }
    assert len(rejected_s) > 10
    decided_s = [clocks[0] for clocks, _, _ in probe.seen]
    assert all(clocks[0] == clocks[1] for clocks, _, _ in probe.seen)
    assert len(set(decided_s)) == len(decided_s)  # once at a time
    last_s = max(decided_s)
    assert {one for one in rejected_s if one < last_s} <= set(decided_s)


def test_a_task_of_several_is_not_simulated_alone(save: Save) -> None:
    every = scheduled(save(arrays_of(BOTH)))
    with pytest.raises(ValueError, match="recognise and signs together, so signs is not simulated"):
        run(every["signs"], queries=10)
    with pytest.raises(ValueError, match="signs is scheduled together with recognise, which is"):
        together({"signs": every["signs"]})
    mixed = every | {"signs": replace(every["signs"], fleet=scenarios(True)["signs"].fleet)}
    with pytest.raises(ValueError, match="all have devices of one node, or none has any"):
        together(mixed)


def test_a_policy_sees_what_the_other_task_does_to_its_cores(save: Save) -> None:
    """On shared cores it runs, and what it routes depends on both tasks' workloads."""
    path = save(arrays_of(BOTH))
    every = scheduled(path, shared=True)
    busy = together(every)["recognise"]
    calm = replace(every["signs"], arrivals=rarer(BURSTY, 0.01))
    alone = together(every | {"signs": calm})["recognise"]
    one, other = alike(busy, alone)
    assert len(one["server"]) > 300
    assert (one["server"] != other["server"]).mean() > 0.01


def rarer(arrivals: MapArrivals, factor: float) -> MapArrivals:
    """The same phases with so many times the rates."""
    d0, d1 = np.array(arrivals.d0), factor * np.array(arrivals.d1)
    d0 = d0 - np.diag(np.diag(d0))
    d0 = d0 - np.diag(d0.sum(axis=1) + d1.sum(axis=1))
    return MapArrivals.read({"process": "map", "d0": d0.tolist(), "d1": d1.tolist()})
