"""One policy for several tasks: what it is shown, how it acts, and which policies are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import ABOUT, BOTH, SIGNS, TASKS, arrays_of, fleets, side_by_side

from inferway.deployment.policies import spec_of
from inferway.dispatch import Dispatcher
from inferway.scheduling import UNKNOWN, Conditions, controller_of
from inferway.scheduling.neural_policy import About, read
from inferway.site import Fleet


def conditions(*own: Fleet) -> list[Conditions]:
    return [
        Conditions(fleet, about.deadline_s)
        for fleet, about in zip(own or fleets(), (ABOUT, SIGNS), strict=True)
    ]


def spec(place: Path, *tasks: str) -> Any:
    return spec_of("scheduling", "rl-po", checkpoint=place, tasks=tasks or TASKS)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    def write(arrays: dict[str, np.ndarray], name: str = "both.npz") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return path

    return write


def sites_of(own: list[Fleet]) -> list[Dispatcher]:
    return [Dispatcher(fleet, "steered", target=None) for fleet in own]


def act(controller: Any, sites: list[Dispatcher]) -> list[Any]:
    return list(controller.decide([one.site for one in sites], [UNKNOWN] * len(sites)))


def test_parts_that_look_at_nothing_of_each_other_decide_as_each_alone(
    save: Callable[..., Path],
) -> None:
    alone = [arrays_of(ABOUT, 1), arrays_of(SIGNS, 2)]
    joint = controller_of(spec(save(side_by_side(*alone))), conditions())
    sites = sites_of(fleets())
    for k, site in enumerate(sites):
        for number in range(3 + 2 * k):
            site.arrive(0.001 * number, number)
    found = act(joint, sites)
    for k, own in enumerate(conditions()):
        path = save(alone[k], f"alone-{k}.npz")
        one = controller_of(spec_of("scheduling", "rl-po", checkpoint=path), [own])
        assert one is not None
        (expected,) = one.decide([sites[k].site], [UNKNOWN])
        assert expected is not None
        np.testing.assert_allclose(found[k].probabilities, expected.probabilities, rtol=1e-5)
        assert found[k].largest.tolist() == expected.largest.tolist() == [1, 1]


def test_the_load_of_one_task_tells_on_the_routing_of_the_other(save: Callable[..., Path]) -> None:
    joint = controller_of(spec(save(arrays_of(BOTH))), conditions())
    sites = sites_of(fleets())
    before = act(joint, sites)
    assert [len(one.probabilities) for one in before] == [4, 3]
    assert [one.probabilities.sum() for one in before] == pytest.approx([1, 1])
    for number in range(8):
        sites[1].arrive(0.0, number)
    after = act(joint, sites)
    assert np.abs(after[0].probabilities - before[0].probabilities).max() > 1e-3


def test_a_store_goes_by_the_servers_of_all_tasks(save: Callable[..., Path]) -> None:
    fewer = replace(BOTH, counts=(2, 1), others=(replace(SIGNS, counts=(1, 1)),))
    save(arrays_of(BOTH), "store/all.npz")
    folder = save(arrays_of(fewer, 2), "store/fewer.npz").parent
    joint = controller_of(spec(folder), conditions())
    sites = sites_of(fleets())
    whole = act(joint, sites)
    sites[0].mark(2, False, 1.0)
    # Of these servers together there is no policy, so that each task is left to `deadline`.
    assert act(joint, sites) == [None, None]
    sites[1].mark(1, False, 1.0)
    left = act(joint, sites)
    assert left[0].probabilities[2] == left[1].probabilities[1] == 0.0
    assert all(one.probabilities.sum() == pytest.approx(1) for one in left)
    alone = controller_of(spec(folder / "fewer.npz"), conditions(*fleets(1, 1)))
    for found, expected in zip(left, act(alone, sites_of(fleets(1, 1))), strict=True):
        kept = found.probabilities[found.probabilities > 0]
        np.testing.assert_allclose(kept, expected.probabilities, rtol=1e-6)
    for site, server in zip(sites, (2, 1), strict=True):
        site.mark(server, True, 2.0)
    assert act(joint, sites)[0].probabilities.tolist() == whole[0].probabilities.tolist()


def test_a_file_says_all_that_it_was_trained_for(save: Callable[..., Path]) -> None:
    about = read(save(arrays_of(BOTH))).about
    assert about.parts == (ABOUT, SIGNS)
    assert about.outputs == 4 + 3
    assert about.inputs == 7 * (2 * 15 + 3)


@pytest.mark.parametrize(
    ("about", "tasks", "changes", "sentence"),
    [
        (
            BOTH,
            TASKS,
            {"large": 1},
            "for 1 tiny and 2 large, not for 1 tiny and 1 large of signs",
        ),
        (ABOUT, TASKS, {}, "was trained for one task, not for recognise and signs together"),
        (
            replace(SIGNS, others=(ABOUT,)),
            TASKS,
            {},
            "was trained for signs and recognise in this order: give `tasks` in it",
        ),
        (
            replace(BOTH, others=(replace(SIGNS, deadline_s=0.3),)),
            TASKS,
            {},
            "for a deadline of 300 ms, and the task signs has 200 ms",
        ),
    ],
)
def test_a_policy_of_something_else_is_refused(
    save: Callable[..., Path],
    about: About,
    tasks: tuple[str, ...],
    changes: dict[str, int],
    sentence: str,
) -> None:
    path = save(arrays_of(about))
    with pytest.raises(ValueError, match=sentence):
        controller_of(spec(path, *tasks), conditions(*fleets(**changes)))


def test_a_task_among_others_is_not_scheduled_alone(save: Callable[..., Path]) -> None:
    path, own = save(arrays_of(BOTH)), conditions()[0]
    with pytest.raises(ValueError, match="schedules recognise and signs together, and none of"):
        controller_of(spec(path), [own])
    with pytest.raises(ValueError, match="trained for recognise and signs together, not for one"):
        controller_of(spec(path, "recognise"), [own])


def test_a_damaged_part_is_refused(save: Callable[..., Path]) -> None:
    blank = replace(BOTH, others=(replace(SIGNS, counts=(0, 2)),))
    arrays = arrays_of(BOTH) | {"about": np.array(blank.to_json())}
    with pytest.raises(ValueError, match="its classes have no names, counts and service times"):
        read(save(arrays))
