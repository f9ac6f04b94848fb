"""Sites of several tasks that one policy decides for, as one ([Tan24], Sec. 6.2).

Each task has sites of its own, of which the e-th belong together: what is observed of them stands
one behind the other, as `inferway.scheduling.store` has it for a deployed policy, an action has a
part for each, and their rewards are added up. Where the tasks share devices, the e-th sites run
in one loop of the twin; else each by itself, as meanwhile nothing of one matters to another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.learning.by_events import EventSites
from inferway.learning.control import Control
from inferway.site.view import Floats, Ints
from inferway.twin.joint import JointLoop, SharingEngine, engines_of, seed_among, share_devices


class JointSites:
    """E sites of each of several tasks in lockstep, one decision for all tasks and slot.

    Attributes and calls are as of `inferway.learning.site.SlottedSites`, with servers, classes and
    observations task by task; `parts` has the sites of each task.
    """

    def __init__(self, control: Control, parts: list[Any]) -> None:
        self.control, self.parts = control, parts
        self.count = parts[0].count
        self._servers = np.cumsum([one.control.scenario.fleet.servers for one in parts])[:-1]
        self._classes = np.cumsum([len(one.control.scenario.fleet.rate) for one in parts])[:-1]
        self._scenarios = [one.control.scenario for one in parts]
        named = {str(place): one for place, one in enumerate(self._scenarios)}
        self._shares = share_devices(named)
        self._loops: list[JointLoop] = []
        self._engines: list[list[SharingEngine]] = []
        self.observation = np.zeros((self.count, control.features), np.float32)
        self.rewards = np.zeros(self.count)
        self.arrivals = np.zeros(self.count, np.int64)
        self.clock_s = parts[0].clock_s

    def restart(self, seed: int) -> None:
        """Empty all sites, as `SlottedSites.restart` does; each task draws from its own streams."""
        seeds = [seed_among(seed, place) for place in range(len(self.parts))]
        if not self._shares:
            for part, own in zip(self.parts, seeds, strict=True):
                part.restart(own)
        else:
            events = self._events()
            self._engines = [
                engines_of(
                    [one.scenario for one in events],
                    seeds=seeds,
                    replication=e,
                    sinks=[None] * len(events),
                    shared=None,
                )
                for e in range(self.count)
            ]
            for place, (part, own) in enumerate(zip(events, seeds, strict=True)):
                part.restart(own, [engines[place] for engines in self._engines])
            self._loops = [JointLoop(engines) for engines in self._engines]
        self._gather()

    def step(self, probabilities: Floats, batches: Ints | None = None) -> Floats:
        """Run all sites for a slot; the (E,) rewards, in place as `rewards`."""
        routing = [np.ascontiguousarray(one) for one in self._split(probabilities, self._servers)]
        rules: list[Ints | None] = [None] * len(self.parts)
        if batches is not None:
            rules = [*self._split(batches, self._classes)]
        if not self._shares:
            for part, own, rule in zip(self.parts, routing, rules, strict=True):
                part.step(own, rule)
        else:
            events = self._events()
            for part, own, rule in zip(events, routing, rules, strict=True):
                part.route(own, rule)
            for e, (engines, loop) in enumerate(zip(self._engines, self._loops, strict=True)):
                until_s = float(self.clock_s[e]) + self.control.slot_s
                for part, engine in zip(events, engines, strict=True):
                    engine.offer(*part.arriving(e, until_s), until_s)
                loop.run(until_s)
            for part in events:
                part.end_slot()
        self._gather()
        return self.rewards

    def clear(self) -> None:
        """Count anew."""
        for part in self.parts:
            part.clear()

    def state(self) -> dict[str, NDArray[Any]]:
        """Copy all that changes, for `restore`."""
        return {
            f"{place}.{name}": array
            for place, part in enumerate(self.parts)
            for name, array in part.state().items()
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on where `state` was taken, to the last digit; ValueError for another kind of site."""
        for place, part in enumerate(self.parts):
            before = f"{place}."
            own = {k.removeprefix(before): v for k, v in state.items() if k.startswith(before)}
            part.restore(own)
        self._gather()

    def _events(self) -> list[EventSites]:
        return [part for part in self.parts if isinstance(part, EventSites)]

    def _split(self, array: Any, ends: Any) -> list[Any]:
        return np.split(array, ends, axis=1)

    def _gather(self) -> None:
        np.concatenate([part.observation for part in self.parts], axis=1, out=self.observation)
        np.sum([part.rewards for part in self.parts], axis=0, out=self.rewards)
        np.sum([part.arrivals for part in self.parts], axis=0, out=self.arrivals)
