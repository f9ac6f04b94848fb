"""What a policy reads decides how much of the view is kept up."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from inferway.deployment import Batch, ServiceTime
from inferway.dispatch import POLICIES
from inferway.dispatch.contract import policy_class
from inferway.site import HOLD, idle_in, predicted_wait
from inferway.twin.engine import (
    asks_for_waits,
    kinds_of,
    names_read,
    reads_times,
    watches_room,
)


class Directly(NamedTuple):
    def choose(self, site: Any, request: Any, draw: int) -> int:
        return int(site.free_s[0] > 0)


class ThroughAFunction(NamedTuple):
    def choose(self, site: Any, request: Any, draw: int) -> int:
        return int(predicted_wait(site, 0) > 0)


class InLearn(NamedTuple):
    def choose(self, site: Any, request: Any, draw: int) -> int:
        return 0

    def learn(self, site: Any, event: Any) -> None:
        print(event.wait_s)


class Inside(NamedTuple):
    def choose(self, site: Any, request: Any, draw: int) -> int:
        return min(range(3), key=lambda server: site.ends_s[server])


class AtDevices(NamedTuple):
    def choose(self, site: Any, request: Any, draw: int) -> int:
        return int(site.devices.free_s[0, 0] > site.clock_s[0])


class InCrowds(NamedTuple):
    def choose(self, site: Any, request: Any, draw: int) -> int:
        return int(site.devices.crowd[0, 0] > 3)


class AfterDeciding(NamedTuple):
    def choose(self, site: Any, request: Any, draw: int) -> int:
        return 0

    def learn(self, site: Any, event: Any) -> None:
        print(predicted_wait(site, 0))


class Watching(NamedTuple):
    def choose(self, site: Any, request: Any, draw: int) -> int:
        return 0

    def learn(self, site: Any, event: Any) -> None:
        print(idle_in(site, event, 0))


class Pulling(NamedTuple):
    def choose(self, site: Any, request: Any, draw: int) -> int:
        return 0

    def pull(self, site: Any, server: int, draw: int) -> tuple[int, int]:
        return 0, 1


class Holding(NamedTuple):
    def choose(self, site: Any, request: Any, draw: int) -> int:
        return HOLD if site.queue[0] > 3 else 0


@pytest.mark.parametrize("policy", [Directly, ThroughAFunction, InLearn, Inside])
def test_times_are_noticed(policy: type) -> None:
    assert reads_times(policy)


def test_lengths_are_not_times() -> None:
    assert not reads_times(Holding)
    assert "HOLD" in names_read(Holding)
    lengths_alone = {name for name in POLICIES if not reads_times(policy_class(name))}
    assert lengths_alone >= {"tad-op", "tad", "priced", "r-jiq", "r-jsq", "r-jsq-d", "jiq-fast"}


def test_devices_are_looked_ahead_at_where_nobody_can_tell_when() -> None:
    assert asks_for_waits(ThroughAFunction)
    assert all(asks_for_waits(policy_class(name)) for name in ("priced", "escalate", "deadline"))
    themselves = Directly, AtDevices, InCrowds, AfterDeciding
    assert not any(asks_for_waits(one) or not reads_times(one, devices=True) for one in themselves)


def test_who_may_look_at_the_room_that_a_run_leaves() -> None:
    assert watches_room(Watching)
    assert watches_room(AfterDeciding)
    assert watches_room(Pulling)
    assert watches_room(policy_class("escalate"))
    only_decide = (policy_class(name) for name in ("priced", "deadline", "tad-op", "tad"))
    assert not any(watches_room(one) for one in (InLearn, *only_decide))


def test_the_fastest_engine_that_can(tmp_path: Path, scenario: Any) -> None:
    from dataclasses import replace

    assert kinds_of(scenario) == ("markov", "general")
    assert kinds_of(scenario, records=True) == ("general",)
    fixed = tuple(ServiceTime("deterministic", time.mean_s) for time in scenario.service)
    assert kinds_of(replace(scenario, service=fixed)) == ("ordered", "general")
    mixed = (fixed[0], scenario.service[1])
    assert kinds_of(replace(scenario, service=mixed)) == ("general",)
    for change in ({"deadline_s": 1.0}, {"queue": "central"}):
        assert kinds_of(replace(scenario, **change)) == ("general",)
        assert kinds_of(replace(scenario, service=fixed, **change)) == ("ordered", "general")
    batches = (Batch((1,), (0.5,), 1, 1), None)
    assert kinds_of(replace(scenario, batches=batches)) == ("general",)
    assert kinds_of(replace(scenario, service=fixed, batches=batches)) == ("general",)
    measured = {scenario.fleet.variants[0]: {1: (0.5, 0.9)}}
    assert kinds_of(replace(scenario, measured_s=measured)) == ("general",)
