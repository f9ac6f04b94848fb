"""From a deployment file to bounds and dispatchers."""

from __future__ import annotations

from pathlib import Path

import pytest

import inferway
from inferway.dispatch.deployed import dispatcher_of

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
