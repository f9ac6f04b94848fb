"""The comparison on a network: its files, what is summed up of its nodes, what is printed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import inferway
from inferway.deployment import Deployment
from inferway.network import topology_of
from inferway.studies.live.comparison import (
    TASK,
    LiveComparison,
    Steps,
    site_of,
    template,
    with_service,
    write,
)
from inferway.studies.live.network import (
    POLICIES,
    PRINTED,
    SLOTS,
    changes_within,
    claims,
    draw,
    gain_table,
    placed,
    predict,
    service_table,
    unchanged,
)
from inferway.studies.live.servers import DemoError, NodesWatch, Reading
from inferway.twin.slots import simulate_slots

EXAMPLE = Path(__file__).parents[4] / "examples" / "delivery-network.yaml"
SERVICE_S = {"mini": 3e-4, "small": 3.2e-4, "medium": 4e-4, "large": 6e-4, "huge": 2e-3}
KEYS = [
    *("policy", "ntag_ms", "predicted_ntag_ms", "slot_ntag_ms", "latency_s", "accuracy"),
    *("moved_bytes_per_slot", "lost", "errors"),
]
INFIDA: dict[str, Any] = {
    "policy": "infida",
    "ntag_ms": 47.0,
    "predicted_ntag_ms": 50.0,
    "slot_ntag_ms": 51.0,
    "latency_s": 0.009,
    "accuracy": 0.84,
    "profile_accuracy": 0.83,
    "moved_bytes_per_slot": 600e3,
    "offered": 3600,
    "lost": 2,
    "errors": 1,
    "gain_ms": [40.0, 54.0],
    "changes": 1,
    "moved_bytes": [0.0, 1.2e6],
    "cpu_share": 0.2,
    "other_share": 0.01,
    "send_lag_p99_s": 1e-3,
    "twin": {
        "ntag_ms": 50.0,
        "slot_ntag_ms": 51.0,
        "fixed_ntag_ms": 53.0,
        "latency_s": 0.007,
        "accuracy": 0.83,
        "moved_bytes_per_slot": 620e3,
        "gain_ms": [44.0, 56.0],
        "slot_gain_ms": [45.0, 57.0],
    },
}
REPOSITORY = INFIDA | {
    "policy": "repository",
    "ntag_ms": -2.5,
    "twin": {
        "ntag_ms": -0.1,
        "slot_ntag_ms": 0.0,
        "fixed_ntag_ms": 0.0,
        "latency_s": 0.067,
        "accuracy": 0.92,
        "moved_bytes_per_slot": 0.0,
        "gain_ms": [-0.1, -0.1],
        "slot_gain_ms": [0.0, 0.0],
    },
}


@pytest.fixture
def plain(tmp_path: Path) -> Deployment:
    path = tmp_path / "plain.yaml"
    path.write_text(template("network.yaml"))
    return inferway.load(path)


@pytest.fixture
def deployment(plain: Deployment, tmp_path: Path) -> Deployment:
    return inferway.load(write(with_service(plain, SERVICE_S), tmp_path / "network.yaml"))


def shown(rows: list[dict[str, Any]], *, interrupted: bool = False) -> LiveComparison:
    return LiveComparison(
        rows=rows,
        found={"policies": [{name: row[name] for name in PRINTED} for row in rows]},
        claims=claims(rows),
        tables=[gain_table(rows, 2, 2.0, 150.0), service_table(rows)],
        closing=["out/network.png"],
        seed=1,
        seconds=1.0,
        warnings=["infida: late"],
        interrupted=interrupted,
    )


def text_of(result: LiveComparison) -> str:
    console = Console(file=io.StringIO(), width=80)
    for part in result.to_text():
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_its_nodes_stand_where_the_example_has_them(deployment: Deployment) -> None:
    mine, example = (topology_of(one) for one in (deployment, inferway.load(EXAMPLE)))
    assert mine.nodes == example.nodes
    assert mine.links.tolist() == example.links.tolist()
    assert mine.rtt_s.tolist() == example.rtt_s.tolist()


def test_what_measures_the_machine_serves_every_variant(plain: Deployment, tmp_path: Path) -> None:
    found = inferway.load(write(site_of(plain), tmp_path / "alone.yaml"))
    assert found.unserved() == []
    assert found.network is None
    assert set(found.tasks[TASK].variants) == set(SERVICE_S)


@pytest.mark.parametrize("policy", [*POLICIES[:-1], "repository-only"])
def test_nodes_can_run_each_policys_file(
    deployment: Deployment, policy: str, tmp_path: Path
) -> None:
    found = inferway.load(write(placed(deployment, policy, 6), tmp_path / "p.yaml"))
    assert found.unserved_at_node() == []
    for name, variant in found.tasks[TASK].variants.items():
        assert variant.service_on("cpu").mean_s == pytest.approx(SERVICE_S[name])
    if policy != "static-greedy":
        assert found.placement is not None
        assert found.placement.policy == policy
        assert found.placement.options["slot"] == 4.0
        return
    # What nodes then run is what the twins' policy has, which is told of as many slots.
    known = simulate_slots(deployment, slots=6, policy=policy)
    listed = simulate_slots(found, slots=1)
    assert (known.presence == listed.presence).all()
    assert known.presence.sum() > 10


def test_both_twins_predict(deployment: Deployment) -> None:
    entered: list[int] = []
    found = predict(deployment, "repository-only", slots=2, seed=3, progress=entered.append)
    assert len(found["gain_ms"]) == len(found["slot_gain_ms"]) == 2
    assert found["slot_ntag_ms"] == pytest.approx(0.0, abs=1e-9)
    assert found["ntag_ms"] == pytest.approx(0.0, abs=0.5)
    assert found["moved_bytes_per_slot"] == 0
    assert sum(entered) == pytest.approx(800, rel=0.2)


def _watched(readings: list[Reading]) -> NodesWatch:
    found = NodesWatch(None, 2.0)  # type: ignore[arg-type]  # nobody is asked
    found._readings = readings
    return found


def test_slots_are_summed_up_from_the_readings_at_their_ends() -> None:
    readings = [
        Reading(97.5, 10.0, 500.0, 100.0),
        Reading(99.9, 11.0, 1000.0, 101.0),
        Reading(101.9, 12.0, 1000.0, 103.0),
        Reading(103.9, 13.5, 1700.0, 106.0),
        Reading(105.9, 20.0, 9000.0, 109.0),
    ]
    usage, moved_bytes = _watched(readings).usage(100.0, 2)
    assert moved_bytes == (0.0, 700.0)
    assert usage == pytest.approx(Reading(4.0, 2.5, 700.0, 5.0))
    with pytest.raises(DemoError, match="longer than a slot"):
        _watched(readings[:3]).usage(100.0, 2)


def test_claims_hold_or_not() -> None:
    assert [claim.reproduced for claim in claims([INFIDA, REPOSITORY])] == [True, True]
    far = INFIDA | {"ntag_ms": 44.0}
    assert [claim.reproduced for claim in claims([far])] == [False]
    worse = INFIDA | {"ntag_ms": -3.0}
    assert [claim.reproduced for claim in claims([worse, REPOSITORY])] == [False, False]
    assert claims([INFIDA | {"twin": None}]) == []


def test_what_wins_without_changes_is_to_be_left_behind() -> None:
    twin = INFIDA["twin"] | {"ntag_ms": 40.0, "fixed_ntag_ms": 56.0}
    greedy = INFIDA | {"policy": "static-greedy", "ntag_ms": 40.5, "twin": twin}
    behind, most = claims([INFIDA, greedy, REPOSITORY])[3:]
    assert (behind.reproduced, most.reproduced) == (True, True)
    assert (behind.value, most.value) == (pytest.approx(6.5), pytest.approx(3.0))
    assert "static-greedy knows the mean requests of all slots beforehand" in behind.why
    ahead = greedy | {"ntag_ms": 48.0, "twin": twin | {"fixed_ntag_ms": 52.0}}
    assert [one.reproduced for one in claims([INFIDA, ahead])[2:]] == [False, False]
    # Without a change, or somebody who adapts, there is nothing to be seen.
    assert len(claims([INFIDA, greedy | {"changes": 0}])) == 2
    assert len(claims([greedy, REPOSITORY])) == 2


def test_the_demo_has_a_change_that_leaves_static_greedy_behind(deployment: Deployment) -> None:
    assert changes_within(deployment, SLOTS * 4.0) == 1
    assert changes_within(deployment, 12.0) == 0
    assert changes_within(unchanged(deployment), 1e3) == 0
    gains_ms = {
        (policy, moving): simulate_slots(one, slots=SLOTS, policy=policy).ntag_ms
        for moving, one in ((True, deployment), (False, unchanged(deployment)))
        for policy in ("exchange", "infida", "olag", "static-greedy")
    }
    for policy in ("exchange", "infida", "olag"):
        assert gains_ms[policy, False] < gains_ms["static-greedy", False] - 1.0
    assert gains_ms["exchange", True] > gains_ms["static-greedy", True] + 8.0


def test_json_and_text() -> None:
    greedy = INFIDA | {"policy": "static-greedy", "ntag_ms": 38.3, "latency_s": 0.0776}
    result = shown([INFIDA, greedy, REPOSITORY | {"ntag_ms": -10.4, "latency_s": 0.1776}])
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["schema"] == 1
    assert [list(one) for one in document["policies"]] == [KEYS, KEYS, KEYS]
    text = text_of(result)
    assert "-6.0 %" in text  # of a gain, its share; where there is none, milliseconds
    assert "-10.3 ms" in text
    assert "Of 3600 requests each" in text
    for name in ("infida", "static-greedy", "repository"):
        assert text.count(f"{name}  ") == 2  # no name is broken into lines
    assert "yes  the gain of infida is within 10% of the event twin's (-6.0%)" in text
    assert "Warning: infida: late" in text


def test_what_is_known_at_a_ctrl_c_is_told() -> None:
    known = shown([INFIDA | {"twin": None, "predicted_ntag_ms": None}], interrupted=True)
    assert known.to_json()["policies"][0]["predicted_ntag_ms"] is None
    assert "Ended before its time" in text_of(known)


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    unpredicted = REPOSITORY | {"twin": None, "gain_ms": [float("nan"), 1.0]}
    for path in draw(tmp_path / "network", [INFIDA, unpredicted], 2.0):
        assert path.stat().st_size > 5_000


def test_progress_tells_what_is_left() -> None:
    told: list[Any] = []
    steps = Steps(lambda doing, part: told.append((doing, part)), 100.0)
    steps.begin("one", 20.0)
    steps.expect(40.0)
    steps.tell("one", 0.5)
    steps.begin("two", 40.0)
    steps(0, 50, 100)
    assert told[1] == ("one, 50 s left", pytest.approx(10 / 60))
    assert told[-1] == ("two (50 of 100 requests), 20 s left", pytest.approx(40 / 60))
