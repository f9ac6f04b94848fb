"""Chances of servers that are left out for a time that was measured once."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.dispatch import Dispatcher
from inferway.dispatch.recording import OF_CHANCES, Recording
from inferway.dispatch.replay import replay
from inferway.dispatch.service_times import carry_over
from inferway.site import Fleet
from inferway.site.chances import BELIEVED, FEW, PAUSE, REST, TRIED
from inferway.site.transitions import forget, measure, set_health
from inferway.site.view import empty_site
from inferway.twin.kernel.state import deeper

PROFILE_S, SLOW_S, DEADLINE_S = 0.0113, 0.112, 0.060
SMALL, LARGE = 0, 1
FLEET = Fleet(
    ("small", "large"),
    np.array([1 / 0.002, 1 / PROFILE_S]),
    np.array([0.8, 0.95]),
    np.array([1, 1]),
)
ALONE = Fleet(("large",), np.array([1 / PROFILE_S]), np.array([0.95]), np.array([1]))
Times = Callable[[int, float], float]  # Service time of the server that starts at a time, s


def dispatcher_of(policy: str = "deadline", fleet: Fleet = FLEET, **options: Any) -> Dispatcher:
    target = 0.95 if policy == "tad" else None
    return Dispatcher(fleet, policy, target=target, **({"measure": True} | options))


def course(
    dispatcher: Any,
    takes_s: Times,
    requests: int,
    *,
    gap_s: float = 0.15,
    deadline_s: float = DEADLINE_S,
) -> Iterator[int]:
    """Send requests so far apart, one by one; where each went."""
    site, ends = dispatcher.site, list[tuple[float, int, float]]()
    start_s = float(site.clock_s[0])
    for number in range(1, requests + 1):
        now_s = start_s + number * gap_s
        while ends and ends[0][0] <= now_s:
            at_s, server, service_s = heapq.heappop(ends)
            dispatcher.finish(server, at_s, service_s)
            if site.queue[server]:
                service_s = takes_s(server, at_s)
                heapq.heappush(ends, (at_s + service_s, server, service_s))
        server = dispatcher.arrive(now_s, number, now_s + deadline_s)
        if server >= 0 and site.queue[server] == 1:
            service_s = takes_s(server, now_s)
            heapq.heappush(ends, (now_s + service_s, server, service_s))
        yield server
    for at_s, server, service_s in sorted(ends):
        dispatcher.finish(server, at_s, service_s)


def once(many: int = 1) -> Times:
    """The large one is slow in its first runs, and then as its profile says."""
    left = [many]

    def takes_s(server: int, now_s: float) -> float:
        if server == SMALL:
            return 0.002
        left[0] -= 1
        return SLOW_S if left[0] >= 0 else PROFILE_S

    return takes_s


@pytest.mark.parametrize("policy", ["deadline", "tad"])
def test_one_slow_run_leaves_a_server_out_for_few_requests_only(policy: str) -> None:
    went = list(course(dispatcher_of(policy), once(), 300))
    assert went[0] == LARGE
    first = went.index(LARGE, 1)
    assert LARGE not in went[1:first]
    assert first < REST + PAUSE
    assert set(went[first:]) == {LARGE}


@pytest.mark.parametrize("policy", ["deadline", "tad"])
def test_a_server_that_stays_slow_takes_a_vanishing_part(policy: str) -> None:
    dispatcher, requests = dispatcher_of(policy), 6_000
    went = np.array(list(course(dispatcher, once(requests), requests)))
    tried = np.flatnonzero(went == LARGE)
    # The first is no chance: the profile says that it is quick.
    assert 5 <= len(tried) - 1 <= math.log2(1 + requests / REST)
    apart = np.diff(tried)
    assert REST <= apart[0] < REST + PAUSE
    assert (apart[2:] == 2 * apart[1:-1]).all()
    # It is as slow as it was measured whenever it is not tried.
    assert dispatcher.site.row_s[LARGE, 0] == pytest.approx(SLOW_S)


def test_one_that_is_tried_takes_no_second_request_whatever_else_happens() -> None:
    dispatcher = dispatcher_of(fleet=ALONE)
    site = dispatcher.site
    forget(site, 0)
    assert dispatcher.arrive(1.0, 1, 1.0 + DEADLINE_S) == 0
    assert not site.open[0]
    assert not deeper(site).open[0]
    set_health(site, 0, False)
    set_health(site, 0, True)
    assert not site.open[0]
    dispatcher.finish(0, 1.02, PROFILE_S)
    assert site.open[0]
    assert deeper(site).open[0]


def test_a_server_that_its_profile_says_is_late_has_no_chance() -> None:
    dispatcher = dispatcher_of()
    measure(dispatcher.site, LARGE, 1, SLOW_S)
    # Late by the profile as well: of 10 ms, only the small one is in time.
    assert set(course(dispatcher, once(0), 500, deadline_s=0.010)) == {SMALL}
    assert dispatcher.site.chances[LARGE] == 0
    assert dispatcher.site.row_s[LARGE, 0] == SLOW_S


def test_nobody_joins_who_is_tried() -> None:
    dispatcher = dispatcher_of("deadline")
    measure(dispatcher.site, LARGE, 1, SLOW_S)
    # Of many that come at once, within the profile's time.
    went = list(course(dispatcher, once(1), PAUSE + 20, gap_s=0.0005))
    assert went.count(LARGE) == 1
    assert dispatcher.site.open.all()


def test_requests_without_a_deadline_are_no_chances() -> None:
    dispatcher = dispatcher_of()
    measure(dispatcher.site, SMALL, 1, SLOW_S)
    assert set(course(dispatcher, once(0), 200, deadline_s=math.inf)) == {LARGE}
    assert dispatcher.site.asked[0] == 0
    assert not dispatcher.site.chances.any()


def test_who_is_withdrawn_leaves_the_chance_to_the_next() -> None:
    dispatcher = dispatcher_of(fleet=ALONE)
    measure(dispatcher.site, 0, 1, SLOW_S)
    *_, last = (dispatcher.arrive(n * 0.05, n, n * 0.05 + DEADLINE_S) for n in range(PAUSE))
    assert last == 0
    assert dispatcher.site.again[0] == TRIED
    dispatcher.withdraw(0, 0, 2.0)
    assert dispatcher.arrive(2.1, 1, 2.1 + DEADLINE_S) == 0
    assert dispatcher.arrive(2.1, 1, 2.1 + DEADLINE_S) == -1  # one at a time
    dispatcher.finish(0, 2.15, PROFILE_S)
    assert dispatcher.arrive(2.2, 1, 2.2 + DEADLINE_S) == 0
    assert dispatcher.arrive(2.2, 1, 2.2 + DEADLINE_S) == 0


def test_at_first_a_much_shorter_time_is_believed_whole() -> None:
    for slow in range(1, FEW):
        site = empty_site(ALONE, None, 2)
        for _ in range(slow):
            measure(site, 0, 1, SLOW_S)
        measure(site, 0, 1, PROFILE_S)
        assert (site.row_s[0, 0], site.slow_s[0, 0]) == (PROFILE_S, PROFILE_S)
    for _ in range(FEW):
        measure(site, 0, 1, PROFILE_S)
    measure(site, 0, 1, PROFILE_S / 3)  # later, one run says little
    assert site.row_s[0, 0] > 0.9 * PROFILE_S


def test_a_slower_machine_is_believed_at_once_and_ordinary_noise_as_ever() -> None:
    site = empty_site(ALONE, None, 2)
    measure(site, 0, 1, SLOW_S)
    assert site.row_s[0, 0] == SLOW_S
    measure(site, 0, 1, 0.6 * SLOW_S)
    assert site.row_s[0, 0] == pytest.approx(SLOW_S * math.exp(-0.25))


def test_who_is_believed_again_has_the_next_chance_as_soon_as_at_first() -> None:
    dispatcher = dispatcher_of()
    site = dispatcher.site
    site.chances[:] = 7
    for _ in range(BELIEVED - 1):
        measure(site, LARGE, 1, PROFILE_S)
    assert (site.chances[LARGE], site.again[LARGE]) == (7, REST << 7)
    measure(site, LARGE, 1, PROFILE_S)
    assert (site.chances[LARGE], site.again[LARGE]) == (0, REST)


def passing(since_s: float, until_s: float) -> Times:
    """All servers are ten times as slow for a while."""

    def takes_s(server: int, now_s: float) -> float:
        own_s = 0.002 if server == SMALL else PROFILE_S
        return own_s * (10.0 if since_s <= now_s < until_s else 1.0)

    return takes_s


@pytest.mark.parametrize("measures", [True, False])
@pytest.mark.parametrize("lasts_s", [5.0, 20.0])
def test_what_deadline_learned_of_a_slow_while_is_forgotten(measures: bool, lasts_s: float) -> None:
    dispatcher = dispatcher_of(measure=measures)
    takes_s = passing(10.0, 10.0 + lasts_s)
    went = np.array(list(course(dispatcher, takes_s, 2_400, gap_s=0.05)))
    slow = slice(200, 200 + int(20 * lasts_s))
    assert (went[slow.start + 70 : slow.stop] == LARGE).mean() < 0.1
    # It has the next chance as late as it was slow for, at most.
    assert (went[slow.stop + 20 * int(lasts_s) + 4 * PAUSE :] == LARGE).all()


def test_what_deadline_learned_of_who_stays_slow_is_tried_less_and_less() -> None:
    dispatcher, requests = dispatcher_of(measure=False), 6_000
    went = list(course(dispatcher, once(requests), requests))
    assert went.count(LARGE) - 1 <= math.log2(1 + requests / REST)


def test_a_chance_of_deadline_whose_run_is_not_measured_is_not_the_last() -> None:
    dispatcher = dispatcher_of(measure=False)
    went = list(course(dispatcher, once(), PAUSE - 1))
    assert went.count(LARGE) == 1
    now_s = float(dispatcher.site.clock_s[0]) + 1.0
    assert dispatcher.arrive(now_s, 1, now_s + DEADLINE_S) == LARGE
    dispatcher.finish(LARGE, now_s + PROFILE_S, PROFILE_S, -1)  # it took a way out of the ordinary
    assert LARGE in list(course(dispatcher, once(0), 4 * PAUSE))


def test_one_slow_run_is_not_the_mean_of_deadline() -> None:
    dispatcher = dispatcher_of(measure=False)
    list(course(dispatcher, once(), 2, deadline_s=10.0))
    assert dispatcher.policy.mean[0] == 1.0


def recorded(folder: Path, dispatcher: Dispatcher, requests: int) -> list[int]:
    recording = Recording(dispatcher, folder, rows=100)
    went = list(course(recording, once(), requests))
    recording.close()
    return went


@pytest.mark.parametrize("policy", ["deadline", "tad"])
def test_recordings_replay_with_the_chances_that_servers_had(tmp_path: Path, policy: str) -> None:
    dispatcher = dispatcher_of(policy)
    went = recorded(tmp_path / "run", dispatcher, 400)
    assert LARGE in went[100:]
    found = replay(tmp_path / "run", requests=None)
    assert (found.requests, found.differences, found.losses) == (400, (), ())


@pytest.mark.parametrize("policy", ["deadline", "tad"])
def test_recordings_of_before_replay_without_chances(tmp_path: Path, policy: str) -> None:
    dispatcher = dispatcher_of(policy)
    dispatcher.site.asked[0] = -1  # as it was decided then
    went = recorded(tmp_path / "run", dispatcher, 400)
    assert LARGE not in went[100:]
    with_chances = replay(tmp_path / "run", requests=None)
    assert with_chances.differences == ()  # a state says that there are none
    head = tmp_path / "run" / "recording.json"
    head.write_text(json.dumps(json.loads(head.read_text()) | {"schema": 9}))
    gone = {f"site.{name}" for name in OF_CHANCES} | {"policy.again", "policy.chances"}
    for file in (tmp_path / "run").glob("*.state.npz"):
        with np.load(file) as state:
            before = {name: array for name, array in state.items() if name not in gone}
        np.savez_compressed(file, **before)
    found = replay(tmp_path / "run", requests=None)
    assert (found.requests, found.differences, found.losses) == (400, (), ())


def test_a_part_of_what_is_said_of_chances_is_none(tmp_path: Path) -> None:
    recorded(tmp_path / "run", dispatcher_of(), 50)
    (file,) = (tmp_path / "run").glob("*1.state.npz")
    with np.load(file) as state:
        whole = dict(state)
    for name, wrong in (("again", None), ("first_s", -1.0), ("chances", -1), ("asked", -2)):
        part = {key: array for key, array in whole.items() if key != f"site.{name}"}
        if wrong is not None:
            part[f"site.{name}"] = np.full_like(whole[f"site.{name}"], wrong)
        np.savez_compressed(file, **part)
        (loss,) = replay(tmp_path / "run", requests=None).losses[:1]
        assert f"site.{name}" in loss or f"{name} is none" in loss


def test_another_fleet_goes_on_with_the_pauses_of_the_one_before() -> None:
    old = dispatcher_of()
    list(course(old, once(1_000), 500))
    new = dispatcher_of()
    carry_over(new, old, FLEET.variants)
    for name in ("asked", "again", "chances"):
        assert (getattr(new.site, name) == getattr(old.site, name)).all()
    assert new.site.first_s[LARGE, 0] == PROFILE_S
    assert new.site.chances[LARGE] > 0


def test_a_chance_that_is_not_over_comes_later_in_another_fleet() -> None:
    old = dispatcher_of()
    measure(old.site, LARGE, 1, SLOW_S)
    list(course(old, once(1), PAUSE))
    old.site.again[LARGE] = TRIED
    new = dispatcher_of()
    carry_over(new, old, FLEET.variants)
    assert new.site.again[LARGE] == PAUSE + (REST << int(old.site.chances[LARGE]))
