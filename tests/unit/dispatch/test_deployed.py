"""From a deployment file to bounds and dispatchers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway.catalog.profile import ConfidenceBins
from inferway.deployment import AccuracyTarget
from inferway.dispatch.bounds import UnreachableError
from inferway.dispatch.deployed import (
    bounds_beside,
    dispatcher_of,
    dispatcher_on,
    unreachable_rates,
)
from inferway.site import Fleet
from inferway.site.fleet import fleet_of

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_papers_fleet() -> None:
    found = inferway.bound(inferway.load(EXAMPLES / "paper-fleet.yaml"))["classify"].to_json()
    assert found["max_rate_normalized"] == pytest.approx(0.708333, abs=1e-6)
    assert found["rate_per_s"] == pytest.approx(64 * 0.708333 / 2, abs=1e-4)
    assert found["least_response_time_s"] == pytest.approx(0.866667, abs=1e-6)
    assert set(found["shares"]) == {"fast", "middle", "careful", "exact"}
    cheapest = found["tuples"][0]
    assert cheapest["variants"] == ["fast", "careful"]
    assert cheapest["routing"] == pytest.approx([0.4, 0.6])
    assert cheapest["cost_s"] == pytest.approx(0.866667, abs=1e-6)


def test_the_policy_that_the_file_names(tmp_path: Path) -> None:
    text = (EXAMPLES / "paper-fleet.yaml").read_text()
    assert dispatcher_of(inferway.load(EXAMPLES / "paper-fleet.yaml"), "classify").policy_name
    file = tmp_path / "fleet.yaml"
    for policy in ("{policy: r-jsq-d, d: 3}", "{policy: priced, price: 12, step: 0.1}"):
        lines = [line for line in text.splitlines() if not line.startswith("dispatch:")]
        file.write_text("\n".join([*lines, f"dispatch: {policy}"]))
        dispatcher = dispatcher_of(inferway.load(file), "classify")
        if dispatcher.policy_name == "r-jsq-d":
            assert dispatcher.policy.d == 3
        else:
            assert dispatcher.policy.price[0] == 12.0


def test_a_window_needs_no_workload_and_retuning_changes_the_routing(tmp_path: Path) -> None:
    text = (EXAMPLES / "paper-fleet.yaml").read_text()
    file = tmp_path / "fleet.yaml"
    file.write_text(text[: text.index("workload:")] + "dispatch: {policy: r-jiq, window: 10 s}\n")
    dispatcher = dispatcher_of(inferway.load(file), "classify")
    assert dispatcher.policy.probabilities @ dispatcher.fleet.accuracy >= 0.76 - 1e-9
    before = dispatcher.policy.probabilities.copy()
    dispatcher.retune(0.9 * 45.33)
    assert abs(dispatcher.policy.probabilities - before).max() > 0.05


ENERGY = """\
tasks:
  t:
    accuracy_target: 0.8
    energy_budget: 2 J
    variants:
      a: {accuracy: 0.7, energy: 1 J, service: {rate: 10/s}}
      b: {accuracy: 0.8, energy: 1.5 J, service: {rate: 2/s}}
      c: {accuracy: 0.9, energy: 5 J, service: {rate: 5/s}}
nodes: {here: {instances: {t/a: 2, t/b: 2, t/c: 2}}}
dispatch: {policy: POLICY}
workload: {t: {arrivals: {process: poisson, load: 0.5}}}
"""


@pytest.mark.parametrize("policy", ["priced", "r-jiq", "tad-op"])
def test_the_energy_budget_reaches_the_bound_and_who_keeps_it(tmp_path: Path, policy: str) -> None:
    file = tmp_path / "d.yaml"
    file.write_text(ENERGY.replace("POLICY", policy))
    deployment = inferway.load(file)
    found = inferway.bound(deployment)["t"].to_json()
    # b alone: 4/s at 1.5 J. Its 2 J to spare buy a and c in equal parts, 1 J too dear each.
    assert found["max_rate_per_s"] == pytest.approx(4 + 2 * 1)
    assert found["rate_per_s"] == pytest.approx(3)
    assert found["energy_budget"] == 2.0
    dispatcher = dispatcher_of(deployment, "t")
    assert dispatcher.rate_per_s == pytest.approx(3)
    kept = getattr(dispatcher.policy, "energy_budget", None)
    assert kept == (None if policy == "tad-op" else 2.0)
    kinds = [caution.kind for caution in inferway.check(deployment)]
    assert ("energy-unkept" in kinds) == (policy == "tad-op")


def test_what_cannot_keep_the_budget_takes_the_least_that_the_target_allows(
    tmp_path: Path,
) -> None:
    file = tmp_path / "d.yaml"
    text = ENERGY.replace("POLICY", "priced")
    # Of a and c half each reaches 0.8, at 3 J; c alone takes 5 J.
    for variants, budget in (("t/a: 2, t/c: 2", 3.0), ("t/c: 2", 5.0), ("t/b: 2, t/c: 2", 2.0)):
        file.write_text(text.replace("t/a: 2, t/b: 2, t/c: 2", variants))
        dispatcher = dispatcher_of(inferway.load(file), "t", best_effort=True)
        assert dispatcher.policy_name == "priced"
        assert dispatcher.policy.energy_budget == pytest.approx(budget)  # type: ignore[attr-defined]
    file.write_text(text.replace("t/a: 2, t/b: 2, t/c: 2", "t/c: 2"))
    with pytest.raises(UnreachableError):
        dispatcher_of(inferway.load(file), "t")


def test_rates_above_the_bound_are_said(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    phases = "{process: phases, phases: [{for: 1 s, rate: 5/s}, {for: 1 s, rate: 7/s}]}"
    text = ENERGY.replace("POLICY", "priced")
    file.write_text(text.replace("{process: poisson, load: 0.5}", phases))
    (said,) = unreachable_rates(inferway.load(file))
    assert (said.kind, said.field, said.line) == (
        "above-the-bound",
        "workload.t.arrivals.phases[1]",
        11,
    )
    assert said.message == (
        "7/s arrive, but no policy keeps a mean accuracy of 0.8 and a mean of 2 J per request "
        "above 6/s on these instances"
    )
    # More than all instances serve together is said elsewhere.
    file.write_text(text.replace("load: 0.5", "rate: 40/s"))
    deployment = inferway.load(file)
    assert unreachable_rates(deployment) == []
    assert "overloaded" in [caution.kind for caution in inferway.check(deployment)]


@pytest.mark.parametrize("policy", ["priced", "r-jiq"])
def test_a_fleet_that_cannot_keep_its_target_does_what_it_can(tmp_path: Path, policy: str) -> None:
    file = tmp_path / "poor.yaml"
    file.write_text(
        f"""
tasks:
  t:
    accuracy_target: 0.95
    dispatch: {{policy: {policy}}}
    variants:
      small: {{accuracy: 0.7, service: {{mean: 1 ms}}}}
      large: {{accuracy: 0.9, service: {{mean: 5 ms}}}}
      exact: {{accuracy: 0.99, service: {{mean: 50 ms}}}}
nodes:
  here: {{instances: {{t/small: 1, t/large: 1, t/exact: 1}}}}
"""
    )
    deployment = inferway.load(file)
    whole, task = fleet_of(deployment, "t"), deployment.tasks["t"]
    fleet = Fleet(("small", "large"), whole.rate[:2], whole.accuracy[:2], whole.count[:2])
    with pytest.raises(ValueError, match=r"0\.95"):
        dispatcher_on(deployment, task, fleet, rate_per_s=10.0)
    found = dispatcher_on(deployment, task, fleet, rate_per_s=10.0, best_effort=True)
    large = int(fleet.first[fleet.variants.index("large")])
    assert found.arrive(0.0, 1) == large
    found.mark(large, False, 0.0)
    assert found.arrive(0.0, 2) == 1 - large
    assert found.balance == pytest.approx((0.9 - 0.95) + (0.7 - 0.95))


def test_with_confidences_too_a_fleet_does_what_it_can() -> None:
    """Though what asking twice reaches is below the target, and so is no full load."""
    data = {
        "tasks": {
            "digits": {
                "accuracy_target": 0.92,
                "variants": {
                    name: {"model": f"zoo://digits/{name}"} for name in ("tiny", "medium", "large")
                },
            }
        },
        "nodes": {"here": {"instances": {"digits/tiny": 1, "digits/medium": 1}}},
        "workload": {"digits": {"arrivals": {"process": "poisson", "rate": "120/s"}}},
    }
    deployment = inferway.load(data)
    with pytest.raises(ValueError, match=r"the target 0\.92 is above"):
        dispatcher_of(deployment, "digits")
    found = dispatcher_of(deployment, "digits", best_effort=True)
    assert found.arrive(0.0, 1) == 1


@pytest.mark.parametrize(
    ("policy", "load", "instances", "expected"),
    [
        ("tad-op", 0.8, 16, "its mean may fall short"),
        ("tad-op", 0.7, 16, ""),
        ("tad-op", 0.8, 64, ""),
        ("tad", 0.8, 16, "its queues may grow"),
        ("priced", 0.8, 16, ""),
    ],
)
def test_where_the_papers_policies_may_miss_is_said(
    policy: str, load: float, instances: int, expected: str
) -> None:
    """Above a load of 1 - 1 / sqrt(n) few servers are idle at a time."""
    each = instances // 4
    deployment = inferway.load(
        {
            "tasks": {
                "t": {
                    "accuracy_target": 0.76,
                    "variants": {
                        name: {"accuracy": accuracy, "service": {"rate": f"{rate}/s"}}
                        for name, accuracy, rate in zip(
                            "abcd", (0.7, 0.75, 0.8, 1.0), (2, 1, 0.9, 0.1), strict=True
                        )
                    },
                }
            },
            "nodes": {"n": {"instances": {f"t/{name}": each for name in "abcd"}}},
            "dispatch": {"policy": policy},
            "workload": {"t": {"arrivals": {"process": "poisson", "load": load}}},
        }
    )
    found = [one.message for one in unreachable_rates(deployment) if one.kind == "may-miss"]
    assert len(found) == bool(expected)
    assert all(expected in one and "`priced` keeps the target" in one for one in found)


TWICE = """\
tasks:
  t:
    accuracy_target: 0.76
    variants:
      quick: {accuracy: 0.7, service: {rate: 10/s}}
      slow: {accuracy: 0.88, service: {rate: 1/s}}
nodes: {here: {instances: {t/quick: 1, t/slow: 4}}}
dispatch: {policy: POLICY}
workload: {t: {arrivals: {process: poisson, rate: 12.5/s}}}
"""


def sure(file: Path, policy: str = "priced") -> inferway.Deployment:
    """A deployment whose quick variant is right at 0.5 and 0.9 of two halves, as it is told."""
    file.write_text(TWICE.replace("POLICY", policy))
    deployment = inferway.load(file)
    task = deployment.tasks["t"]
    own = ConfidenceBins(
        "probability", None, False, (0.6,), (0.5, 0.9), (0.5, 0.5), (None, None), 0.0
    )
    variants = {**task.variants, "quick": replace(task.variants["quick"], confidence_bins=own)}
    return replace(deployment, tasks={"t": replace(task, variants=variants)})


def test_the_bound_where_a_second_variant_may_be_asked(tmp_path: Path) -> None:
    deployment = sure(tmp_path / "t.yaml")
    assert "escalate" not in inferway.bound(deployment)["t"].to_json()
    found = inferway.bound(deployment, escalate=True)
    told = found["t"].to_json()
    assert told["max_rate_per_s"] == pytest.approx(12.0)
    assert told["least_response_time_s"] is None
    # Nobody has measured the pair: the slow one is right at 0.88 in both halves, gains 0.38 in the
    # unsure one and 0.12 asked first. So much of its 4/s pays for the 0.06 that 10/s of the quick
    # one owe; what goes to it first instead gives up 0.26.
    assert told["escalate"].keys() == {"max_rate_per_s", "least_response_time_s", "first", "then"}
    assert told["escalate"]["max_rate_per_s"] == pytest.approx(10 + (0.38 * 4 - 0.6) / 0.26)
    assert told["escalate"]["first"]["quick"] == pytest.approx(0.8)
    (again,) = told["escalate"]["then"]
    assert (again["from"], again["bin"], again["to"]) == ("quick", 0, "slow")
    row = found.to_frame().iloc[0]
    assert row["escalate.then.quick.slow"] == pytest.approx(again["share"])
    assert row["escalate.first.quick"] == pytest.approx(0.8)
    words = str(found)
    assert "below 0.6" in words
    assert "Where a second variant may be asked" in words
    assert len(found.plot().axes[0].lines) == 2


def test_what_nobody_is_sure_of_is_said(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(TWICE.replace("POLICY", "priced"))
    found = inferway.bound(inferway.load(file), escalate=True)
    assert found["t"].escalate is not None
    assert found["t"].escalate.max_rate_per_s == pytest.approx(found["t"].max_rate_per_s)
    assert "No variant has calibrated confidence" in " ".join(str(found).split())


def test_a_rate_above_the_bound_may_be_below_that_of_asking_twice(tmp_path: Path) -> None:
    (said,) = unreachable_rates(sure(tmp_path / "t.yaml"))
    assert said.message == (
        "12.5/s arrive, but no policy keeps a mean accuracy of 0.76 above 12/s on these instances "
        "that chooses before it sees an answer; `escalate` may up to 13.5385/s"
    )


def test_a_target_above_the_best_variant_is_bounded_by_asking_twice(tmp_path: Path) -> None:
    deployment = sure(tmp_path / "t.yaml")
    task = replace(deployment.tasks["t"], target=AccuracyTarget(0.885))
    deployment = replace(deployment, tasks={"t": task})
    assert inferway.bound(deployment)["t"].max_rate_per_s == 0
    beyond = replace(deployment, tasks={"t": replace(task, target=AccuracyTarget(0.9))})
    for escalate in (False, True):
        with pytest.raises(ValueError, match=r"0\.9 is above the best accuracy 0\.89 that asking"):
            inferway.bound(beyond, escalate=escalate)
    found = inferway.bound(deployment, escalate=True)
    # Half of the quick one's answers are right at 0.9, and the slow one answers the others.
    assert found["t"].escalate is not None
    assert found["t"].escalate.best_accuracy == pytest.approx(0.89)
    assert found["t"].escalate.max_rate_per_s > 0
    assert found["t"].max_rate_per_s == 0
    told = " ".join(str(found).split())
    assert "No mix of the variants keeps the accuracy target 0.885 without asking" in told
    assert found.plot().axes


def test_tasks_that_targets_or_devices_join_have_a_bound_together() -> None:
    variants = {
        "a": {"accuracy": 0.7, "service": {"rate": "20/s"}},
        "b": {"accuracy": 0.9, "service": {"rate": "10/s"}},
        "c": {"accuracy": 0.99, "service": {"rate": "1/s"}},  # has no instance
    }
    data: dict[str, Any] = {
        "tasks": {"t": {"variants": variants}, "u": {"variants": variants}},
        "nodes": {"here": {"instances": {"t/a": 2, "t/b": 2, "u/a": 2, "u/b": 2}}},
        "workload": {
            name: {"arrivals": {"process": "poisson", "rate": "10/s"}} for name in ("t", "u")
        },
    }
    assert inferway.bound(inferway.load(data)).together is None
    data["targets"] = {"both": {"tasks": ["t", "u"], "accuracy": 0.8}}
    found = inferway.bound(inferway.load(data))
    assert found.together is not None
    assert found.together.blind.least_response_time_s == pytest.approx(0.075)
    # Both are half accurate; the accurate ones are full first.
    assert found.together.blind.max_factor == pytest.approx(4.0)
    assert "price of both, a mean accuracy of 0.8" in " ".join(str(found).split())
    assert "unreachable" not in found.together.to_json()
    data["targets"]["most"] = {"tasks": ["t", "u"], "accuracy": 0.95}
    found = inferway.bound(inferway.load(data))
    assert found.together is not None
    assert found.together.to_json()["unreachable"] == ["most"]
    sentence = "No mix of the variants keeps most (a mean accuracy of 0.95), at any multiple of"
    assert sentence in " ".join(str(found).split())
    del data["targets"]
    data["nodes"]["here"]["devices"] = {"cpu": {"cores": 1}}
    # The core has room for 20 requests of class a a second, or 10 of class b.
    for name, beside in bounds_beside(inferway.load(data)).items():
        assert beside.max_rate_per_s == pytest.approx(10.0), name
        assert beside.least_response_time_s == pytest.approx(0.05)
    data["workload"]["u"]["arrivals"]["rate"] = "25/s"
    assert bounds_beside(inferway.load(data))["t"] == (0.0, None)
    data["workload"]["u"]["arrivals"]["rate"] = "10/s"
    found = inferway.bound(inferway.load(data), escalate=True)
    assert found.together is not None
    assert found.together.targets == {}
    # By itself each has the core to itself.
    assert found["t"].max_rate_per_s == pytest.approx(20.0)
    assert found.together.blind.max_factor == pytest.approx(1.0)
    del data["workload"]["u"]
    assert inferway.bound(inferway.load(data)).together is None


def test_the_table_of_tasks_together_has_units_and_who_is_asked_again() -> None:
    service = {"distribution": "exponential", "rate": "10/s"}
    variants = {
        "frugal": {"accuracy": 0.8, "energy": "1 J", "service": service | {"rate": "4/s"}},
        "quick": {"accuracy": 0.9, "energy": "3 J", "service": service},
    }
    data = {
        "tasks": {"a": {"variants": variants}, "b": {"variants": variants}},
        "targets": {"both": {"tasks": ["a", "b"], "energy": "2 J"}},
        "nodes": {"here": {"instances": {f"{t}/{v}": 4 for t in "ab" for v in variants}}},
        "workload": {t: {"arrivals": {"process": "poisson", "rate": "2/s"}} for t in "ab"},
    }
    found = inferway.bound(inferway.load(data), escalate=True)
    lines = str(found).split("Tasks together")[1].splitlines()
    (price,) = (line.split() for line in lines if "price of both" in line)
    assert price[-4:] == ["0.075", "s/J", "0.075", "s/J"]
    assert [line.split()[-2:] for line in lines if "asked again" in line] == [["0.00", "%"]] * 2
