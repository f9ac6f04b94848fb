"""Sites that run event by event in the twin's engine: under `late: drop`, or where services drift.

A deployed site with that key leaves out, before the policy's choice, each server that is predicted
to answer late, turns a request away where none is left, and drops one that waits when its deadline
has passed. What is predicted depends on all that came before, so a slot is no matter of arrivals
alone as in `inferway.learning.routed`. Each site here is a `GeneralEngine` of the twin with the
policy `alias`, so what happens is what happens there, and what is observed is written by
`inferway.scheduling.observation`, as for a deployed policy.

Service times may drift (`inferway.twin.service_walk`): each site has a factor of its own, drawn
when it begins and moved after each slot. Servers may fail and return at any time; all are there at
the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.dispatch.alias import set_routing
from inferway.learning.arrivals import Flow, begin, flow_of, next_event
from inferway.learning.control import Control
from inferway.learning.routed import Outcomes, PhaseCounts
from inferway.scheduling import Signal
from inferway.scheduling.observation import observe
from inferway.site.compiled import entry
from inferway.site.draw import streams
from inferway.site.view import Floats, Ints
from inferway.twin.engine import GeneralEngine, engine_of
from inferway.twin.kernel.others import Others
from inferway.twin.kernel.state import REROUTED
from inferway.twin.scenario import Scenario

_ROOM = 1024  # Arrivals of a slot that there is room for, to begin with
# Counters of the twin that count here; its others, which are larger, all sites write together.
_COUNTED = ("arrived", "rejected", "dropped", "sent", "answered", "late")


def come(
    flow: Flow, e: int, until_s: float, state: Any, at: int, times_s: Floats, phases: Ints
) -> Any:
    """Write the arrivals of site e up to a time from place `at` on; how many there are then.

    Also the state of the stream. As many as there are places: there may be more.
    """
    phase, next_s = flow.phase[e], flow.next_s[e]
    while next_s <= until_s and at < times_s.size:
        now_s, then = next_s, phase
        arrives, phase, next_s, state = next_event(flow, e, phase, now_s, state)
        if arrives:
            times_s[at] = now_s
            phases[at] = then
            at += 1
    flow.phase[e], flow.next_s[e] = phase, next_s
    return at, state


_COME: Any = entry(come)


class EventSites:
    """E sites in lockstep, one decision per site and slot, as they are deployed.

    Attributes and calls as of `inferway.learning.site.SlottedSites`, and arrivals are the same
    for the same seed. `outcomes.rejected` and `counts.rejected` have who was turned away, since no
    server was predicted to be in time, `counts.dropped` who waited until it was too late; each
    costs the reward what a rejected request does. Batches that are begun are not counted.

    Attributes
    ----------
    factor
        (E,) by which services take longer than is said; 1 where they do not drift.
    away
        (E, n) uint8: servers that are away where the slot ends are not 0.
    """

    def __init__(self, control: Control, *, count: int = 1, seed: int = 0) -> None:
        if count < 1:
            raise ValueError(f"at least one site, not {count}")
        self.control, self.count = control, count
        self._scenario = replace(
            control.scenario, policy="alias", options={}, scheduling=None, targets=(), target=None
        )
        fleet, phases = self._scenario.fleet, control.phases
        classes = len(fleet.rate)
        own = [(1, 1) if batch is None else (batch.min, batch.max) for batch in control.offered]
        self._own_batches = np.array([own] * count, np.int64)
        self._layout = control.about().layout
        self._worth = control.accuracy_weight * np.array(control.reward_gains)
        self._flow = flow_of(self._scenario.arrivals, self._scenario.capacity_per_s, count)
        self._streams = np.zeros(count, np.uint64)  # Of arrivals
        self._random = [np.random.default_rng(0)] * count  # Of the drift
        self._times_s, self._phases = np.zeros(_ROOM), np.zeros(_ROOM, np.int64)
        self._engines: list[GeneralEngine] = []
        self._tally: dict[str, Ints] = {}
        self._before: dict[str, Ints] = {}  # The same when the slot began

        def ints(*shape: int) -> Ints:
            return np.zeros((count, *shape), np.int64)

        self.counts = PhaseCounts(
            arrived=ints(phases),
            rejected=ints(phases),
            dropped=ints(phases),
            sent=ints(phases, classes),
            answered=ints(phases, classes, 2),
            batches=ints(phases, classes),
        )
        self.outcomes = Outcomes(ints(), ints(), ints(), ints(classes))
        self.arrivals = self.outcomes.arrived
        self.observation = np.zeros((count, control.features), np.float32)
        self.rewards, self.clock_s = np.zeros((2, count))
        self.factor = np.ones(count)
        self.away = np.zeros((count, fleet.servers), np.uint8)
        self.phase = self._flow.phase
        self.restart(seed)

    def restart(self, seed: int, engines: Sequence[GeneralEngine] = ()) -> None:
        """Empty all sites, at time 0, the workload somewhere in its long run.

        Where services drift, each site draws where its drift begins. `engines` are those of the
        sites where they share devices with other tasks; see `inferway.learning.together`.
        """
        walk = self._scenario.walk
        self._engines = []
        self.clock_s[:] = self.rewards[:] = 0.0
        for array in self.outcomes:
            array[:] = 0
        for e in range(self.count):
            self._streams[e] = streams(seed, e, 3)[2]
            workload = np.random.default_rng(streams(seed, e, 4)[3])
            begin(self._flow, e, self._scenario.arrivals, workload)
            made = engines[e] if engines else self._made(seed, e)
            bound = made.world.bound._replace(measures=walk is not None)
            made.world = made.world._replace(bound=bound)
            made.count_anew()
            self._engines.append(made)
            self._random[e] = np.random.default_rng([seed, e, 5])
            self.factor[e] = 1.0 if walk is None else walk.begin(self._random[e])[0]
        self._share()
        self.clear()
        self._look()

    @property
    def scenario(self) -> Scenario:
        """What an engine runs: routed at random, without the drift of a run of the twin."""
        return replace(self._scenario, walk=None)  # here a slot is a step of it

    def _made(self, seed: int, e: int) -> GeneralEngine:
        made = engine_of(self.scenario, seed=seed, replication=e, kind="general")
        assert isinstance(made, GeneralEngine)
        return made

    def _share(self) -> None:
        """Let the counters of all sites, and what batches take, lie in arrays of all sites."""
        worlds = [engine.world for engine in self._engines]
        self._tally = {
            name: np.stack([getattr(world.tally, name) for world in worlds]) for name in _COUNTED
        }
        self._said_s = worlds[0].laws.batch_s.copy()
        self._batch_s = np.stack([self._said_s] * self.count)
        self._slow()
        rest = worlds[0].tally
        for e, engine in enumerate(self._engines):
            own = rest._replace(**{name: of[e] for name, of in self._tally.items()})
            laws = engine.world.laws._replace(batch_s=self._batch_s[e])
            engine.tally, engine.world = own, engine.world._replace(tally=own, laws=laws)

    def _slow(self) -> None:
        self._batch_s[:] = self._said_s * self.factor[:, None, None]

    def step(self, probabilities: Floats, batches: Ints | None = None) -> Floats:
        """Run all sites for a slot; the (E,) rewards, in place as `rewards`.

        (E, n) probabilities by server are at least 0, each row with a sum above 0; (E, K, 2) are
        smallest and largest batches, None for the scenario's own. ValueError for others.
        """
        self.route(probabilities, batches)
        for e, engine in enumerate(self._engines):
            until_s = float(self.clock_s[e]) + self.control.slot_s
            times_s, phases, came = self.arriving(e, until_s)
            engine.run(times_s[:came], phases[:came], until_s)
        return self.end_slot()

    def route(self, probabilities: Floats, batches: Ints | None = None) -> None:
        """Begin a slot with its routing, as `step` does."""
        rules = self._own_batches if batches is None else batches
        self._before = {name: of.copy() for name, of in self._tally.items()}
        share = probabilities / probabilities.sum(axis=1, keepdims=True)
        for e, engine in enumerate(self._engines):
            set_routing(engine.policy, share[e], rules[e, :, 0], rules[e, :, 1])
            engine.world.counts[REROUTED] = 1

    def end_slot(self) -> Floats:
        """Count a slot that is over, and look at the sites; the rewards, as `step` has them."""
        walk, slot_s = self._scenario.walk, self.control.slot_s
        if walk is not None:
            for e, random in enumerate(self._random):
                self.factor[e] = walk.after(self.factor[e : e + 1], slot_s, random)[0]
        self.clock_s += slot_s
        self._slow()
        self._count(self._before)
        self._look()
        return self.rewards

    def arriving(self, e: int, until_s: float) -> tuple[Floats, Ints, int]:
        """A site's arrivals up to a time and inf behind them, their phases, and how many these are.

        The next call writes over them.
        """
        came = self._come(e, until_s)
        return self._times_s, self._phases, came

    def _come(self, e: int, until_s: float) -> int:
        """Write a site's arrivals down up to a time, and inf behind them; how many these are."""
        came = 0
        while True:
            came, state = _COME(
                self._flow, e, until_s, self._streams[e], came, self._times_s, self._phases
            )
            self._streams[e] = state
            if came < len(self._times_s):
                self._times_s[came] = np.inf  # the engine goes on to the slot's end
                return int(came) + 1
            self._times_s = np.concatenate([self._times_s, np.zeros(came)])
            self._phases = np.concatenate([self._phases, np.zeros(came, np.int64)])

    def _count(self, before: dict[str, Ints]) -> None:
        """Count what the slot came to since what was there before, and what it is worth."""
        for name in ("arrived", "rejected", "dropped", "sent"):
            getattr(self.counts, name)[:] += self._tally[name] - before[name]
        answered, late = (self._tally[name] - before[name] for name in ("answered", "late"))
        self.counts.answered[..., 0] += answered - late
        self.counts.answered[..., 1] += late
        lost = sum(self._tally[name] - before[name] for name in ("rejected", "dropped"))
        outcomes = self.outcomes
        outcomes.arrived[:] = (self._tally["arrived"] - before["arrived"]).sum(axis=1)
        outcomes.rejected[:] = np.sum(lost, axis=1)
        outcomes.late[:] = late.sum(axis=(1, 2))
        outcomes.timely[:] = (answered - late).sum(axis=1)
        self.rewards[:] = outcomes.timely @ self._worth - outcomes.late
        self.rewards -= self.control.rejected_weight * outcomes.rejected

    def _look(self) -> None:
        flow, there = self._flow, None
        for e, engine in enumerate(self._engines):
            signal = Signal(int(flow.phase[e]), float(self.clock_s[e] - flow.switch_s[e]))
            if self.control.changing:
                there = np.flatnonzero(engine.site.healthy)
                self.away[e] = ~engine.site.healthy
            self.observation[e] = observe(self._layout, engine.site, signal, there, there)

    def clear(self) -> None:
        """Count anew."""
        for counts in self.counts:
            counts[:] = 0

    def state(self) -> dict[str, NDArray[Any]]:
        """Copy all that changes, for `restore`."""
        found = {name: array.copy() for name, array in self._own().items()}
        worlds = [self._world(e) for e in range(self.count)]
        return found | {name: np.stack([one[name] for one in worlds]) for name in worlds[0]}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on where `state` was taken, to the last digit; ValueError for another kind of site."""
        for name, array in self.state().items():
            if name not in state or state[name].shape != array.shape:
                raise ValueError(f"this state is not one of {self.count} such sites: {name}")
        for name, array in self._own().items():
            array[:] = state[name]
        for e, random in enumerate(self._random):
            for name, array in self._world(e).items():
                array[:] = state[name][e]
            _set_words(random, state["world.drift"][e])
        self._slow()

    def _own(self) -> dict[str, NDArray[Any]]:
        """Arrays that are of all sites, by name."""
        flow = ("next_s", "phase", "switch_s", "end_s", "at", "base_s")
        found = {f"flow.{name}": getattr(self._flow, name) for name in flow}
        found |= {f"tally.{name}": of for name, of in self._tally.items()}
        for part in ("counts", "outcomes"):
            found |= {f"{part}.{k}": v for k, v in getattr(self, part)._asdict().items()}
        own = ["clock_s", "rewards", "observation", "factor", *["away"] * self.control.changing]
        return found | {name: getattr(self, name) for name in own} | {"streams": self._streams}

    def _world(self, e: int) -> dict[str, NDArray[Any]]:
        """Arrays of one site's engine, by name, and the state of its drift."""
        found: dict[str, NDArray[Any]] = {}
        world = self._engines[e].world._replace(tally=(), laws=(), records=(), outages=())
        if isinstance(world.others, Others):  # addresses are those of this process
            world = world._replace(others=world.others._replace(act=(), seat=()))
        _gather("world", world, found)
        return found | {"world.drift": _words(self._random[e])}


def _gather(name: str, value: Any, found: dict[str, NDArray[Any]]) -> None:
    """Collect the arrays of nested tuples by name."""
    if isinstance(value, np.ndarray):
        found[name] = value
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for field, one in zip(value._fields, value, strict=True):
            _gather(f"{name}.{field}", one, found)


def _words(random: np.random.Generator) -> NDArray[np.uint64]:
    """(6,) state of a PCG64 generator."""
    told: Any = random.bit_generator.state
    whole = [told["state"]["state"], told["state"]["inc"]]
    halves = [part for one in whole for part in (one >> 64, one & (2**64 - 1))]
    return np.array([*halves, told["has_uint32"], told["uinteger"]], np.uint64)


def _set_words(random: np.random.Generator, words: NDArray[np.uint64]) -> None:
    """Set what `_words` writes."""
    high, low, more, less, has, kept = (int(one) for one in words)
    whole = {"state": (high << 64) | low, "inc": (more << 64) | less}
    told: Any = random.bit_generator.state
    random.bit_generator.state = {**told, "state": whole, "has_uint32": has, "uinteger": kept}
