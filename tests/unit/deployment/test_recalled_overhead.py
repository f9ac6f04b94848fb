"""What a server has measured that requests take, recalled where a file leaves it out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway.deployment.overhead import overhead_key, times_file
from inferway.dispatch.service_times import remember_loads, remember_overhead

FILE: dict[str, Any] = {
    "tasks": {
        "a": {"variants": {"only": {"accuracy": 0.9, "service": {"cpu": {"mean": "10 ms"}}}}}
    },
    "nodes": {"here": {"devices": {"gpu": {"count": 1}, "cpu": {"cores": 2}}}},
    "workload": {"a": {"arrivals": {"process": "poisson", "rate": "10/s"}}},
}


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the file of what was measured: 250 us of task `a`, of them 200 of the server itself."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = times_file()
    remember_overhead(file, overhead_key(inferway.load(FILE).tasks), 200e-6, 250e-6)
    return file


def loaded(**node: Any) -> inferway.Deployment:
    data = json.loads(json.dumps(FILE))
    data["nodes"]["here"] |= {"instances": {"a/only": {"cpu": 2}}} | node
    return inferway.load(data)


def lead_s(deployment: inferway.Deployment) -> dict[str, float]:
    return deployment.nodes["here"].leads_s


def test_what_was_measured_stands_where_the_file_says_nothing(kept: Path) -> None:
    deployment = loaded()
    assert lead_s(deployment) == {"gpu": 0.0, "cpu": 250e-6}
    (sentence,) = inferway.check(deployment).overheads
    assert sentence.startswith("nodes.here.overhead: it is not given, and so 250 us, which a ")
    assert sentence.endswith(str(kept))
    measured = deployment.nodes["here"].measured_overhead
    assert measured is not None
    assert measured.own_s == 200e-6
    # What else is kept leaves it there.
    remember_loads(kept, {"another": 1.0})
    assert lead_s(loaded()) == {"gpu": 0.0, "cpu": 250e-6}


def test_the_file_counts_more() -> None:
    for stated in ("0 s", "1 ms"):
        deployment = loaded(overhead=stated)
        assert lead_s(deployment)["cpu"] == (1e-3 if stated == "1 ms" else 0.0)
        assert lead_s(deployment.with_overhead(None)) == lead_s(deployment)
        assert inferway.check(deployment).overheads == ()


@pytest.mark.parametrize(
    "what", [*("another task", "nothing", "no number", "no time", "no day", "no JSON", "schema")]
)
def test_without_a_measurement_it_is_nothing(kept: Path, what: str) -> None:
    if what == "nothing":
        kept.unlink()
    elif what == "no JSON":
        kept.write_text("{")
    else:
        content = json.loads(kept.read_text())
        (key,) = content["overheads"]
        entry = content["overheads"].pop(key)
        tasks = inferway.load(FILE).tasks
        key = overhead_key({**tasks, "b": tasks["a"]}) if what == "another task" else key
        wrong = {
            "no number": {"seconds": "much", "at": 1},
            "no time": {"seconds": 1e-4},
            "no day": {"seconds": 1e-4, "at": 1e30},
        }
        content["overheads"][key] = wrong.get(what, entry)
        content["schema"] += what == "schema"
        kept.write_text(json.dumps(content))
    deployment = loaded()
    assert lead_s(deployment) == {"gpu": 0.0, "cpu": 0.0}
    (sentence,) = deployment.overheads()
    assert "and so 0, as no server" in sentence


def test_a_changed_deployment_keeps_what_it_was_read_with(kept: Path) -> None:
    deployment = loaded()
    remember_overhead(kept, overhead_key(loaded().tasks), 900e-6, 900e-6)
    assert lead_s(deployment.with_(rate=20.0))["cpu"] == 250e-6
    assert lead_s(deployment.with_(**{"nodes.here.overhead": "70 us"}))["cpu"] == 70e-6
    assert lead_s(loaded())["cpu"] == 900e-6


def test_what_is_beyond_other_times_is_not_of_these(kept: Path) -> None:
    """A profile that is measured later has what models took beyond the one before."""

    def file(mean: str) -> inferway.Deployment:
        data = json.loads(json.dumps(FILE))
        data["tasks"]["a"]["variants"]["only"]["service"]["cpu"]["mean"] = mean
        return inferway.load(data)

    assert lead_s(file("12 ms"))["cpu"] == 200e-6
    remember_overhead(kept, overhead_key(file("12 ms").tasks), 210e-6, 220e-6)
    assert lead_s(file("12 ms"))["cpu"] == 220e-6
    assert lead_s(file("10 ms"))["cpu"] == 250e-6


def test_it_takes_of_the_devices_in_the_twin(kept: Path) -> None:
    def used() -> float:
        result = inferway.simulate(loaded(), queries=20_000, seed=1).tasks["a"]
        assert result.devices is not None
        return result.devices["cpu"]

    remember_overhead(kept, overhead_key(loaded().tasks), 10e-3, 10e-3)
    with_it = used()
    kept.unlink()
    assert with_it == pytest.approx(2.0 * used(), rel=0.05)


def test_another_file_has_its_own(kept: Path) -> None:
    """Tasks of the same names whose models are others are not what was measured."""

    def file(model: str, **more: str) -> inferway.Deployment:
        data = json.loads(json.dumps(FILE))
        data["tasks"]["a"] |= more
        data["tasks"]["a"]["variants"]["only"]["model"] = f"zoo://digits/{model}"
        return inferway.load(data)

    assert lead_s(file("tiny"))["cpu"] == 0.0
    remember_overhead(kept, overhead_key(file("tiny").tasks), 400e-6, 400e-6)
    assert lead_s(file("tiny"))["cpu"] == lead_s(file("tiny", deadline="1 s"))["cpu"] == 400e-6
    assert lead_s(file("mini"))["cpu"] == 0.0
    assert lead_s(loaded())["cpu"] == 250e-6
