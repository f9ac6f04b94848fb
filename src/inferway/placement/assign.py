"""Assign: which variants of all tasks take which devices of one site, decided anew every slot.

The program of `inferway.placement.assignment`, which `inferway plan` solves for the demand that a
file states, is solved here for the demand that has been seen: no future is looked at. Nothing moves
while the copies that there are do about as well as any could, and a move has to be worth the time
in which its device is empty. `Shift` says in which order devices change hands. There are no sockets
and no clocks here: the twin and the live server drive the same.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self

import numpy as np
from pydantic import BeforeValidator, Field

from inferway.deployment.errors import refuse
from inferway.deployment.units import PositiveNumber, PositiveSeconds
from inferway.dispatch.joint_bounds import JointMean, exceeds
from inferway.placement.assignment import (
    Asked,
    Assignment,
    Option,
    Slots,
    assign,
    fluid_bound,
    mean_over,
    options_of,
    slots_of,
)
from inferway.workload.peak import PERCENTILE, no_peak, percentile_of

if TYPE_CHECKING:
    from inferway.deployment import Node, Task

Key = tuple[str, str, str]  # Names of a task, a variant and a device

# Part of a device's slots that may be empty at once, on their way from one copy to another.
_EMPTY: Final = 0.25
WINDOW: Final = 30  # Slots that a percentile is of
_WEIGHT: Final = 0.5  # Of the last slot in the moving average
_STAY: Final = 6  # Slots that copies are likely to stay
# Mean accuracy by which copies may be worse than any could be before others are looked for, and
# by which others have to be better.
_ROOM: Final = 0.004
_GAIN: Final = 0.001
_GAP: Final = 1e-3  # Of the solver: less than what a move has to gain
_LEAST_PER_S: Final = 0.1  # A task without requests is asked for as seldom as that
_LATE_PER_S: Final = 1e-3  # A copy that is there and has become too slow carries next to nothing


class DemandForecast:
    """The rate of each task to be ready for, from the slots that have ended.

    Rates go by the exponentially weighted mean of the slots or by the last one, whichever is more:
    growth is followed at once, decline step by step. A peak of so many times that rate is asked
    for, or a percentile of the last `WINDOW` slots, where that is more. What is expected is that
    rate without its peak: copies are to answer it most accurately, and to have room for the rest.
    """

    def __init__(self, tasks: Sequence[str], peak: float | str) -> None:
        self._peak = peak
        self._mean: dict[str, float] = {}
        self._last: dict[str, deque[float]] = {name: deque(maxlen=WINDOW) for name in tasks}

    def to_json(self) -> dict[str, Any]:
        """Tell what it has seen, to go on from."""
        return {"mean": self._mean, "last": {name: [*last] for name, last in self._last.items()}}

    def go_on(self, told: Mapping[str, Any]) -> None:
        """Go on from what another one has told, of the tasks that are here, too."""
        for name, last in self._last.items():
            if name in told["mean"]:
                self._mean[name] = float(told["mean"][name])
                last.extend(float(rate) for rate in told["last"].get(name, ()))

    def see(self, rates_per_s: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
        """Take in the rates of a slot, 1/s; the rates to be ready for, 1/s.

        The second ones are those that are expected, without a peak.
        """
        percent = percentile_of(self._peak) if isinstance(self._peak, str) else None
        asked, expected = {}, {}
        for name, last in self._last.items():
            rate = rates_per_s.get(name, 0.0)
            last.append(rate)
            before = self._mean.get(name, rate)
            self._mean[name] = mean = before + _WEIGHT * (rate - before)
            level = max(mean, rate)
            expected[name] = max(level, _LEAST_PER_S)
            if percent is None:
                level *= float(self._peak)
            else:
                level = max(level, float(np.percentile(last, percent)))
            asked[name] = max(level, _LEAST_PER_S)
        return asked, expected


@dataclass(frozen=True)
class Decision:
    """What is wanted from now on, and why.

    Attributes
    ----------
    copies
        By task, variant and device.
    rates_per_s
        What there is to be room for, by task, 1/s.
    accuracy_before, accuracy
        Of all requests that are expected in the mean, 0..1, with the copies of before, and with
        these; one that is not served counts as 0. None where those of before are not what the
        devices hold, or not what is pinned.
    reason
        In words.
    moves
        Copies that go, and those that take their places.
    targets
        Of each target over several tasks, the mean of the answers before and with these copies:
        accuracy, 0..1, or energy, J; None where there are no answers to tell.
    """

    copies: dict[Key, int]
    rates_per_s: dict[str, float]
    accuracy_before: float | None
    accuracy: float | None
    reason: str
    moves: tuple[tuple[Key | None, Key | None], ...] = ()
    targets: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """By name; a copy is ``{"variant": "TASK/VARIANT", "device": NAME}``."""
        told: dict[str, Any] = {
            "rates_per_s": self.rates_per_s,
            "accuracy_before": self.accuracy_before,
            "accuracy": self.accuracy,
            "reason": self.reason,
            "moves": [{"from": _written(a), "to": _written(b)} for a, b in self.moves],
        }
        if self.targets:
            pairs = self.targets.items()
            told["targets"] = {name: {"before": a, "after": b} for name, (a, b) in pairs}
        return told


def _written(key: Key | None) -> dict[str, str] | None:
    if key is None:
        return None
    return {"variant": f"{key[0]}/{key[1]}", "device": key[2]}


def _peak(stated: Any) -> Any:
    """Refuse what is neither a number of times nor a percentile, with one sentence."""
    if isinstance(stated, str):
        fits = percentile_of(stated) is not None
    else:
        number = isinstance(stated, int | float) and not isinstance(stated, bool)
        fits = number and 0.0 < stated < np.inf
    if not fits:
        raise refuse(no_peak(stated))
    return stated


class Assign:
    """Re-assigns the devices of one site, slot by slot."""

    def __init__(
        self,
        slots: Slots,
        options: Sequence[Option],
        tasks: Mapping[str, Asked],
        *,
        slot_s: float,
        peak: float | str,
        best_effort: bool,
        means: Mapping[str, JointMean] | None = None,
    ) -> None:
        self.slots, self.options, self.slot_s = slots, list(options), slot_s
        self._tasks, self._every = dict(tasks), not best_effort
        self._means = dict(means or {})
        self.forecast = DemandForecast(list(tasks), peak)
        # Tasks and variants of which no copy is added: they could not be loaded.
        self.barred: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def build(
        cls,
        node: Node,
        tasks: Sequence[Task],
        means: Mapping[str, JointMean] | None = None,
        *,
        slot: Annotated[
            PositiveSeconds, Field(description="Time between two looks at the demand.")
        ] = 10.0,
        peak: Annotated[
            PositiveNumber | Annotated[str, Field(pattern=PERCENTILE)],
            BeforeValidator(_peak),
            Field(
                description="Devices are given out for so many times the rate that is seen, or for "
                "a percentile of it, such as p95, over the last 30 slots."
            ),
        ] = 1.2,
        best_effort: Annotated[
            bool, Field(description="Whether a task may be left without a copy.")
        ] = False,
    ) -> Self:
        """Make it for the devices of a node and the tasks that it answers.

        `means` are the targets over several of these tasks, by name.

        Raises
        ------
        ValueError
            Where the node has no devices, or no variant of a task can run on them in time.
        """
        if not node.devices:
            raise ValueError(f"nodes.{node.name}: has no `devices` to assign")
        deadlines_s = {task.name: task.deadline_s for task in tasks}
        options = options_of(node, tasks, deadlines_s)
        for task in tasks:
            if not any(one.task == task.name for one in options):
                raise ValueError(
                    f"tasks.{task.name}: no variant can run in time on the devices of {node.name}"
                )
        asked = {
            task.name: Asked(
                rate_per_s=0.0,
                target=task.accuracy_target,
                energy_budget=task.energy_budget,
                most=task.max_instances,
                least={v: n for (name, v), n in node.pinned.items() if name == task.name},
            )
            for task in tasks
        }
        return cls(
            slots_of(node),
            options,
            asked,
            slot_s=slot,
            peak=peak,
            best_effort=best_effort,
            means=means,
        )

    def weigh(self, node: Node, tasks: Sequence[Task]) -> None:
        """Go from now on by what copies are worth on the devices of a node as it is now.

        What requests take besides their models may be another than before. Copies of which none
        could keep its deadline any more may be there still: they carry next to nothing.
        """
        now = options_of(node, tasks, {task.name: task.deadline_s for task in tasks})
        known = {one.key for one in now}
        late = [one for one in self.options if one.key not in known]
        self.options = [*now, *(replace(one, carried_per_s=_LATE_PER_S) for one in late)]

    def first(self, rates_per_s: Mapping[str, float]) -> dict[Key, int]:
        """Copies to begin with at these rates, 1/s, where nothing else is there yet."""
        asked = {name: max(rates_per_s.get(name, 0.0), _LEAST_PER_S) for name in self._tasks}
        found = self._best(self.options, self._asked(asked, asked), every=self._every, gap=_GAP)
        if found is None:
            raise ValueError("the devices cannot hold a copy for every task and what is pinned")
        return found.copies

    def holds(self, copies: Mapping[Key, int]) -> bool:
        """Tell whether the devices hold these, and every task has what it is to have at least."""
        if not copies.keys() <= {one.key for one in self.options}:
            return False
        asked = self._asked({}, {})
        found = self._best(self.options, asked, held=copies, fixed=True, every=self._every)
        return found is not None

    def stated(self, place: Node, rates_per_s: Mapping[str, float]) -> dict[Key, int]:
        """Copies that a node lists, or where these do not fit what rates ask for, 1/s."""
        keys = {one.key for one in self.options}
        listed = {
            (task, variant, device): count
            for (task, variant), on in place.placed.items()
            for device, count in on.items()
            if (task, variant, device) in keys
        }
        used: Counter[str] = Counter()
        slots = {one.key: one.slots for one in self.options}
        for key, count in listed.items():
            used[key[2]] += count * slots[key]
        fits = all(used[device] <= most for device, most in self.slots.slots.items())
        if fits and {key[0] for key in listed} == set(self._tasks):
            return listed
        return self.first(rates_per_s)

    def step(self, rates_per_s: Mapping[str, float], held: Mapping[Key, int]) -> Decision:
        """Decide after a slot with these rates, 1/s, where these copies are there."""
        rates, expected = self.forecast.see(rates_per_s)
        options = [
            one
            for one in self.options
            if (one.task, one.variant) not in self.barred or held.get(one.key)
        ]
        asked = self._asked(rates, expected)
        now = self._best(options, asked, held=held, fixed=True, every=False)
        before = None if now is None else now.accuracy
        bound = fluid_bound(
            self.slots,
            options,
            {name: one.rate_per_s for name, one in asked.items()},
            {name: one.reserve_per_s for name, one in asked.items()},
        )
        if now is not None and now.worth >= bound - _ROOM:
            why = "about as accurate as any copies could be"
            return Decision(dict(held), rates, before, before, why)
        found = self._best(
            options,
            asked,
            held=held,
            stay_s=_STAY * self.slot_s,
            every=self._every,
            gap=_GAP,
        )
        if found is None or (now is not None and found.worth < now.worth + _GAIN):
            why = "no move gains what it costs"
            return Decision(dict(held), rates, before, before, why)
        short = [] if now is None else _short(now)
        missed = self._missed(options, asked, held) if short else []
        if now is None:
            why = "the devices do not hold what is there, or it lacks what is pinned"
        elif missed:
            why = f"the target{'s' * (len(missed) > 1)} {', '.join(missed)} would not be kept"
        elif short:
            why = f"{', '.join(short)} would not all be served"
        else:
            why = f"a mean accuracy of {found.accuracy:.4f} where it would be {now.accuracy:.4f}"
        moves = tuple(pairs(held, found.copies))
        targets = {
            name: (None if now is None else mean_over(mean, options, now.traffic_per_s), after)
            for name, mean in self._means.items()
            for after in [mean_over(mean, options, found.traffic_per_s)]
        }
        return Decision(found.copies, rates, before, found.accuracy, why, moves, targets)

    def _best(
        self, options: Sequence[Option], asked: Mapping[str, Asked], **settings: Any
    ) -> Assignment | None:
        return assign(self.slots, options, asked, means=[*self._means.values()], **settings)

    def _missed(
        self, options: Sequence[Option], asked: Mapping[str, Asked], held: Mapping[Key, int]
    ) -> list[str]:
        """Name the targets over several tasks for which alone requests would not be served."""
        if not self._means:
            return []
        free = assign(self.slots, options, asked, held=held, fixed=True, every=False)
        if free is None or _short(free):
            return []
        reached = {n: mean_over(one, options, free.traffic_per_s) for n, one in self._means.items()}
        return [
            name
            for name, mean in self._means.items()
            if (best := reached[name]) is not None and exceeds(mean, best)
        ]

    def _asked(
        self, rates_per_s: Mapping[str, float], expected_per_s: Mapping[str, float]
    ) -> dict[str, Asked]:
        """Ask for the best answers at the expected rates, and for room for those to be ready for.

        Tasks with a target or a budget keep it at the latter.
        """
        kept = {name for mean in self._means.values() for name in mean.tasks}
        kept |= {
            name
            for name, one in self._tasks.items()
            if one.target is not None or one.energy_budget is not None
        }
        found = {}
        for name, one in self._tasks.items():
            most = rates_per_s.get(name, _LEAST_PER_S)
            rate = most if name in kept else min(most, expected_per_s.get(name, _LEAST_PER_S))
            found[name] = replace(one, rate_per_s=rate, reserve_per_s=most - rate)
        return found


def _short(found: Assignment) -> list[str]:
    """Name the tasks of which not all would be served."""
    return [name for name, rate in found.unserved_per_s.items() if rate > 0.0]


class Step(NamedTuple):
    """The next thing to do for a copy: it takes no more requests, or it is loaded."""

    kind: Literal["retire", "load"]
    key: Key


class Shift:
    """Devices on their way from the copies that are there to those that are wanted.

    A copy that goes takes no more requests and answers those that it has; then its place is free.
    A copy that comes is loaded on a free place, and takes requests when it is ready. A quarter of a
    device's slots at most, and one copy at least, is on the way at once. A task's last copy goes
    when another of its copies is ready, unless nothing else could free its place.
    """

    def __init__(self, slots: Slots, options: Sequence[Option], held: Mapping[Key, int]) -> None:
        self._slots = slots
        self._option = {one.key: one for one in options}
        self.serving = Counter(held)
        self.draining: Counter[Key] = Counter()
        self.loading: Counter[Key] = Counter()
        self.wanted: Mapping[Key, int] = dict(held)

    def weigh(self, options: Sequence[Option]) -> None:
        """Go from now on by these, which are no fewer than before."""
        self._option = {one.key: one for one in options}

    @property
    def there(self) -> dict[Key, int]:
        """Copies that serve or are being loaded."""
        return {key: n for key, n in (self.serving + self.loading).items() if n > 0}

    @property
    def under_way(self) -> bool:
        """True while a copy is drained or loaded."""
        return bool(+self.draining or +self.loading)

    def next(self) -> Step | None:
        """The next step that can be taken, which counts as begun; None for none now."""
        steps = (act(device) for act in (self._load, self._retire) for device in self._slots.slots)
        return next((step for step in steps if step is not None), None)

    def drained(self, key: Key) -> None:
        """A copy that was to go has answered its last request."""
        self.draining[key] -= 1

    def loaded(self, key: Key) -> None:
        """A copy is ready."""
        self.loading[key] -= 1
        self.serving[key] += 1

    def _missing(self, device: str) -> Iterator[Key]:
        there = self.serving + self.loading
        lacking = [
            key for key, n in self.wanted.items() if key[2] == device and n > there.get(key, 0)
        ]
        # The task that has least of what it is to have comes first.
        yield from sorted(lacking, key=lambda key: self._part(key[0]))

    def _part(self, task: str) -> float:
        have, want = (
            sum(n * self._option[key].carried_per_s for key, n in some.items() if key[0] == task)
            for some in (self.serving, self.wanted)
        )
        return have / want if want else 1.0

    def _load(self, device: str) -> Step | None:
        for key in self._missing(device):
            if self._fits(key):
                self.loading[key] += 1
                return Step("load", key)
        return None

    def _retire(self, device: str) -> Step | None:
        # What is more than wanted stays where nothing else is to have its place.
        others = self._slots.slots if self._slots.budget_bytes is not None else (device,)
        if not any(True for other in others for _ in self._missing(other)):
            return None
        moving = sum(
            n * self._option[key].slots
            for key, n in (self.draining + self.loading).items()
            if key[2] == device
        )
        if moving and moving >= _EMPTY * self._slots.slots[device]:
            return None
        surplus = [
            key
            for key, n in self.serving.items()
            if key[2] == device and n > self.wanted.get(key, 0)
        ]
        for key in sorted(surplus, key=lambda key: -self._part(key[0])):
            serving = sum(n for one, n in self.serving.items() if one[0] == key[0])
            if serving > 1 or not self.wanted_of(key[0]) or not self.under_way:
                self.serving[key] -= 1
                self.draining[key] += 1
                return Step("retire", key)
        return None

    def wanted_of(self, task: str) -> int:
        """Copies of a task that are wanted."""
        return sum(n for key, n in self.wanted.items() if key[0] == task)

    def _fits(self, key: Key) -> bool:
        device, own = key[2], self._option[key]
        taken = memory = total = 0
        for other, n in (self.serving + self.draining + self.loading).items():
            one = self._option[other]
            total += n * (one.size_bytes or 0)
            if other[2] == device:
                taken += n * one.slots
                memory += n * (one.size_bytes or 0)
        size = own.size_bytes or 0
        most = self._slots.memory_bytes.get(device)
        budget = self._slots.budget_bytes
        return (
            taken + own.slots <= self._slots.slots[device]
            and (most is None or memory + size <= most)
            and (budget is None or total + size <= budget)
        )


def with_copies(place: Node, copies: Mapping[Key, int]) -> Node:
    """A node with these copies on its devices, and no others."""
    placed: dict[tuple[str, str], dict[str, int]] = {}
    for (task, variant, device), count in copies.items():
        if count > 0:
            placed.setdefault((task, variant), {})[device] = count
    return replace(
        place, placed=placed, instances={key: sum(on.values()) for key, on in placed.items()}
    )


def pairs(
    held: Mapping[Key, int], wanted: Mapping[Key, int]
) -> list[tuple[Key | None, Key | None]]:
    """Pair copies that go with those that take their places, by device.

    None stands for a place that was free, or stays so.
    """
    gone: dict[str, list[Key]] = {}
    come: dict[str, list[Key]] = {}
    for key in dict.fromkeys([*held, *wanted]):
        more = wanted.get(key, 0) - held.get(key, 0)
        (come if more > 0 else gone).setdefault(key[2], []).extend([key] * abs(more))
    found: list[tuple[Key | None, Key | None]] = []
    for device in dict.fromkeys([*gone, *come]):
        going, coming = gone.get(device, []), come.get(device, [])
        found += zip_longest(going, coming)
    return found
