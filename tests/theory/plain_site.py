"""A plain simulator of a site: lists, deques and a heap of events, one event at a time, no JIT.

It is written from what the twin's documentation says and keeps queues, times, counts and idle
servers on its own; before each decision it writes the view that a policy sees from scratch. Only
the policies are the very code under test, run as plain Python. With the engine's streams of random
words it must give the same requests the same fate, event for event.
"""

from __future__ import annotations

import builtins
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CellType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from inferway.deployment.workloads import PhasedArrivals
from inferway.dispatch import build_policy
from inferway.site import (
    ACCEPT,
    ALL_CLASSES,
    HOLD,
    REJECT,
    SETTLED,
    Answer,
    Event,
    Request,
    draw,
)
from inferway.site.view import (
    COMPLETED,
    DISPATCHED,
    RUN_ROWS,
    WITHDRAWN,
    Changes,
    NoChanges,
    NoDevices,
    SharedDevices,
    Site,
)
from inferway.twin import Scenario
from inferway.workload import phases_of, stream
from inferway.workload.arrivals import spans

GOLDEN, WORD = 0x9E3779B97F4A7C15, 2**64 - 1
ANSWERED, LATE, DROPPED, REJECTED = range(4)


def mixed(word: int) -> int:
    """SplitMix64's scrambling."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


def uniform(word: int, i: int) -> float:
    """The i-th number in [0, 1) of a random word."""
    return (mixed((int(word) + (i + 1) * GOLDEN) & WORD) >> 11) * 2.0**-53


class Words:
    """A stream of random words from a counter."""

    def __init__(self, state: int) -> None:
        self.state = state

    def word(self) -> int:
        """The next word, signed, as policies get it."""
        self.state = (self.state + GOLDEN) & WORD
        word = mixed(self.state)
        return word - 2**64 if word >= 2**63 else word

    def unit(self) -> float:
        """The next number in (0, 1)."""
        return ((self.word() % 2**64 >> 11) + 0.5) * 2.0**-53

    def exponential(self) -> float:
        """The next exponential number of mean 1."""
        return -math.log(self.unit())


def plain(function: Any, known: dict[int, Any] | None = None) -> Callable[..., Any]:
    """A compiled function as plain Python, and all that it calls."""
    known = {id(draw.uniform): uniform} if known is None else known
    if id(function) in known:
        return known[id(function)]  # type: ignore[no-any-return]
    code = getattr(function, "py_func", function)
    names: dict[str, Any] = {"__builtins__": builtins}
    cells = tuple(CellType() for _ in code.__closure__ or ())
    copy = FunctionType(code.__code__, names, code.__name__, code.__defaults__, cells)
    known[id(function)] = copy
    for name in code.__code__.co_names:
        if name in code.__globals__:
            names[name] = _plain_value(code.__globals__[name], known)
    for cell, compiled in zip(cells, code.__closure__ or (), strict=True):
        cell.cell_contents = _plain_value(compiled.cell_contents, known)
    return copy


def _plain_value(value: Any, known: dict[int, Any]) -> Any:
    jitted = hasattr(value, "py_func") or id(value) in known
    ours = isinstance(value, FunctionType) and value.__module__.startswith("inferway.")
    return plain(value, known) if jitted or ours else value


def _doublings(rows: int) -> int:
    """Of 1, until it is at least as many."""
    return math.ceil(math.log2(rows))


class Sent(NamedTuple):
    """An answer that was sent by a site whose policy settles."""

    phase: int
    first: int
    """Class whose answer it was preferred to; -1 where none was in hand, or that one was sent."""
    k: int
    number: int
    """Which of the requests that are known it was."""
    expected: float
    late: bool


class Left(NamedTuple):
    """A request that has left."""

    arrived_s: float
    started_s: float
    """nan where it was never served."""
    left_s: float
    server: int
    """-1 where it was at none."""
    outcome: int
    phase: int


@dataclass
class Waiting:
    """A request in the system."""

    arrived_s: float
    phase: int
    joined_s: float = math.nan
    """When it came to the server where it is."""
    number: int = 0
    """Which of the requests it is whose confidences are known."""
    credit: float = 0.0
    """Accuracy that the balance counts for it."""
    hand: Server | None = None
    """Whose answer is in hand, while another server is asked."""
    worth: float = 0.0
    """Expected accuracy of that answer."""


@dataclass(eq=False)
class Server:
    """One server and its queue, those in service first."""

    number: int
    k: int
    site: PlainSite
    queue: deque[Waiting] = field(default_factory=deque)
    serving: int = 0
    """How many of the queue are in service."""
    begun_s: float = math.nan
    """When its slots were taken, for what the server itself does."""
    started_s: float = math.nan
    """When its model started."""
    predicted_s: float = math.nan
    """Predicted end of the service."""
    idle_since_s: float = -math.inf
    service: int = 0
    """Number of the service, so that one that was broken off does not end."""
    reasons: int = 0
    """Why it is away: failures and outages at present."""


Variant = tuple["PlainSite", int]
"""A class of a task's site."""


@dataclass
class Line:
    """What is foreseen at a device that holds one variant at a time."""

    free_s: list[float]
    """When each slot is free behind all that waits, the earliest first."""
    done_s: dict[Server, float]
    """When each server there has run what it has."""
    joins_s: dict[Server, float] = field(default_factory=dict)
    """Start of the run of each server that one more request would be part of."""
    variant: Variant | None = None
    """What it holds then."""

    def take(self, slots: int, until_s: float) -> None:
        """So many slots, the first that are free, are taken until then."""
        self.free_s = sorted([*self.free_s[slots:], *[until_s] * slots])


@dataclass
class Slots:
    """A device: what runs on it and who waits there."""

    number: int
    slots: int
    running: list[Server] = field(default_factory=list)
    waiting: list[Server] = field(default_factory=list)
    exclusive: bool = False
    """Whether it holds one variant at a time."""
    variant: Variant | None = None
    """What it holds; nothing while it changes."""
    loading: Server | None = None
    """Whom it changes for."""
    ready_s: float = math.nan
    """When it will have."""
    changes: int = 0


class PlainSite:
    """One run.

    Parameters
    ----------
    scenario, seed, replication
        As for the engine.
    """

    def __init__(self, scenario: Scenario, seed: int, replication: int = 0) -> None:
        self.scenario, fleet = scenario, scenario.fleet
        words = np.random.SeedSequence([seed, replication]).generate_state(5, np.uint64)
        self.decisions, self.services, self.failures = (Words(int(one)) for one in words[:3])
        self.arrivals = self._arrivals(int(words[3]))
        self.numbers = Words(int(words[4]))
        self.policy: Any = build_policy(
            scenario.policy,
            fleet,
            target=scenario.target,
            rate_per_s=scenario.told_rate_per_s,
            folder=scenario.folder,
            **scenario.build_options(),
        )
        methods = {
            name: plain(getattr(type(self.policy), name))
            for name in ("choose", "learn", "pull", "settle")
            if hasattr(type(self.policy), name)
        }
        self.choose = methods["choose"]
        self.learn, self.pull = methods.get("learn"), methods.get("pull")
        self.settle = methods.get("settle")
        self.sent: list[Sent] = []
        self.models_s: dict[tuple[int, int], float] = {}  # By class and requests, once asked for
        self.servers = [
            Server(int(number), k, self)
            for k in range(len(fleet.rate))
            for number in range(fleet.first[k], fleet.first[k + 1])
        ]
        # Per class: its servers, the idle ones first, the one that fell idle last at their end.
        self.standing = [
            list(range(fleet.first[k], fleet.first[k + 1])) for k in range(len(fleet.rate))
        ]
        self.idle = [len(standing) for standing in self.standing]
        of = fleet.devices
        self.devices = [] if of is None else [Slots(d, n) for d, n in enumerate(of.slots.tolist())]
        for device in self.devices:
            assert of is not None
            here = [k for k, d in enumerate(of.device.tolist()) if d == device.number]
            device.exclusive = bool(of.exclusive[device.number])
            device.variant = (self, here[0]) if here else None
        # Sites of all tasks that share the devices, this one among them.
        self.sharers = [self]
        self.gave = False  # Whether the present event has given slots back
        self.central: deque[Waiting] = deque()
        own = scenario.target or 0.0
        self.targets = [
            own if phase.accuracy_target is None else phase.accuracy_target
            for phase in phases_of(scenario.arrivals, scenario.capacity_per_s)
        ]
        self.target = self.targets[0]
        self.balance = 0.0
        self.now_s = 0.0
        self.present = 0
        self.asked = 0  # Decisions with a deadline
        self.left: list[Left] = []
        self.events: list[tuple[float, int, str, int, int]] = []
        self._plan_failures(int(words[2]))

    def _arrivals(self, seed: int) -> Iterator[tuple[float, int]]:
        chunks = stream(
            self.scenario.arrivals, capacity_per_s=self.scenario.capacity_per_s, seed=seed
        )
        for chunk in chunks:
            yield from zip(chunk.times_s.tolist(), chunk.phase.tolist(), strict=True)

    def _plan_failures(self, seed: int) -> None:
        fleet, random = self.scenario.fleet, np.random.default_rng(seed)
        for server in self.servers:
            failure = self.scenario.failures.get(fleet.variants[server.k])
            if failure is not None:
                at_s = float(random.exponential(failure.every_s))
                self._plan(at_s, len(self.servers) + server.number, "fails", server.number)
        rank = 2 * len(self.servers)
        for outage in self.scenario.outages:
            first = int(fleet.first[fleet.variants.index(outage.variant)])
            for number in range(first, first + outage.count):
                self._plan(outage.at_s, rank, "goes", number)
                self._plan(outage.at_s + outage.for_s, rank + 1, "returns", number)
                rank += 2

    def _plan(self, at_s: float, rank: int, what: str, number: int, service: int = 0) -> None:
        """Events at the same time come by rank."""
        heapq.heappush(self.events, (at_s, rank, what, number, service))

    # --- the run

    def run(self, requests: int) -> list[Left]:
        """So many requests arrive, and all that can leave do."""
        coming = None
        while True:
            if coming is None and requests > 0:
                coming, requests = next(self.arrivals, None), requests - 1
            if coming is None and self.present == 0:
                return self.left
            if not self.events and coming is None:
                return self.left  # what is left waits for what will not happen
            if self.events and (coming is None or self.events[0][0] <= coming[0]):
                self.now_s, _, what, number, service = heapq.heappop(self.events)
                self._happens(what, self.servers[number], service)
            elif coming is not None:
                (self.now_s, phase), coming = coming, None
                self.target = self.targets[phase]
                self.present += 1
                self._send(Waiting(self.now_s, phase, number=self._number()))

    def _number(self) -> int:
        """Draw one of the requests that are known."""
        if self.settle is None:
            return 0
        assert self.scenario.answers is not None
        return int(self.numbers.unit() * len(self.scenario.answers.bins))

    def _happens(self, what: str, server: Server, service: int) -> None:
        if what == "ends":
            if service == server.service:
                self._complete(server)
                self._release()
            return
        if what == "loaded":
            if service == server.service:
                self._loaded(server)
                self._release()
            return
        if what == "expires":
            waiting = len(server.queue)
            if waiting and server.serving == 0:
                self._start(server)
            if len(server.queue) < waiting:
                self._release()
            return
        was_there = server.reasons == 0
        if what in ("fails", "recovers"):
            failure = self.scenario.failures[self.scenario.fleet.variants[server.k]]
            mean_s = failure.for_s if what == "fails" else failure.every_s
            then = "recovers" if what == "fails" else "fails"
            self._plan(
                self.now_s + mean_s * self.failures.exponential(),
                len(self.servers) + server.number,
                then,
                server.number,
            )
        server.reasons += 1 if what in ("fails", "goes") else -1
        if was_there and server.reasons > 0:
            self._away(server)
        elif not was_there and server.reasons == 0:
            self._fall_idle(server)
            self._release()

    def _away(self, server: Server) -> None:
        """What is at the server is dispatched anew."""
        if not server.queue:
            self._stop_being_idle(server)
        server.service += 1
        server.serving = 0
        device = self._device(server)
        makes_room = device is not None and any(
            not self._has_room(other.k) for other in self.servers if self._device(other) is device
        )
        if device is not None:
            self.gave = self.gave or server in device.running
            device.running = [other for other in device.running if other is not server]
            device.waiting = [other for other in device.waiting if other is not server]
            if device.loading is server:
                device.loading, self.gave = None, True
            self._grant(device)
        for _ in range(len(server.queue)):
            request = self._withdraw(server)
            if request.hand is None:
                self._send(request)
            else:
                self._send_first(request, request.hand)
        if makes_room:
            self._release()

    # --- a request

    def _send(self, request: Waiting) -> None:
        if self._in_order and self.central:
            deadline_s = request.arrived_s + self._deadline_s()
            decided = HOLD if self._falls_open(deadline_s, busy=False) else REJECT
        else:
            decided = self._decide(request)
        if decided >= 0:
            self._join(self.servers[decided], request)
        elif decided == HOLD and len(self.central) < self._central_room():
            self.central.append(request)
        else:
            self._leave(request, math.nan, -1, REJECTED)

    def _central_room(self) -> float:
        buffer, fleet = self.scenario.fleet.buffer, self.scenario.fleet
        if self.scenario.queue == "central" and buffer:
            return (buffer - 1) * fleet.servers
        return math.inf

    def _decide(self, request: Waiting) -> int:
        word = self.decisions.word()
        deadline_s = request.arrived_s + self._deadline_s()
        self.asked += deadline_s < math.inf
        site = self.view()
        allowed, narrowed = site.open.copy(), False
        if self.scenario.deadline_s is not None and self.scenario.late == "drop":
            narrowed = True
            for server in self.servers:
                wait_s, service_s = self._joining_s(server)
                allowed[server.number] &= self.now_s + wait_s + service_s <= deadline_s
        decided = REJECT
        if not narrowed or allowed.any():
            asked = Request(self.now_s, deadline_s, 0.0, 0, 1, ALL_CLASSES, allowed, narrowed)
            decided = int(self.choose(self.policy, site, asked, word))
            assert HOLD <= decided < len(self.servers)
            if decided >= 0 and not site.open[decided]:
                decided = REJECT
        if decided == REJECT and self._in_order and self._falls_open(deadline_s, busy=True):
            return HOLD
        return decided

    @property
    def _in_order(self) -> bool:
        return self.scenario.queue == "central"

    def _falls_open(self, deadline_s: float, *, busy: bool) -> bool:
        """Whether one of the servers, or of the busy ones, would be in time once it is free."""
        left_s = deadline_s - self.now_s if self.scenario.late == "drop" else math.inf
        return any(
            server.reasons == 0
            and (server.queue or not busy or not self._has_room(server.k))
            and self._predicted_s(server) <= left_s
            for server in self.servers
        )

    def _deadline_s(self) -> float:
        return math.inf if self.scenario.deadline_s is None else self.scenario.deadline_s

    def _join(self, server: Server, request: Waiting) -> None:
        wait_s, service_s = self._joining_s(server)
        if not server.queue:
            self._stop_being_idle(server)
        request.joined_s = self.now_s
        server.queue.append(request)
        if request.hand is None:
            request.credit = float(self.scenario.fleet.accuracy[server.k])
            self.balance += request.credit - self.targets[request.phase]
        deadline_s = request.arrived_s + self._deadline_s()
        told = {"counted": request.hand is None, "deadline_s": deadline_s}
        self._tell(DISPATCHED, server, wait_s, service_s, **told)
        if server.serving == 0:
            self._start(server)

    # --- devices

    def _device(self, server: Server) -> Slots | None:
        of = self.scenario.fleet.devices
        d = -1 if of is None else int(of.device[server.k])
        return None if d < 0 else self.devices[d]

    def _taken(self, k: int) -> int:
        assert self.scenario.fleet.devices is not None
        return int(self.scenario.fleet.devices.taken[k])

    def _lead_s(self, k: int) -> float:
        """What each request takes of its device before it runs."""
        of = self.scenario.fleet.devices
        d = -1 if of is None else int(of.device[k])
        return 0.0 if of is None or d < 0 else float(of.overhead_s[d])

    def _fits(self, device: Slots, k: int) -> bool:
        """Whether a run could start there, or the change before it, if it is its turn."""
        if device.loading is not None or (not self._holds(device, k) and device.running):
            return False
        used = sum(other.site._taken(other.k) for other in device.running)
        return used + self._taken(k) <= device.slots

    def _holds(self, device: Slots, k: int) -> bool:
        return not device.exclusive or device.variant == (self, k)

    def _has_room(self, k: int) -> bool:
        """Whether a run of the class could start now; nobody overtakes those who wait."""
        device = self._device(self.servers[int(self.scenario.fleet.first[k])])
        if device is None:
            return True
        return not device.waiting and self._fits(device, k) and self._holds(device, k)

    def _load_s(self, k: int) -> float:
        devices = self.scenario.fleet.devices
        assert devices is not None
        assert devices.load_s is not None
        return float(devices.load_s[k])

    def _load(self, device: Slots, server: Server) -> None:
        """The device changes to the server's variant; nothing runs there until it has."""
        device.loading, device.variant = server, None
        device.ready_s = self.now_s + self._load_s(server.k)
        device.changes += 1
        server.service += 1
        self._plan(device.ready_s, server.number, "loaded", server.number, server.service)

    def _loaded(self, server: Server) -> None:
        device = self._device(server)
        assert device is not None
        device.loading, device.variant = None, (self, server.k)
        self.gave = True
        if server.queue:
            self._run(server)
        self._grant(device)

    def _foretell(self, device: Slots) -> Line:
        """Run what there is at an exclusive device in thought, in the order in which it is due."""
        every = [one for site in self.sharers for one in site.servers]
        here = [one for one in every if one.site._device(one) is device]
        line = Line([self.now_s] * device.slots, dict.fromkeys(here, self.now_s))
        line.variant, begun_s = device.variant, self.now_s
        left = {one: list(one.queue)[one.serving :] if one.reasons == 0 else [] for one in here}
        for server in device.running:
            end_s = max(self.now_s, server.predicted_s)
            line.take(server.site._taken(server.k), end_s)
            line.done_s[server] = end_s
        first = device.loading
        if first is not None:
            line.variant, begun_s = (first.site, first.k), max(self.now_s, device.ready_s)
            line.free_s = [begun_s] * device.slots
        while any(left.values()):
            waiting = [server for server in here if left[server]]
            server = min(waiting, key=lambda one: left[one][0].joined_s + one.site._due_after_s())
            if first in waiting:
                server = first  # type: ignore[assignment]
            first = None
            queue, of = left[server], server.site
            taken = of._best(server, len(queue), math.inf) if of._together(server) else 1
            left[server] = queue[taken:]
            begun_s = max(begun_s, line.done_s[server])
            if line.variant == (of, server.k):
                begun_s = max(begun_s, line.free_s[of._taken(server.k) - 1])
            else:
                begun_s = max(begun_s, line.free_s[-1]) + of._load_s(server.k)
                line.free_s = [begun_s] * device.slots
                line.variant = of, server.k
            end_s = begun_s + of._run_s(server, taken)
            line.take(of._taken(server.k), end_s)
            line.done_s[server] = end_s
            line.joins_s.pop(server, None)
            more = of._together(server) and of._best(server, taken + 1, math.inf) > taken
            if more and not left[server]:
                line.joins_s[server] = begun_s
        line.free_s = [max(begun_s, one_s) for one_s in line.free_s]
        return line

    def _room(self, device: Slots) -> int:
        """Slots that a run could have now."""
        used = sum(other.site._taken(other.k) for other in device.running)
        return 0 if device.waiting or device.loading is not None else device.slots - used

    def _grant(self, device: Slots) -> None:
        """Those who wait start as their first requests are due, else as these came."""
        while device.waiting:
            first = min(device.waiting, key=lambda server: server.site._due_s(server))
            if not first.site._fits(device, first.k):
                return
            device.waiting.remove(first)
            first.site._run(first)

    def _due_s(self, server: Server) -> float:
        """By the deadline, whoever has none behind all others; of one task, by who came first."""
        return server.queue[0].arrived_s + self._due_after_s()

    def _due_after_s(self) -> float:
        if len(self.sharers) == 1:
            return 0.0
        return self._deadline_s() if self._deadline_s() < math.inf else 1e9

    def _ends_s(self, device: Slots) -> list[float]:
        """When each of its slots is free of the runs in progress, the earliest first."""
        if device.loading is not None:
            return [max(self.now_s, device.ready_s)] * device.slots
        ends_s = [
            max(self.now_s, server.predicted_s)
            for server in device.running
            for _ in range(server.site._taken(server.k))
        ]
        return [self.now_s] * (device.slots - len(ends_s)) + sorted(ends_s)

    def _free_s(self, device: Slots) -> list[float]:
        """When so many slots are free for who comes now: the others leave them, and can have done
        by then what each of them would do alone."""
        if device.exclusive:
            return self._foretell(device).free_s
        works = []
        for server in (server for site in self.sharers for server in site.servers):
            of = server.site
            if of._device(server) is device and server.reasons == 0 and server.queue:
                waits = len(server.queue) - server.serving
                alone_s = waits * of._predicted_s(server)
                own_s = sum(of._runs_s(server, waits)) if of._together(server) else alone_s
                if server in device.running:
                    own_s += max(0.0, server.predicted_s - self.now_s)
                works.append((own_s, of._taken(server.k)))

        def full(until_s: float) -> float:
            """Slots that it takes to do by then what is to be done by then."""
            done_s = sum(taken * min(own_s, until_s) for own_s, taken in works)
            # Right after now, runs that are overdue take nothing.
            at_once = sum(taken for own_s, taken in works if own_s > 0)
            return done_s / until_s if until_s > 0 else at_once

        ends_s = [0.0, *(own_s for own_s, _ in works)]
        for end_s in list(ends_s):
            left = sum(taken for own_s, taken in works if own_s > end_s)
            if left < device.slots:
                done_s = sum(taken * own_s for own_s, taken in works if own_s <= end_s)
                ends_s.append(done_s / (device.slots - left))
        return [
            self.now_s
            + min(
                end_s
                for end_s in ends_s
                if sum(taken for own_s, taken in works if own_s > end_s) <= device.slots - 1 - last
                and full(end_s) <= device.slots * (1 + 1e-12)
            )
            for last in range(device.slots)
        ]

    def _wait_s(self, server: Server, own_s: float) -> float:
        """Until one that joins would start, if it waited so long for the server's own alone."""
        device = self._device(server)
        if device is None:
            return own_s
        if device.exclusive:
            line = self._foretell(device)
            if line.variant != (self, server.k):
                return line.free_s[-1] + self._load_s(server.k) - self.now_s
            place = self._taken(server.k) - 1
            return max(line.done_s[server], line.free_s[place]) - self.now_s
        last = self._taken(server.k) - 1
        if server not in device.running:
            own_s += self._ends_s(device)[last] - self.now_s
        return max(own_s, self._free_s(device)[last] - self.now_s)

    def _start(self, server: Server) -> None:
        """A free server starts a run, or waits for its device."""
        device = self._device(server)
        if device is not None and (device.waiting or not self._fits(device, server.k)):
            if server not in device.waiting and device.loading is not server:
                device.waiting.append(server)
            return
        self._run(server)

    def _run(self, server: Server) -> None:
        """A free server takes what it will."""
        wanted = 0
        if self.pull is not None and server.queue:
            word = self.decisions.word()
            dropped, wanted = self.pull(self.policy, self.view(), server.number, word)
            for _ in range(min(dropped, len(server.queue))):
                self._drop(server)
        if self.scenario.late == "drop":
            while server.queue and server.queue[0].arrived_s + self._deadline_s() < self.now_s:
                self._drop(server)
        batch_s = self._batches(server.k)
        if self.pull is None:
            taken = self._formed(server)
        else:
            fitting = [size for size in batch_s if size <= min(wanted, len(server.queue))]
            taken = max(fitting, default=0)
        if taken == 0:
            return
        if (device := self._device(server)) is not None:
            if not self._holds(device, server.k):
                self._load(device, server)
                return
            device.running.append(server)
        server.serving = taken
        server.begun_s = self.now_s
        server.started_s = self.now_s + self._lead_s(server.k) * taken
        server.predicted_s = self.now_s + self._run_s(server, taken)
        server.service += 1
        took_s = self._service_s(server.k, batch_s[self._padded(server.k, taken)])
        self._plan(server.started_s + took_s, server.number, "ends", server.number, server.service)

    def _formed(self, server: Server) -> int:
        """How many a free server takes by the file's rule; it is asked again where it waits."""
        waiting = len(server.queue)
        if not waiting:
            return 0
        least, most = self._limits(server.k)
        if waiting < least:
            self._wait(server)
            return 0
        batch = self.scenario.batches[server.k] if self.scenario.batches else None
        first_s = server.queue[0].arrived_s
        dropped = self.scenario.late == "drop"
        latest_s = first_s + self._deadline_s() if dropped else math.inf
        taken = self._best(server, min(waiting, most), latest_s - self.now_s)
        if batch is not None and batch.wait_s > 0 and taken < self._best(server, most, math.inf):
            until_s = min(first_s + batch.wait_s, latest_s - self._run_s(server, taken))
            if self.now_s < until_s:
                self._plan(until_s, server.number, "expires", server.number)
                return 0
        return taken

    def _best(self, server: Server, waiting: int, left_s: float) -> int:
        """Of the batches that so many make, that of the most a second that is in time."""
        sizes = self._sizes(server.k)
        may = [size for size in sizes if size <= waiting]
        beyond = [size for size in sizes if size > waiting]
        if self._pads(server.k) and beyond and (not may or max(may) < waiting):
            may.append(waiting)
        if self._run_s(server, sizes[0]) > left_s:
            left_s = math.inf  # who is late anyway is not waited for
        in_time = [size for size in may if self._run_s(server, size) <= left_s] or may[:1]
        best = in_time[0]
        for size in in_time[1:]:
            per_s = size / self._run_s(server, size)
            if per_s > best / self._run_s(server, best) * (1 + 1e-9):
                best = size
        return best

    def _sizes(self, k: int) -> list[int]:
        """What a class forms, increasing; 1 always."""
        most = self._limits(k)[1]
        return sorted(size for size in {1, *self._offered(k)} if size <= most)

    def _pads(self, k: int) -> bool:
        batch = self.scenario.batches[k] if self.scenario.batches else None
        return batch is not None and batch.pad

    def _padded(self, k: int, requests: int) -> int:
        """As how many so many are run."""
        beyond = [size for size in self._sizes(k) if size >= requests]
        return beyond[0] if self._pads(k) and beyond else requests

    def _run_s(self, server: Server, requests: int) -> float:
        """Predicted time of a batch."""
        return self._predicted_s(server, self._padded(server.k, requests))

    def _runs_s(self, server: Server, requests: int) -> list[float]:
        """Predicted times of the batches, one after the other, that so many are run in."""
        times_s = []
        while requests:
            taken = self._best(server, requests, math.inf)
            times_s.append(self._run_s(server, taken))
            requests -= taken
        return times_s

    def _together(self, server: Server) -> bool:
        """Whether the server forms batches at all."""
        return len(self._sizes(server.k)) > 1

    def _joining_s(self, server: Server) -> tuple[float, float]:
        """Predicted wait and service time of who joins now: with the last of those that wait."""
        if not server.queue or not self._together(server):
            return self.predicted_wait_s(server), self._predicted_s(server)
        times_s = self._runs_s(server, len(server.queue) - server.serving + 1)
        left_s = max(0.0, server.predicted_s - self.now_s) if server.serving else 0.0
        device = self._device(server)
        if device is not None and device.exclusive:
            joins_s = self._foretell(device).joins_s
            if server in joins_s:
                return joins_s[server] - self.now_s, times_s[-1]
        return self._wait_s(server, left_s + sum(times_s[:-1])), times_s[-1]

    def _wait(self, server: Server) -> None:
        """A server waits for more; its first, for no longer than its deadline lets it."""
        limit_s = self._deadline_s()
        if server.queue and self.scenario.late == "drop" and limit_s < math.inf:
            at_s = math.nextafter(server.queue[0].arrived_s + limit_s, math.inf)
            self._plan(at_s, server.number, "expires", server.number)

    def _limits(self, k: int) -> tuple[int, int]:
        """By the file: how many a server waits for, and how many it takes at most."""
        batch = self.scenario.batches[k] if self.scenario.batches else None
        return (1, 1) if batch is None else (batch.min, batch.max)

    def _complete(self, server: Server) -> None:
        """The batch in service is answered."""
        started_s = server.started_s
        untold = server.serving
        if (device := self._device(server)) is not None:
            device.running.remove(server)
            self.gave = True
        for _ in range(server.serving):
            server.serving -= 1
            request = self._take_first(server)
            took_s = self.now_s - started_s
            self._tell(COMPLETED, server, started_s - request.arrived_s, took_s, untold)
            untold = 0  # of a run it is told once
            if self.settle is None:
                self._leave(request, started_s, server.number, self._in_time(request, self.now_s))
            else:
                self._settle(request, server, started_s)
        server.begun_s = server.started_s = server.predicted_s = math.nan
        server.service += 1
        if server.queue:
            self._start(server)
        if device is not None:
            self._grant(device)

    def _in_time(self, request: Waiting, now_s: float) -> int:
        return LATE if now_s > request.arrived_s + self._deadline_s() else ANSWERED

    # --- second answers

    def _settle(self, request: Waiting, server: Server, started_s: float) -> None:
        """An answer has come: it is sent, or another server is asked, or an earlier one is sent."""
        if request.hand is not None:
            if self._in_time(request, self.now_s) == LATE:
                self._send_first(request, request.hand)
            else:
                self._send_answer(request, server, started_s, self.now_s, request.credit)
            return
        expected = self._expected(request, server.k)
        to = self._again(request, server, expected)
        if to is None:
            worth = float(expected[server.k])
            self._send_answer(request, server, started_s, self.now_s, worth)
            return
        request.hand, request.worth = server, float(expected[server.k])
        self.balance += float(expected[to.k]) - request.credit
        request.credit = float(expected[to.k])
        self._join(to, request)

    def _expected(self, request: Waiting, k: int) -> Any:
        """Expected accuracies of all classes, now that class k has answered."""
        tables = self.scenario.fleet.confidence
        if not self._is_sure(k):
            return self.scenario.fleet.accuracy
        assert tables is not None
        assert self.scenario.answers is not None
        return tables.expected[k, self.scenario.answers.bins[request.number, k]]

    def _is_sure(self, k: int) -> bool:
        """Whether a class has a confidence."""
        tables = self.scenario.fleet.confidence
        return tables is not None and bool(tables.mass[k].any())

    def _again(self, request: Waiting, server: Server, expected: Any) -> Server | None:
        """The other server that is asked, of another class, with room, and in time."""
        if not self._is_sure(server.k):
            return None
        word, site = self.decisions.word(), self.view()
        deadline_s = request.arrived_s + self._deadline_s()
        able = [
            other.k != server.k
            and bool(site.open[other.number])
            and self.now_s + sum(self._joining_s(other)) <= deadline_s
            for other in self.servers
        ]
        others, narrowed = ALL_CLASSES & ~(1 << server.k), deadline_s < math.inf
        if narrowed and not any(able):
            return None
        allowed = np.array(able) if narrowed else site.open
        asked = Request(request.arrived_s, deadline_s, 0.0, 0, 1, others, allowed, narrowed)
        answer = Answer(server.number, expected, 1)
        assert self.settle is not None
        decided = int(self.settle(self.policy, site, asked, answer, word))
        assert decided == ACCEPT or 0 <= decided < len(self.servers)
        return self.servers[decided] if decided != ACCEPT and able[decided] else None

    def _send_answer(
        self, request: Waiting, server: Server, started_s: float, sent_s: float, expected: float
    ) -> None:
        first = -1 if request.hand in (None, server) else request.hand.k  # type: ignore[union-attr]
        self.balance += expected - request.credit
        outcome = self._in_time(request, sent_s)
        sent = request.phase, first, server.k, request.number, expected, outcome == LATE
        self.sent.append(Sent(*sent))
        self._leave(request, started_s, server.number, outcome, sent_s)
        self._tell(SETTLED, server, 0.0, 0.0, expected=expected)

    def _send_first(self, request: Waiting, hand: Server) -> None:
        """The answer in hand is sent now, or was at the deadline, if that has passed."""
        sent_s = min(self.now_s, request.arrived_s + self._deadline_s())
        self._send_answer(request, hand, math.nan, sent_s, request.worth)

    # --- who leaves

    def _drop(self, server: Server) -> None:
        request = self._withdraw(server)
        if request.hand is None:
            self._leave(request, math.nan, server.number, DROPPED)
        else:
            self._send_first(request, request.hand)

    def _withdraw(self, server: Server) -> Waiting:
        """The first leaves without an answer: its dispatch is undone."""
        request = self._take_first(server)
        if request.hand is None:
            self.balance -= request.credit - self.targets[request.phase]
        self._tell(WITHDRAWN, server, 0.0, 0.0, counted=request.hand is None)
        return request

    def _take_first(self, server: Server) -> Waiting:
        request = server.queue.popleft()
        if not server.queue:
            server.begun_s = server.started_s = server.predicted_s = math.nan
            server.idle_since_s = self.now_s
            if server.reasons == 0:
                self._fall_idle(server)
        return request

    def _release(self) -> None:
        """Decide again for the first of the central queue, until one stays."""
        while self.central:
            request = self.central.popleft()
            if self.scenario.late == "drop" and request.arrived_s + self._deadline_s() < self.now_s:
                self._leave(request, math.nan, -1, DROPPED)
                continue
            decided = self._decide(request)
            if decided >= 0:
                self._join(self.servers[decided], request)
            elif decided == HOLD:
                self.central.appendleft(request)
                return
            else:
                self._leave(request, math.nan, -1, REJECTED)

    def _leave(
        self,
        request: Waiting,
        started_s: float,
        server: int,
        outcome: int,
        left_s: float | None = None,
    ) -> None:
        self.present -= 1
        left_s = self.now_s if left_s is None else left_s
        self.left.append(Left(request.arrived_s, started_s, left_s, server, outcome, request.phase))

    def _tell(
        self,
        kind: int,
        server: Server,
        wait_s: float,
        service_s: float,
        rows: int = 0,
        *,
        counted: bool = True,
        expected: float = 0.0,
        deadline_s: float = math.inf,
    ) -> None:
        if self.learn is not None:
            what = kind, server.number, 1, counted, wait_s, service_s, rows, expected
            event = Event(*what, deadline_s)
            self.learn(self.policy, self.view(), event)

    # --- who is idle

    def _fall_idle(self, server: Server) -> None:
        self._stand(server, self.idle[server.k])
        self.idle[server.k] += 1

    def _stop_being_idle(self, server: Server) -> None:
        if self.standing[server.k].index(server.number) < self.idle[server.k]:
            self.idle[server.k] -= 1
            self._stand(server, self.idle[server.k])

    def _stand(self, server: Server, place: int) -> None:
        standing = self.standing[server.k]
        left = standing.index(server.number)
        standing[left], standing[place] = standing[place], standing[left]

    # --- times

    def _batches(self, k: int) -> dict[int, float]:
        """Mean service times by size of batch, s."""
        return {1: self.scenario.service[k].mean_s} | self._offered(k)

    def _offered(self, k: int) -> dict[int, float]:
        """Those that the file gives."""
        batch = self.scenario.batches[k] if self.scenario.batches else None
        return {} if batch is None else dict(zip(batch.sizes, batch.service_s, strict=True))

    def _service_s(self, k: int, mean_s: float) -> float:
        words, law = self.services, self.scenario.service[k]
        if law.distribution == "deterministic":
            return mean_s
        if law.distribution == "exponential":
            return mean_s * words.exponential()
        if law.distribution == "erlang":
            return mean_s * sum(words.exponential() for _ in range(law.stages)) / law.stages
        if law.distribution == "empirical":
            sample_s = law.samples_s[int(words.unit() * len(law.samples_s))]
            return mean_s * sample_s / law.mean_s
        if law.distribution == "lognormal":
            deviation = math.sqrt(math.log(1 + law.cv**2))
            normal = math.sqrt(2 * words.exponential()) * math.cos(2 * math.pi * words.unit())
            return mean_s * math.exp(deviation * normal - deviation**2 / 2)
        # Hyperexponential with balanced means.
        short = (1 + math.sqrt((law.cv**2 - 1) / (law.cv**2 + 1))) / 2
        chance = short if words.unit() < short else 1 - short
        return mean_s * words.exponential() / (2 * chance)

    def _predicted_s(self, server: Server, requests: int = 1) -> float:
        """A batch's time, and before it what the server does for each of its requests, s."""
        return self._model_s(server, requests) + self._lead_s(server.k) * requests

    def _model_s(self, server: Server, requests: int) -> float:
        """What so many take as one batch, s, of which the scenario alone decides."""
        asked = server.k, requests
        if asked not in self.models_s:
            self.models_s[asked] = self._modeled_s(*asked)
        return self.models_s[asked]

    def _modeled_s(self, k: int, requests: int) -> float:
        """Linear between the times at 1, 2, 4, ... requests, which are such that the sizes known
        take what they are known to take."""
        fleet = self.scenario.fleet
        known = {1: 1.0 / float(fleet.rate[k])} | self._offered(k)
        measured = self.scenario.measured_s.get(fleet.variants[k], {})
        if measured:
            known = {size: times_s[0] for size, times_s in sorted(measured.items())}
        at = [known[1]]
        for power in range(1, 8):
            full, half = 2**power, 2 ** (power - 1)
            inside = [size for size in known if half < size <= full]
            if inside:
                slope_s = (known[max(inside)] - at[-1]) / (max(inside) - half)
                at.append(max(at[-1] + slope_s * half, at[-1] / 4))
            elif full < max(known):
                below = max(size for size in known if size < full)
                above = min(size for size in known if size > full)
                part = (full - below) / (above - below)
                at.append(known[below] + part * (known[above] - known[below]))
            else:
                at.append(2 * at[-1])
        power = min(7, _doublings(requests))
        if requests >= 2**power:
            return requests * (at[power] / 2**power)
        half = 2 ** (power - 1)
        return at[power - 1] + (at[power] - at[power - 1]) * (requests - half) / half

    def _behind_s(self, server: Server) -> float:
        """Predicted service times of those that wait behind the ones in service, s."""
        if self._together(server):
            return sum(self._runs_s(server, len(server.queue) - server.serving))
        first = max(server.serving, 1 if not math.isnan(server.predicted_s) else 0)
        return (len(server.queue) - first) * self._predicted_s(server)

    def predicted_wait_s(self, server: Server) -> float:
        """Until a request that joins now would start, as far as anyone can tell."""
        if not server.queue:
            return self._wait_s(server, 0.0)
        left_s = 0.0
        if not math.isnan(server.predicted_s):
            left_s = max(0.0, server.predicted_s - self.now_s)
        return self._wait_s(server, left_s + self._behind_s(server))

    # --- the view

    def view(self) -> Site:
        """What a policy sees of all this, written from scratch."""
        fleet, servers = self.scenario.fleet, self.servers
        sure = fleet.confidence
        classes = range(len(fleet.rate))
        lengths = [len(server.queue) for server in servers]
        limit = 1 if self.scenario.queue == "central" else (fleet.buffer or math.inf)
        shape = (len(servers), max(lengths) + 1)
        arrived_s, expected_s = np.full(shape, np.nan), np.full(shape, np.nan)
        ends_s, free_s = np.full(len(servers), np.nan), np.full(len(servers), np.nan)
        running, waiting = np.zeros(len(servers), np.int64), np.zeros(len(servers), np.int64)
        for server in servers:
            number = server.number
            for place, request in enumerate(server.queue):
                arrived_s[number, place] = request.joined_s
                expected_s[number, place] = self._predicted_s(server)
            if server.queue:
                known = not math.isnan(server.predicted_s)
                running[number] = server.serving if self._together(server) else 0
                waiting[number] = len(server.queue) - server.serving
                ends_s[number] = server.predicted_s if known else self.now_s
                free_s[number] = ends_s[number] + self._behind_s(server)
            else:
                free_s[number] = server.idle_since_s
        healthy = [server.reasons == 0 for server in servers]
        standing = [number for k in classes for number in self.standing[k]]
        busy = [sum(lengths[number] > 0 for number in self.standing[k]) for k in classes]
        idle = [self.idle[k] if self._has_room(k) else 0 for k in classes]
        predicted_s = np.array([self._model_s(server, 1) for server in servers])
        row_s = np.array(
            [[self._model_s(server, 2**i) / 2**i for i in range(8)] for server in servers]
        )
        return Site(
            first=fleet.first,
            server_class=np.array([server.k for server in servers]),
            rate=1.0 / predicted_s[fleet.first[:-1]],
            accuracy=fleet.accuracy,
            queue=np.array(lengths),
            head=np.zeros(len(servers), np.int64),
            started_s=np.array([server.begun_s for server in servers]),
            ends_s=ends_s,
            free_s=free_s,
            arrived_s=arrived_s,
            rows=np.ones(shape, np.int64),
            expected_s=expected_s,
            row_s=row_s,
            slow_s=row_s,
            measured=np.zeros((len(servers), 8), np.int64),
            most_rows=np.full(len(servers), RUN_ROWS),
            sizes=np.array([self._sizes(k) + [0] * (64 - len(self._sizes(k))) for k in classes]),
            pads=np.array([self._pads(k) for k in classes]),
            running=running,
            waiting_rows=waiting,
            healthy=np.array(healthy),
            open=np.array(
                [there and length < limit for there, length in zip(healthy, lengths, strict=True)]
            ),
            idle=np.array(idle),
            busy=np.array(busy),
            in_system=np.array(
                [sum(lengths[number] for number in self.standing[k]) for k in classes]
            ),
            idle_server=np.array(standing),
            idle_place=np.argsort(standing),
            idle_classes=np.array([sum(1 << k for k in classes if idle[k])]),
            busy_classes=np.array([sum(1 << k for k in classes if busy[k])]),
            clock_s=np.array([self.now_s]),
            target=np.array([self.target]),
            balance=np.array([self.balance]),
            held=np.array([len(self.central)]),
            bin_mass=np.zeros((len(fleet.rate), 0)) if sure is None else sure.mass,
            bin_accuracy=np.zeros((len(fleet.rate), 0, len(fleet.rate)))
            if sure is None
            else sure.expected,
            bin_edges=np.zeros((len(fleet.rate), 0)) if sure is None else sure.edges,
            first_s=row_s,
            asked=np.array([self.asked]),
            again=np.zeros(len(servers), np.int64),
            chances=np.zeros(len(servers), np.int64),
            devices=self._view_of_devices(),
        )

    def _view_of_devices(self) -> NoDevices | SharedDevices:
        """What of the devices a policy may look at."""
        of = self.scenario.fleet.devices
        if of is None:
            return NoDevices()
        ends_s, free_s, crowd = np.full((3, len(self.devices), int(of.slots.max())), np.nan)
        for device in self.devices:
            here = [server for server in self.servers if self._device(server) is device]
            present = sum(len(server.queue) for server in here)
            for last in range(device.slots):
                crowd[device.number, last] = present * (last + 1) / device.slots
            ends_s[device.number, : device.slots] = self._ends_s(device)
            free_s[device.number, : device.slots] = self._free_s(device)
        running = [server for device in self.devices for server in device.running]
        waiting = [server for device in self.devices for server in device.waiting]
        nobody = np.zeros(0, np.int64)
        firsts = [device.waiting[:1] for device in self.devices]
        return SharedDevices(
            device=of.device,
            taken=of.taken,
            slots=of.slots,
            widest=np.array(
                [of.taken[of.device == d].max(initial=0) for d in range(len(of.slots))]
            ),
            lead_s=of.lead_s,
            shown=np.array([self._room(device) for device in self.devices]),
            used=np.array(
                [
                    sum(one.site._taken(one.k) for one in d.running)
                    if d.loading is None
                    else d.slots
                    for d in self.devices
                ]
            ),
            holds=np.array([server in running for server in self.servers]),
            waits=np.array([server in waiting for server in self.servers]),
            due_s=np.zeros(0),
            first=np.array([one[0].number if one else -1 for one in firsts]),  # of any order
            last=nobody,
            after=nobody,
            before=nobody,
            resting=np.array(self.idle),
            resting_classes=np.array([sum(1 << k for k, n in enumerate(self.idle) if n > 0)]),
            runs_end_s=ends_s,
            free_s=free_s,
            work_s=np.zeros(0),
            wide=nobody,
            crowd=crowd,
            stale=np.zeros(len(self.devices), np.bool_),
            claims=np.zeros((0, 5)),
            at=0,
            number=nobody,
            own=nobody,
            others=np.zeros((0, 5)),
            others_count=np.zeros(1, np.int64),
            others_used=np.zeros(len(self.devices), np.int64),
            others_due_s=np.full(len(self.devices), np.inf),
            others_first=np.full(len(self.devices), -1),
            changes=self._view_of_changes(),
        )

    def _view_of_changes(self) -> NoChanges | Changes:
        of = self.scenario.fleet.devices
        assert of is not None
        if not of.exclusive.any():
            return NoChanges()
        lines = {d.number: self._foretell(d) for d in self.devices if d.exclusive}
        done_s, joins_s = np.full((2, len(self.servers)), np.nan)
        for line in lines.values():
            for foreseen, own_s in ((done_s, line.done_s), (joins_s, line.joins_s)):
                for server, at_s in own_s.items():
                    if server.site is self:
                        foreseen[server.number] = at_s

        def number(variant: Variant | None) -> int:
            """Of a class or server of this task; those of others are none of its."""
            if variant is None:
                return -1
            return variant[1] if variant[0] is self else -2

        return Changes(
            exclusive=of.exclusive,
            load_s=of.loads_s,
            held=np.array([number(device.variant) for device in self.devices]),
            loads=np.array(
                [number(d.loading and (d.loading.site, d.loading.number)) for d in self.devices]
            ),
            ready_s=np.array([device.ready_s for device in self.devices]),
            then=np.array(
                [number(lines[d.number].variant) if d.exclusive else -1 for d in self.devices]
            ),
            done_s=done_s,
            joins_s=joins_s,
            place=np.zeros(0, np.int64),
            rows=np.zeros(0, np.int64),
            contents=np.zeros((0, 2), np.int64),
            since=np.zeros(0, np.int64),
            after_s=np.zeros(1),
        )


class PlainSites:
    """Several tasks whose servers share the devices of one node.

    The earliest event of all is next; of those at the same time arrivals come last, and then the
    tasks in their order. Where a run has given its slots back, every other task decides again for
    the first of its central queue.
    """

    def __init__(self, scenarios: list[Scenario], seeds: list[int]) -> None:
        self.sites = [PlainSite(one, seed) for one, seed in zip(scenarios, seeds, strict=True)]
        first = [[device.variant for device in site.devices] for site in self.sites]
        for site in self.sites:
            site.sharers, site.devices = self.sites, self.sites[0].devices
        for device in self.sites[0].devices:
            here = [variant for one in first if (variant := one[device.number]) is not None]
            device.variant = max(here, key=lambda one: one[0].view().rate[one[1]], default=None)

    def run(self, requests: list[int]) -> list[list[Left]]:
        """So many requests of each task arrive, and all that can leave do."""
        coming = [
            deque(next(site.arrivals) for _ in range(count))
            for site, count in zip(self.sites, requests, strict=True)
        ]
        while True:
            due = [
                (site.events[0][0], False, number)
                for number, site in enumerate(self.sites)
                if site.events
            ] + [(times[0][0], True, number) for number, times in enumerate(coming) if times]
            if not due or not (any(coming) or any(map(self._goes_on, self.sites))):
                return [site.left for site in self.sites]
            now_s, arrives, number = min(due)
            site = self.sites[number]
            for one in self.sites:
                one.now_s, one.gave = now_s, False
            if arrives:
                _, phase = coming[number].popleft()
                site.target = site.targets[phase]
                site.present += 1
                site._send(Waiting(now_s, phase, number=site._number()))
                continue
            _, _, what, server, service = heapq.heappop(site.events)
            site._happens(what, site.servers[server], service)
            if site.gave:
                for other in self.sites:
                    if other is not site and other.central:
                        other._release()

    def _goes_on(self, site: PlainSite) -> bool:
        """Whether what is there may still leave: not where all waits for what will not happen."""
        waiting = [one for device in site.devices for one in device.waiting if one.site is site]
        return site.present > 0 and bool(site.events or waiting)


@dataclass
class MarkovRun:
    """What `markov` counts, by phase and class."""

    arrived: list[int]
    rejected: list[int]
    sent: list[list[int]]
    response_s: list[list[float]]
    balance: float = 0.0
    now_s: float = 0.0


class MarkovSite(PlainSite):
    """The same site where only rates matter: what happens next is drawn among all that may."""

    def count(self, requests: int) -> MarkovRun:
        """So many requests arrive, and all leave."""
        phases, classes = range(len(self.targets)), range(len(self.scenario.fleet.rate))
        self.words = self.decisions
        self.found = MarkovRun(
            [0 for _ in phases],
            [0 for _ in phases],
            [[0 for _ in classes] for _ in phases],
            [[0.0 for _ in classes] for _ in phases],
        )
        if isinstance(self.scenario.arrivals, PhasedArrivals):
            spans_ = spans(self.scenario.arrivals, horizon_s=math.inf)
        else:
            spans_ = iter(phases_of(self.scenario.arrivals, self.scenario.capacity_per_s))
        for span in spans_:
            self.target = self.targets[span.phase]
            assert span.rate_per_s is not None
            while requests > 0:
                arrived = self._next(span.rate_per_s, span.phase, span.end_s)
                if arrived is None:
                    break
                requests -= arrived
            if requests == 0:
                break
        while self._next(0.0, 0, math.inf) is not None:
            pass
        self.found.balance, self.found.now_s = self.balance, self.now_s
        return self.found

    def _next(self, rate_per_s: float, phase: int, until_s: float) -> bool | None:
        """One event; whether it was an arrival, or None at the end of the phase."""
        rates = self.scenario.fleet.rate.tolist()
        # By class, those with a request, as they stand behind the idle ones.
        busy = [standing[idle:] for standing, idle in zip(self.standing, self.idle, strict=True)]
        shares = [len(servers) * rate for servers, rate in zip(busy, rates, strict=True)]
        total = rate_per_s + sum(shares)
        if total == 0:
            return None
        then_s = self.now_s + self.words.exponential() / total
        if then_s > until_s:
            self.now_s = until_s
            return None
        self.now_s = then_s
        place = self.words.unit() * total - rate_per_s
        if place < 0:
            self.found.arrived[phase] += 1
            decided = self._decide(Waiting(self.now_s, phase))
            if decided < 0:
                self.found.rejected[phase] += 1
            else:
                self.found.sent[phase][self.servers[decided].k] += 1
                self._join(self.servers[decided], Waiting(self.now_s, phase))
            return True
        k = 0
        while place >= shares[k] and k + 1 < len(shares):
            place -= shares[k]
            k += 1
        server = self.servers[busy[k][min(int(place / rates[k]), len(busy[k]) - 1)]]
        request = self._take_first(server)
        self.found.response_s[request.phase][k] += self.now_s - request.arrived_s
        self._tell(COMPLETED, server, 0.0, 0.0, 1)
        return False

    def _start(self, server: Server) -> None:
        """Nothing is planned."""
