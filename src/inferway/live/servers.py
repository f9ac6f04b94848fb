"""The servers of a fleet: which take requests, what waits at each, and when it will be free."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import islice
from typing import Final

from inferway.dispatch.batching import run_s_of
from inferway.dispatch.dispatcher import Dispatcher
from inferway.dispatch.joint import BALANCE, TargetState
from inferway.dispatch.recording import Recording
from inferway.live.exclusive import HeldVariants
from inferway.live.gate import DeviceGate, due_s
from inferway.live.headroom import is_closed
from inferway.live.instance import Instance
from inferway.live.options import PoolOptions
from inferway.live.request import DROPPED, EXPIRED, InferRequest, RequestBatch, ShadowRun, fit
from inferway.live.upstream.upstream import Upstream
from inferway.protocol import Signature

WITHDRAWN: Final = "the node does not offer this any more"
FIRST_WAIT_S = 1.0
# Waits between probes: none before the first, then these two and doublings in between.
LONGEST_WAIT_S = 60.0
HALF_WORD: Final = 2**63


class ServerQueues:
    """Holds the requests at servers, each in a queue of its own, and has instances run them.

    An instance without batches has all of its server's requests, and takes one after the other.
    With batches they wait here, and it has one batch at most: a free server is asked what it takes
    when a request comes to it and when it falls free. By the file's rule that is the size, counted
    in rows, that serves the most per second and keeps the first in time; of what a policy takes,
    the largest size that it fills.

    Where servers share devices, requests wait here as well, and a free server runs the next when
    its device has room: the order is the dispatcher's, and the twin's. Servers of other fleets may
    stand in the same line.

    What policies predict of a server, it predicts for those who tell clients of the future.

    `expired` ends requests that a server drops, with the reason. `held` are the variants that
    exclusive devices hold, and `unloaded` is told the server for which one could not be loaded, and
    why.

    Attributes
    ----------
    targets
        Those over several tasks that this one is one of.
    gate
        Before the devices; with nobody else where `share` has not been called.
    held, pull
        The pool's central queue, and what decides on that again.
    """

    held: deque[InferRequest]
    pull: Callable[[], None]

    def __init__(
        self,
        dispatcher: Dispatcher | Recording,
        instances: Sequence[Instance],
        class_of: Sequence[int],
        signature: Signature,
        options: PoolOptions,
        expired: Callable[[InferRequest, str], None],
        held: HeldVariants | None = None,
        unloaded: Callable[[int, str], None] | None = None,
    ) -> None:
        self._held_variants, self._unloaded = held, unloaded
        # Servers that wait for their device to load their variant, before the fleet serves.
        self._visits: dict[int, asyncio.Future[None]] = {}
        self.dispatcher, self.instances, self._expired = dispatcher, instances, expired
        self.queues: list[deque[InferRequest]] = [deque() for _ in instances]
        self._now, self._drop_late = options.now, options.drop_late
        self._view, rules = dispatcher.site, options.rules
        self._measured = options.measured
        # By class, those that floors are held against.
        self._class_of, self.accuracy = class_of, dispatcher.fleet.accuracy.tolist()
        self._rules = [None if rules is None else rules[k] for k in class_of]
        self._places = int(dispatcher.site.arrived_s.shape[1])
        self._pulls = hasattr(dispatcher.policy, "pull")
        self._shares = dispatcher.shares
        self.batches = self._pulls or rules is not None or self._shares
        self.gate = DeviceGate()
        if held is not None:
            dispatcher.hold_nothing()
        self._join()
        # Whether requests of the task may differ in more than their first axis.
        self._mixed = not is_closed(signature)
        self._serving: list[RequestBatch | None] = [None] * len(instances)
        # Of servers that wait for more, when they are asked again at the latest.
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self.draw = random.Random(options.seed).getrandbits
        self.targets: Sequence[TargetState] = ()
        self._shadows: dict[int, ShadowRun] = {}
        self._shadows_end = False
        self._flushing = False
        self._idle: asyncio.Event | None = None

    def left_s(self, request: InferRequest) -> float:
        """Time until a request's deadline."""
        # Where late requests are served, nothing is refused for being late.
        return request.deadline_s - self._now() if self._drop_late else math.inf

    def share(self, gate: DeviceGate) -> None:
        """Stand in one line with the other fleets of a node, before anything is put here."""
        if gate is not self.gate:
            self.gate.leave(self)
            self.gate = gate
            self._join()

    def _join(self) -> None:
        if self._held_variants is not None:
            self._held_variants.contents = self.gate.loaded
        self.gate.join(self, self._now())

    def leave(self) -> None:
        """Hold nothing of the devices any more, and wait for none."""
        if self._held_variants is not None:
            self._held_variants.leave()
        self.gate.leave(self)

    @asynccontextmanager
    async def loading(self, k: int) -> AsyncIterator[None]:
        """Have the device of a class for itself with its variant loaded, in its turn.

        For who has no requests yet. Where the device holds all of its variants, nothing is done.

        Raises
        ------
        WarmUpError
            Where the variant cannot be loaded.
        """
        held, server, works = self._held_variants, self._class_of.index(k), False
        if held is None or k not in held.device_of:
            yield
            return
        await self._visit(server)
        try:
            await held.begin(k)
            self.dispatcher.set_load_time(k, held.load_s[held.variants[k]])
            yield
            works = True
        finally:
            self.dispatcher.end_change(server, works, self._now())
            self.grant(server)
            self.gate.pull()

    async def hold(self, k: int) -> None:
        """Have the device of a class hold its variant, as `loading` does, if it does not."""
        self.dispatcher.look(self._now())
        if self.dispatcher.needs_change(self._class_of.index(k)):
            async with self.loading(k):
                pass

    async def _visit(self, server: int) -> None:
        now_s = self._now()
        if self.dispatcher.ask_turn(server, now_s, now_s):
            self.dispatcher.begin_change(server, now_s)
            return
        self._visits[server] = turn = asyncio.get_running_loop().create_future()
        try:
            await turn
        except asyncio.CancelledError:
            if self._visits.pop(server, None) is None:  # its turn has come meanwhile
                self.dispatcher.end_change(server, False, self._now())
            else:
                self.dispatcher.leave_line(server, self._now())
            self.grant(server)
            raise

    def put(self, request: InferRequest) -> bool:
        """Take a request that has been given its server; whether it is left waiting there."""
        server = request.server
        queue = self.queues[server]
        if self._shares:
            # Those at other servers may be on the device that this one is to run on.
            self.gate.end_runs_in_passing()
        elif self._shadows:
            self._give_way(server)
        queue.append(request)
        if not self.batches:
            self.instances[server].put(request)
            return len(queue) > 1
        self._ask(server)
        if request.outcome is not None or request.server < 0:
            return False
        batch = self._serving[server]
        return batch is None or request not in batch.members

    # Shadows: runs that nobody waits for, which no queue and no policy knows of.

    def is_spare(self, server: int) -> bool:
        """Tell whether a server takes requests and has none, nor a shadow, and its device room.

        Where servers share devices, nothing may wait at any: it may be next there.
        """
        idle = not self.queues[server] and server not in self._shadows and not self._shadows_end
        idle = idle and self._held_variants is None  # its device may have to change at any moment
        if not idle or not self._view.healthy[server] or not self._has_room(server):
            return False
        return not self._shares or not self.gate.has_waiting()

    def has_waiting(self) -> bool:
        """Tell whether a request waits at any server."""
        return any(
            batch is None or one not in batch.members
            for batch, queue in zip(self._serving, self.queues, strict=True)
            for one in queue
        )

    def run_shadow(self, shadow: ShadowRun) -> None:
        """Have its server, which is spare, run a shadow, until a request is put there."""
        self._shadows[shadow.server] = shadow
        self.instances[shadow.server].put(shadow)

    def forget_shadow(self, shadow: ShadowRun) -> None:
        """Take note that a shadow has ended."""
        if self._shadows.get(shadow.server) is shadow:
            del self._shadows[shadow.server]

    def end_shadows(self) -> None:
        """Stop all shadows, and run none any more."""
        self._shadows_end = True
        self.end_runs_in_passing()

    def end_runs_in_passing(self) -> None:
        """Stop the shadows that run now."""
        for server in [*self._shadows]:
            self._give_way(server)

    def _give_way(self, server: int) -> None:
        shadow = self._shadows.pop(server, None)
        if shadow is None:
            return
        instance = self.instances[server]
        if instance.cancel(shadow):
            shadow.abandoned = True
            shadow.deliver(shadow)
        else:
            instance.abort(shadow)

    def take_back(self, request: InferRequest) -> None:
        """Undo a decision where no answer is sent: the place is freed and the balance moved back.

        Where an earlier answer is in hand, the balance counts that one.

        The request keeps its server's number, for those who count.
        """
        server = request.server
        queue = self.queues[server]
        position = queue.index(request)
        del queue[position]
        request.untime()
        if not request.settled:
            self.dispatcher.withdraw(server, position, self._now(), request.counted)
            if self._measured and request.counted:
                # The dispatch moved the balances by the accuracy that counted then.
                site, k = self.dispatcher.site, self._class_of[server]
                since = request.rows * (site.accuracy[k] - request.credit)
                site.balance[0] += since
                for target in self.targets:
                    if target.kind == "accuracy":
                        target.row[BALANCE] += since
            return
        # An answer has come before: it is sent, if there is anybody to send it to.
        hand = request.hand
        sent = hand is not None and (request.sent or not request.abandoned)
        self.dispatcher.fall_back(
            server,
            position,
            self._now(),
            first=server if hand is None else hand.server,
            in_hand=hand.worth if hand is not None and sent else math.nan,
            credit=request.credit,
            counted=request.counted,
        )

    def recall(self, request: InferRequest) -> bool:
        """Take a request from its server and undo its decision; False when its run has begun.

        A batch that has not begun goes on without the request.
        """
        server = request.server
        if not self.batches:
            if not self.instances[server].cancel(request):
                return False
            self.take_back(request)
            return True
        if request.outcome is not None:
            return False  # it has ended, or is about to
        batch = self._serving[server]
        if batch is None or request not in batch.members:
            self.take_back(request)
            if batch is None and self.queues[server]:
                self._begin(server, 0)
            elif batch is None and self._shares:
                self.dispatcher.leave_line(server, self._now())
                self.grant(server)
            self._look()
            return True
        if not self.instances[server].cancel(batch):
            return False
        batch.members.remove(request)
        batch.padded = 0
        self.take_back(request)
        if batch.members:
            self._begin(server, len(batch.members))
            self.instances[server].put(batch)
        else:
            self._serving[server] = None
            self.ended(server)
            self._ask(server)
            self.grant(server)
        return True

    def abort(self, request: InferRequest) -> None:
        """Nobody waits for a request whose run has begun: it is stopped where it can be.

        A batch is, when nobody waits for any of its answers.
        """
        server = request.server
        if not self.batches:
            self.instances[server].abort(request)
            return
        request.abandoned = True
        batch = self._serving[server]
        if batch is not None and all(one.abandoned for one in batch.members):
            self.instances[server].abort(batch)

    def begun(self, server: int) -> int:
        """Number of a server's requests in service; they stand before the others."""
        if not self.batches:
            return min(1, len(self.queues[server]))
        batch = self._serving[server]
        return 0 if batch is None else len(batch.members)

    def ended(self, server: int) -> None:
        """Let others have the slots of a run that has ended; before its requests are settled."""
        if self._shares:
            self.dispatcher.end_run(server, self._now())

    def settled(self, batch: RequestBatch) -> None:
        """Let the server of a batch whose members have left, or wait again, take the next.

        Those go on whose turn it is at its device.
        """
        self._serving[batch.server] = None
        self._ask(batch.server)
        self.grant(batch.server)
        self._look()

    def flush(self) -> None:
        """Let nobody wait for requests that will not come: a server takes what there is."""
        self._flushing = True
        for server in range(len(self.instances)) if self.batches else ():
            self._ask(server)

    async def drain(self, limit_s: float) -> list[InferRequest]:
        """Run what waits here, as far as the limit allows; what was left is in no queue now.

        What instances have, they end themselves.
        """
        if not self.batches:
            return []
        self.flush()
        self._idle = asyncio.Event()
        self._look()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit_s)
        waiting = [one for queue in self.queues for one in queue]
        return [request for request in waiting if self.recall(request)]

    def _look(self) -> None:
        if self._idle is not None and not any(self._serving) and not any(self.queues):
            self._idle.set()

    def _begin(self, server: int, taken: int) -> None:
        """Say that a server serves its first requests together, or waits for more with 0."""
        self.dispatcher.begin(server, taken, self._now())

    def _ask(self, server: int) -> None:
        queue = self.queues[server]
        if self._serving[server] is not None or not queue:
            return
        if not self._shares or self.dispatcher.ask_turn(server, due_s(queue[0]), self._now()):
            self.start_turn(server)

    def grant(self, server: int) -> None:
        """Let those start who wait at the device of a server, as far as it has room."""
        if self._shares:
            self.gate.grant(self, server, self._now())

    def start_turn(self, server: int) -> None:
        """Have a free server run what it takes of its queue, or wait for more."""
        if (visit := self._visits.pop(server, None)) is not None:
            self.dispatcher.begin_change(server, self._now())
            if not visit.done():  # it may have been given up just now
                visit.set_result(None)
            return
        queue = self.queues[server]
        gone: list[tuple[InferRequest, str]] = []
        if queue[0].alone:
            take = 1
        else:
            rule = self._rules[server]
            if self._pulls:
                drop, take = self.dispatcher.pull(server, self._now(), self.draw(64) - HALF_WORD)
            else:
                drop, take = 0, 1
                if rule is not None:
                    take = 0 if len(queue) < rule.smallest else min(len(queue), rule.largest)
            for _ in range(min(drop, len(queue))):
                gone.append((queue[0], DROPPED))
                self.take_back(queue[0])
            while queue and self.left_s(queue[0]) < 0.0:
                gone.append((queue[0], EXPIRED))
                self.take_back(queue[0])
            if self._flushing and take <= 0:
                take = len(queue)
        members, padded = self._first(server, take)
        if (timer := self._timers.pop(server, None)) is not None:
            timer.cancel()
        if members and (later_s := self._waits(server, members)) > 0.0:
            loop = asyncio.get_running_loop()
            self._timers[server] = loop.call_later(later_s, self._ask, server)
            members = []
        held = self._held_variants
        if members and held is not None and self.dispatcher.needs_change(server):
            self.dispatcher.begin_change(server, self._now())
            held.spawn(self._change(held, server))
            members = []
        if members:
            for request in members:
                request.untime()
            if self._shares:
                self.gate.end_runs_in_passing()
                self.dispatcher.start_run(server, len(members), self._now())
            else:
                self._begin(server, len(members))
            self._serving[server] = batch = RequestBatch(server, members, padded)
            self.instances[server].put(batch)
        elif queue:
            self._begin(server, 0)
        # Told last: whoever hears of it may send the next request at once.
        for request, reason in gone:
            self._expired(request, reason)

    async def _change(self, held: HeldVariants, server: int) -> None:
        """Have the device of a server load its variant; its run is next, whoever else waits."""
        k, reason = self._class_of[server], ""
        begun_s = self._now()
        try:
            await held.load(k)
        except Exception as error:  # whatever a model raises, its requests are answered
            reason = " ".join(str(error).split()) or type(error).__name__
        held.count(k, self._now() - begun_s)
        now_s = self._now()
        if not reason:
            load_s = held.load_s[self.dispatcher.fleet.variants[k]]
            self.dispatcher.set_load_time(k, load_s)
        self.dispatcher.end_change(server, not reason, now_s)
        if reason:
            assert self._unloaded is not None
            self._unloaded(server, reason)
        elif self.queues[server]:
            self.start_turn(server)
        self.grant(server)
        self._look()
        self.gate.pull()

    def _first(self, server: int, take: int) -> tuple[list[InferRequest], int]:
        """Those at the head of the queue that make the batch, and the rows that are run for it."""
        queue = self.queues[server]
        if not queue or take <= 0:
            return [], 0
        first, rule = queue[0], self._rules[server]
        members = [first]
        if rule is None or first.alone:
            return members, first.rows
        for request in islice(queue, 1, take):
            if request.alone or (self._mixed and not fit(first, request)):
                break
            members.append(request)
        rows = sum(request.rows for request in members)
        room = rule.rounded(rows)
        if not self._pulls:
            room = self.dispatcher.form(server, min(rows, rule.largest), self.left_s(first)).rows
        while len(members) > 1 and rows > room:
            rows -= members.pop().rows
        return members, rule.padded(rows)

    def _waits(self, server: int, members: list[InferRequest]) -> float:
        """How long a server had better wait until it begins this batch, for more to come, s."""
        rule, first = self._rules[server], members[0]
        if rule is None or rule.wait_s == 0.0 or self._pulls or first.alone or self._flushing:
            return 0.0
        now_s, rows = self._now(), sum(request.rows for request in members)
        latest_s = now_s + self.left_s(first)
        form = partial(self.dispatcher.form, server)
        return rule.form(form, rows, now_s, first.received_s, latest_s)[1] - now_s

    # Predictions, as policies make them.

    def mask(self, request: InferRequest) -> int:
        """Bit mask of the classes that may answer, by pin and accuracy floor."""
        enough = sum(1 << k for k, one in enumerate(self.accuracy) if one >= request.floor)
        return enough & request.classes

    def predict(self, server: int, rows: int) -> tuple[float, float]:
        """Wait and service time of a request of so many rows that joined the server now."""
        return self.dispatcher.predict(server, rows, self._now())

    def earliest_s(self, classes: int, rows: int) -> float:
        """Time until the first server of these classes has answered a newcomer."""
        return min(
            (sum(self.predict(server, rows)) for server in self._of(classes)), default=math.inf
        )

    def has_place(self, request: InferRequest, classes: int) -> bool:
        """Tell whether a server of these classes has a place for a request, and would be in time.

        Only those that may answer it are looked at.
        """
        left_s, rows = self.left_s(request), request.rows
        return any(
            len(self.queues[server]) < self._places
            and (left_s == math.inf or sum(self.predict(server, rows)) <= left_s)
            for server in self._of(classes & self.mask(request))
        )

    def idle_s(self, classes: int) -> float:
        """Time until the first server of these classes is idle."""
        return min(map(self._free_in_s, self._of(classes)), default=math.inf)

    def _free_in_s(self, server: int) -> float:
        view = self._view
        if self._shares:
            return self.predict(server, 1)[0]
        if not view.queue[server]:
            return 0.0
        ends_s, free_s = view.ends_s.item(server), view.free_s.item(server)
        return float(max(0.0, ends_s - self._now()) + (free_s - ends_s))

    def service_s(self, server: int, rows: int) -> float:
        """Service time of a lone request of so many rows at the server, all its runs."""
        most, row_s = self._view.most_rows.item(server), self._view.row_s[server]
        full, rest = divmod(rows, most) if rows > most else (0, rows)
        full_s = full * run_s_of(row_s, most) if full else 0.0
        return full_s + (run_s_of(row_s, rest) if rest else 0.0)

    def falls_open(self, request: InferRequest, least: int) -> bool:
        """Tell whether a server that may answer would be in time, once it is free.

        Only servers that hold at least so many requests are looked at, and those that wait for
        their device.
        """
        left_s = self.left_s(request)
        return any(
            (self._view.queue[server] >= least or not self._has_room(server))
            and self.service_s(server, request.rows) <= left_s
            for server in self._of(self.mask(request))
        )

    def _has_room(self, server: int) -> bool:
        """Tell whether a run of the server could start at its device at once."""
        if not self._shares:
            return True
        self.dispatcher.look(self._now())
        devices, k = self._view.devices, self._class_of[server]
        return bool(devices.resting[k] == 0 or self._view.idle[k] > 0)

    def others(self) -> bytes:
        """Claims of other fleets on the devices, as the last decision saw them."""
        devices = self.dispatcher.site.devices
        if not self._shares or not len(devices.claims):
            return b""
        return bytes(devices.others[: devices.others_count[0]].tobytes())

    def _of(self, classes: int) -> Iterator[int]:
        return (
            server
            for server, k in enumerate(self._class_of)
            if classes >> k & 1 and self._view.healthy[server]
        )


class Health:
    """Knows which servers take requests, and probes those that rest.

    An instance rests when it has failed at `FAILURES` requests in a row and then at zeros. One that
    is back is on trial: until it has answered a request, one failure and zeros send it away again,
    and the waits between its probes go on growing. What stands for another node rests while the way
    there does not work, or its offer is withdrawn; the way probes itself.

    Parameters
    ----------
    instances
        One per server.
    class_of
        Class of each server.
    changed
        Called with a server, whether it takes requests from now on, and why not.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        class_of: Sequence[int],
        changed: Callable[[int, bool, str], None],
    ) -> None:
        self._instances, self._class_of, self._changed = instances, class_of, changed
        self.healthy = [True] * len(instances)
        # The same, one byte each, for those who keep it.
        self.flags = bytes(self.healthy)
        self._wait_s = [0.0] * len(instances)
        self._due_s = [math.inf] * len(instances)
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._groups: dict[Upstream, list[int]] = {}
        for server, instance in enumerate(instances):
            if instance.group is not None:
                self._groups.setdefault(instance.group, []).append(server)
        self._watchers: list[tuple[Upstream, Callable[[bool, str], None]]] = []
        self._withdrawn: frozenset[int] = frozenset()
        self._stopped = False

    def start(self) -> None:
        """Probe from now on what rests, and watch what fails together."""
        for server, instance in enumerate(self._instances):
            if instance.resting:
                self.rest(server, f"{instance.name} failed: {instance.complaint}")
        for group, servers in self._groups.items():
            watcher = partial(self._mark_group, servers)
            self._watchers.append((group, watcher))
            group.watch(watcher)
            if group.works and self._withdrawn:
                watcher(True, "")

    def stop(self) -> None:
        """Probe and watch no more."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        for group, watcher in self._watchers:
            group.unwatch(watcher)
        self._watchers.clear()

    def any_of(self, classes: int) -> bool:
        """Tell whether a server of these classes takes requests."""
        return any(
            healthy and classes >> k & 1
            for healthy, k in zip(self.healthy, self._class_of, strict=True)
        )

    def retry_s(self, classes: int) -> float:
        """Time until a server of these classes that rests is tried again."""
        due_s = min(
            (
                due_s
                for due_s, healthy, k in zip(self._due_s, self.healthy, self._class_of, strict=True)
                if not healthy and classes >> k & 1
            ),
            default=math.inf,
        )
        return max(0.0, due_s - asyncio.get_running_loop().time())

    def behind(self, server: int) -> int:
        """Classes whose servers fail together with a server's, as a bit mask; 0 where none does."""
        group = self._instances[server].group
        classes = () if group is None else {self._class_of[one] for one in self._groups[group]}
        return sum(1 << k for k in classes)

    def withdraw(self, classes: frozenset[int]) -> None:
        """Have the servers of these classes, and of no others, rest as withdrawn."""
        turned, self._withdrawn = self._withdrawn ^ classes, classes
        for group, servers in self._groups.items():
            those = [server for server in servers if self._class_of[server] in turned]
            self._mark_group(those, group.works, group.reason)

    def _mark_group(self, servers: Sequence[int], works: bool, reason: str) -> None:
        # All rest before the first is marked: what it had queued is not to go to the next of them.
        takes = {
            server: works and self._class_of[server] not in self._withdrawn for server in servers
        }
        for server in servers:
            self._instances[server].resting = not takes[server]
        for server in servers:
            if takes[server] == self.healthy[server]:
                continue
            if not takes[server]:
                self._due_s[server] = asyncio.get_running_loop().time() + FIRST_WAIT_S
                self._set(server, False, reason or WITHDRAWN)
            elif not self._stopped:
                self._set(server, True, "")

    def rest(self, server: int, reason: str) -> None:
        """The server has failed too often; told again while it rests, nothing happens."""
        if not self.healthy[server]:
            return
        instance = self._instances[server]
        if instance.proven:
            instance.proven = False
            self._wait_s[server] = 0.0
        self._set(server, False, reason)
        self._try_later(server)

    def _set(self, server: int, healthy: bool, reason: str) -> None:
        self.healthy[server] = healthy
        self.flags = bytes(self.healthy)
        self._changed(server, healthy, reason)

    def _try_later(self, server: int) -> None:
        wait_s = self._wait_s[server]
        self._wait_s[server] = min(LONGEST_WAIT_S, max(FIRST_WAIT_S, 2.0 * wait_s))
        if self._instances[server].cold:
            wait_s = max(FIRST_WAIT_S, wait_s)
        loop = asyncio.get_running_loop()
        self._due_s[server] = loop.time() + wait_s
        self._timers[server] = loop.call_later(wait_s, self._try, server)

    def _try(self, server: int) -> None:
        loop = asyncio.get_running_loop()

        def tell(failure: str) -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._tried, server, failure)

        self._instances[server].probe(tell)

    def _tried(self, server: int, failure: str) -> None:
        if self._stopped:
            return
        if failure:
            self._try_later(server)
        else:
            self._set(server, True, "")
