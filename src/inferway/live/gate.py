"""The gate before the devices of a node: runs of all its tasks stand in one line there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, Protocol

import numpy as np

from inferway.dispatch.dispatcher import Dispatcher
from inferway.dispatch.recording import Recording
from inferway.dispatch.turns import NEVER_DUE_S
from inferway.live.exclusive import DeviceContent
from inferway.live.request import InferRequest
from inferway.site.claims import HELD_VARIANT, no_claims, no_contents
from inferway.site.view import Floats, Ints

_ROWS: Final = 16
"""Rows of claims are made so many at a time."""


class Sharer(Protocol):
    """One fleet's servers, as the gate knows them."""

    dispatcher: Dispatcher | Recording

    held: deque[InferRequest]  # The central queue
    pull: Callable[[], None]  # Decides on that again

    def start_turn(self, server: int) -> None:
        """Have a server run whose turn it is."""
        ...

    def grant(self, server: int) -> None:
        """Let those start who wait at the device of a server, as far as it has room."""
        ...

    async def hold(self, k: int) -> None:
        """Have the device of a class hold its variant."""
        ...

    def end_runs_in_passing(self) -> None:
        """Stop shadows, which nobody waits for."""
        ...

    def has_waiting(self) -> bool:
        """Tell whether a request waits at any server."""
        ...


class DeviceGate:
    """Has the fleets of a node share its devices: one account, and one line.

    `loaded` says what its exclusive devices hold, each a variant of one of the fleets.

    Devices of several fleets are the same where they have the same name. Each fleet counts its own
    slots, as its file says them, against what all of them hold. All methods belong to the event
    loop.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._first: dict[Sharer, int] = {}  # Row of each fleet's first server
        self._claims: Floats = no_claims(0)
        self.loaded: dict[str, DeviceContent] = {}
        # The same, for policies.
        self._contents: Ints = no_contents(0)

    def join(self, sharer: Sharer, now_s: float) -> None:
        """Have a fleet share the devices from now on, until it leaves; one with none does not.

        Those that were alone until now tell what they hold and wait for.
        """
        devices = sharer.dispatcher.fleet.devices
        if devices is None or sharer in self._first:
            return
        for name in devices.names:
            self._numbers.setdefault(name, len(self._numbers))
        self._first[sharer] = self._room_for(sharer)
        exclusive = bool(devices.exclusive.any())
        if exclusive and (more := len(self._numbers) - len(self._contents)) > 0:
            self._contents = np.concatenate((self._contents, no_contents(more)))
        if len(self._first) > 1:
            rows = max(self._first[one] + _servers(one) for one in self._first)
            if rows > len(self._claims):
                larger = no_claims(-(-rows // _ROWS) * _ROWS)
                larger[: len(self._claims)] = self._claims
                self._claims = larger
        # One that is alone needs to look at nobody, but what its devices hold is the node's.
        if len(self._first) > 1 or exclusive:
            for one in self._first:
                self._bind(one, now_s)

    def _room_for(self, sharer: Sharer) -> int:
        """Find the first rows that nobody has."""
        first, needed = 0, _servers(sharer)
        taken = sorted((at, at + _servers(one)) for one, at in self._first.items())
        for begin, end in taken:
            if begin - first >= needed:
                break
            first = end
        return first

    def _bind(self, sharer: Sharer, now_s: float) -> None:
        devices = sharer.dispatcher.site.devices
        held = getattr(devices.changes, "contents", self._contents)
        if devices.claims is not self._claims or held is not self._contents:
            sharer.dispatcher.share_devices(
                self._claims, self._first[sharer], self._numbers_of(sharer), self._contents
            )
            sharer.dispatcher.look(now_s)

    def _numbers_of(self, sharer: Sharer) -> Ints:
        devices = sharer.dispatcher.fleet.devices
        assert devices is not None
        return np.array([self._numbers[name] for name in devices.names])

    def leave(self, sharer: Sharer) -> None:
        """Let go of all that a fleet holds and waits for, and of the fleet."""
        first = self._first.pop(sharer, None)
        if first is None:
            return
        if len(sharer.dispatcher.site.devices.claims):
            # What ends there later is nobody's business.
            sharer.dispatcher.share_devices(
                no_claims(0), 0, self._numbers_of(sharer), self._contents.copy()
            )
        last = first + _servers(sharer)
        self._claims[first:last] = no_claims(1)
        held = self._contents[:, HELD_VARIANT]
        held[(held >= first) & (held < last)] = -1
        for one in [*self._first]:
            fleet = one.dispatcher.fleet
            assert fleet.devices is not None
            for server in fleet.first[:-1][fleet.devices.device >= 0].tolist():
                one.grant(server)
        self.pull()

    def grant(self, sharer: Sharer, server: int, now_s: float) -> None:
        """Let those start, of whichever fleet, who wait at a server's device, as it has room."""
        asked_another = False
        while (turn := sharer.dispatcher.next_turn(server, now_s)) != -1:
            if turn >= 0:
                sharer.start_turn(turn)
            elif asked_another:
                return
            else:
                sharer, first = self._owner(-2 - turn)
                server = -2 - turn - first
            asked_another = turn < 0

    def _owner(self, row: int) -> tuple[Sharer, int]:
        return max(
            ((one, first) for one, first in self._first.items() if first <= row),
            key=lambda pair: pair[1],
        )

    async def hold_fastest(self) -> None:
        """Have each exclusive device hold the fastest of its variants, as simulations begin.

        WarmUpError where that cannot be loaded.
        """
        fastest: dict[str, tuple[float, Sharer, int]] = {}
        for one in self._first:
            fleet = one.dispatcher.fleet
            assert fleet.devices is not None
            for k, d in enumerate(fleet.devices.device.tolist()):
                if d < 0 or not fleet.devices.exclusive[d]:
                    continue
                name, rate = fleet.devices.names[d], float(fleet.rate[k])
                if name not in fastest or rate > fastest[name][0]:
                    fastest[name] = rate, one, k
        for _, one, k in fastest.values():
            await one.hold(k)

    def pull(self) -> None:
        """Have all fleets decide on their central queues again, whose head is due first, first."""
        waiting = [one for one in self._first if one.held]
        for one in sorted(waiting, key=lambda one: due_s(one.held[0])):
            one.pull()

    def end_runs_in_passing(self) -> None:
        """Stop the shadows of all fleets: a device may be needed."""
        for one in self._first:
            one.end_runs_in_passing()

    def has_waiting(self) -> bool:
        """Tell whether a request waits at any server of any fleet."""
        return any(one.has_waiting() for one in self._first)

    def status(self) -> dict[str, dict[str, int]]:
        """Tell of each device its slots, how many runs of all tasks hold, and how many wait."""
        told: dict[str, dict[str, int]] = {}
        for one in self._first:
            fleet, shared = one.dispatcher.fleet, one.dispatcher.site.devices
            assert fleet.devices is not None
            device = fleet.devices.device.repeat(fleet.count)
            for d, name in enumerate(fleet.devices.names):
                whole = told.setdefault(name, {"slots": 0, "busy": 0, "waiting": 0})
                whole["slots"] = int(fleet.devices.slots[d])
                whole["busy"] += int(shared.used[d])
                whole["waiting"] += int(shared.waits[device == d].sum())
        return told


def _servers(sharer: Sharer) -> int:
    return sharer.dispatcher.fleet.servers


def due_s(request: InferRequest) -> float:
    """When a request is due, for its turn at a device; without a deadline, behind all with one."""
    deadline_s = request.deadline_s
    return deadline_s if deadline_s < inf else request.received_s + NEVER_DUE_S
