"""Measured service times across restarts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inferway.dispatch import Dispatcher
from inferway.dispatch.service_times import carry_over, recall, remember
from inferway.site import Fleet

FLEET = Fleet(("a", "b"), np.array([100.0, 10.0]), np.array([0.7, 0.9]), np.array([2, 1]))
KEYS = {"a": "sha256:a|cpu", "b": "sha256:b|cpu"}


def used() -> Dispatcher:
    """A dispatcher whose fast class has been slower than its profile."""
    dispatcher = Dispatcher(FLEET, "fastest-only", target=None, measure=True)
    for step in range(200):
        server = dispatcher.arrive(float(step), step)
        dispatcher.finish(server, step + 0.03, 0.03)
    return dispatcher


def test_a_new_run_starts_where_the_last_one_stopped(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "times.json"
    remember(used(), KEYS, file)
    fresh = Dispatcher(FLEET, "fastest-only", target=None, measure=True)
    assert recall(fresh, KEYS, file) == ["a"]  # nothing was measured of b
    assert fresh.site.rate == pytest.approx([1 / 0.03, 10.0], rel=0.02)
    fresh.arrive(0.0, 0)
    assert fresh.predicted_service_s == pytest.approx(0.03, rel=0.02)


def test_other_models_keep_their_profiles_and_files_add_up(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    remember(used(), KEYS, file)
    remember(used(), {"a": "sha256:other|cpu"}, file)
    fresh = Dispatcher(FLEET, "fastest-only", target=None, measure=True)
    assert recall(fresh, {"a": "sha256:third|cpu"}, file) == []
    assert recall(fresh, KEYS, file) == ["a"]
    assert recall(fresh, {"a": "sha256:other|cpu"}, file) == ["a"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"schema": 2}',
        '{"schema": 1, "services": {"sha256:a|cpu": {"row_s": [0]}}}',
        '{"schema": 1, "services": {"sha256:a|cpu": 3}}',
    ],
)
def test_a_damaged_file_remembers_nothing(tmp_path: Path, content: str) -> None:
    file = tmp_path / "times.json"
    file.write_text(content)
    fresh = Dispatcher(FLEET, "fastest-only", target=None, measure=True)
    assert recall(fresh, KEYS, file) == []
    assert fresh.site.rate.tolist() == [100.0, 10.0]


def test_a_dispatcher_goes_on_from_what_another_one_has_measured() -> None:
    def made(*variants: str) -> Dispatcher:
        count = len(variants)
        fleet = Fleet(variants, np.arange(1.0, count + 1), np.full(count, 0.9), np.ones(count, int))
        return Dispatcher(fleet, "fastest-only", target=None, measure=True)

    old, new = made("slow", "fast"), made("slow", "new", "fast")
    server = int(old.fleet.first[old.fleet.variants.index("slow")])
    for step in range(100):
        assert old.arrive(float(step), step, classes=1 << old.fleet.variants.index("slow")) >= 0
        old.finish(server, step + 0.3, 0.3)
    assert carry_over(new, old, ["slow", "new"]) == ["slow"]
    k = new.fleet.variants.index("slow")
    assert new.site.row_s[int(new.fleet.first[k]), 0] == old.site.row_s[server, 0]
    assert new.site.rate[k] == pytest.approx(1 / 0.3, rel=0.05)
    others = [one for one in range(3) if one != k]
    assert (new.site.rate[others] == new.fleet.rate[others]).all()
