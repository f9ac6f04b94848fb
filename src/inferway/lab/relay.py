"""The relay: reads packets from every node's device and writes each to its neighbor's, later.

A process of its own, run as a file with its settings on standard input (see `main`). It imports the
standard library only, so that it starts in milliseconds and holds 15 MB.

One heap holds all packets on their way, one `epoll` all descriptors. `epoll` itself waits in whole
milliseconds; `select` on its descriptor waits in microseconds. To rest a little between wake-ups
saved nothing and made all packets late. What decides is how soon the relay runs when one is due
while models keep all cores busy, hence its real-time priority: benchmarks/emulation.py measures it.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import select
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_TUNSETOFFLOAD: Final = 0x400454D0
_WHOLE: Final = 0x01 | 0x02
_CUT_UP: Final = 0x01
_LARGEST: Final = 65535 + 10
_BURST: Final = 64  # Packets read from one device before what is due is looked at again
_DESTINATION: Final = slice(10 + 16, 10 + 20)
_HELD: Final = 256 << 20  # Bytes on their way at most, in all pairs together


@dataclass(slots=True, eq=False)
class Pair:
    """One direction of a link, between the devices of two descriptors, and what passed it.

    Packets are of up to 64 KB where the link has neither loss nor a limit.
    """

    source: int
    target: int
    planned_s: float  # as the file says
    delay_s: float
    loss: float = 0.0
    bytes_per_s: float = 0.0
    cut: bool = False
    free_s: float = 0.0  # when the link has sent what it was given
    last_s: float = 0.0  # when the last packet arrives: in order, whatever the delay became
    passed: int = 0
    passed_bytes: int = 0
    lost: int = 0  # on the way or to a cut
    full: int = 0  # refused by a full queue


class PacketRelay:
    """Passes packets on until its owner ends or it is killed.

    Nodes, the descriptors of their devices (see `inferway.lab.device.opened`) and their packed
    addresses are in one order. A link is the index of one end, of the other, and a round-trip time
    in seconds; `queue_s` are the seconds that a packet may wait for one with a limit.
    """

    def __init__(
        self,
        nodes: list[str],
        devices: list[int],
        addresses: list[bytes],
        links: list[tuple[int, int, float]],
        *,
        seed: int,
        queue_s: float,
    ) -> None:
        self._nodes, self._devices = nodes, devices
        self._queue_s = queue_s
        self._draw = random.Random(seed).random
        self.pairs: dict[tuple[str, str], Pair] = {}
        self._routes: dict[int, dict[bytes, Pair]] = {device: {} for device in devices}
        for one, other, rtt_s in links:
            for source, target in ((one, other), (other, one)):
                pair = Pair(devices[source], devices[target], rtt_s / 2, rtt_s / 2)
                self.pairs[nodes[source], nodes[target]] = pair
                self._routes[devices[source]][addresses[target]] = pair
        self._whole: dict[int, bool] = {}
        self._fit()
        self._heap: list[tuple[float, int, Pair, bytes]] = []
        self._held = self._read = 0
        # How late packets were, by the bits of whole microseconds: 0, 1, 2..3, 4..7, ...
        self._late = [0] * 40

    def run(self, control: socket.socket, owner: int) -> None:
        """Pass packets on, answer those who connect to `control`, return when `owner` ends."""
        poll = select.epoll()
        for device in self._devices:
            poll.register(device, select.EPOLLIN)
        ears: dict[int, tuple[socket.socket, bytearray]] = {}
        for descriptor in (control.fileno(), owner):
            poll.register(descriptor, select.EPOLLIN)
        # Select takes numbers below 1024 only, and what was standard input is one.
        waited = (os.dup2(poll.fileno(), 0),)
        heap, routes, clock = self._heap, self._routes, time.monotonic
        while True:
            self._deliver()
            left_s = max(0.0, heap[0][0] - clock()) if heap else None
            if not select.select(waited, (), (), left_s)[0]:
                continue
            for descriptor, _ in poll.poll(0):
                if descriptor in routes:
                    self._take(descriptor)
                elif descriptor == owner:
                    return
                elif descriptor == control.fileno():
                    with suppress(OSError):
                        ear, _ = control.accept()
                        ear.setblocking(False)
                        ears[ear.fileno()] = ear, bytearray()
                        poll.register(ear, select.EPOLLIN)
                elif not self._hear(*ears[descriptor]):
                    poll.unregister(descriptor)
                    ears.pop(descriptor)[0].close()

    def _take(self, device: int) -> None:
        now_s, routes = time.monotonic(), self._routes[device]
        for _ in range(_BURST):
            try:
                packet = os.read(device, _LARGEST)
            except BlockingIOError:
                return
            except OSError:  # the device is down for now
                return
            pair = routes.get(packet[_DESTINATION])
            if pair is None:
                continue
            if pair.cut or (pair.loss and self._draw() < pair.loss):
                pair.lost += 1
                continue
            due_s = now_s
            if pair.bytes_per_s:
                start_s = max(now_s, pair.free_s)
                if start_s - now_s > self._queue_s:
                    pair.full += 1
                    continue
                due_s = pair.free_s = start_s + (len(packet) - 10) / pair.bytes_per_s
            if self._held > _HELD:
                pair.full += 1
                continue
            pair.last_s = due_s = max(due_s + pair.delay_s, pair.last_s)
            self._read += 1
            self._held += len(packet)
            heapq.heappush(self._heap, (due_s, self._read, pair, packet))

    def _deliver(self) -> None:
        heap, clock = self._heap, time.monotonic
        now_s = clock()
        while heap and heap[0][0] <= now_s:
            due_s, _, pair, packet = heapq.heappop(heap)
            self._held -= len(packet)
            if pair.cut:  # it was on the way
                pair.lost += 1
                continue
            try:
                os.write(pair.target, packet)
            except OSError:  # the device is down, or it has no memory
                pair.lost += 1
                continue
            pair.passed += 1
            pair.passed_bytes += len(packet) - 10
            now_s = clock()
            self._late[int(1e6 * (now_s - due_s)).bit_length()] += 1

    def _hear(self, ear: socket.socket, heard: bytearray) -> bool:
        """Do what a line of JSON says; False when the one who says it is gone."""
        try:
            read = ear.recv(65536)
            *lines, heard[:] = bytes(heard + read).split(b"\n")
            for line in lines:
                try:
                    answer = self._obey(json.loads(line))
                except (ValueError, TypeError, KeyError) as error:
                    answer = {"error": str(error.args[0]) if error.args else repr(error)}
                ear.sendall(json.dumps(answer).encode() + b"\n")
        except OSError:  # it is gone, or does not read its answers
            return False
        return bool(read)

    def _obey(self, order: dict[str, Any]) -> dict[str, Any]:
        do = order["do"]
        if do == "count":
            return {
                "cpu_s": time.process_time(),
                "late": self._late,
                "pairs": [
                    [*names, pair.passed, pair.passed_bytes, pair.lost, pair.full]
                    for names, pair in self.pairs.items()
                ],
            }
        if do not in ("cut", "heal", "change"):
            raise ValueError(f"there is nothing called {do}: cut, heal, change and count are")
        for pair in self._pairs(order.get("ends", []), order.get("both", True)):
            changes = order
            if do != "change":
                healed = {"delay_s": pair.planned_s, "loss": 0.0, "bytes_per_s": 0.0, "cut": False}
                changes = {"cut": True} if do == "cut" else healed
            for field in ("delay_s", "loss", "bytes_per_s", "cut"):
                setattr(pair, field, changes.get(field, getattr(pair, field)))
        self._fit()
        return {}

    def _pairs(self, ends: list[str], both: bool) -> list[Pair]:
        for name in ends:
            if name not in self._nodes:
                raise ValueError(f"there is no node {name}")
        if len(ends) == 2:
            one, other = ends
            if (one, other) not in self.pairs:
                raise ValueError(f"there is no link between {one} and {other}")
            ways = [(one, other), (other, one)] if both else [(one, other)]
            return [self.pairs[way] for way in ways]
        if len(ends) > 2 or not both:
            raise ValueError("name the two ends of a link, or one node for all of its links")
        return [pair for names, pair in self.pairs.items() if not ends or ends[0] in names]

    def _fit(self) -> None:
        """Let devices give large packets whole where nothing depends on the size of one."""
        for device, routes in self._routes.items():
            whole = not any(pair.loss or pair.bytes_per_s for pair in routes.values())
            if self._whole.get(device) != whole:
                fcntl.ioctl(device, _TUNSETOFFLOAD, _WHOLE if whole else _CUT_UP)
                self._whole[device] = whole


def main() -> None:
    """Read the settings, relay, and when the owner has died without a word, clean up after it."""
    given = json.load(sys.stdin)
    for descriptor in given["descriptors"]:
        os.set_inheritable(descriptor, False)
    owner = os.pidfd_open(given["owner"])
    if os.getppid() == given["owner"]:
        # Before all that computes, where the machine allows it.
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        except OSError:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, -20)
        with suppress(OSError):
            Path("/proc/self/timerslack_ns").write_text("1")
        addresses = [bytes.fromhex(address) for address in given["addresses"]]
        options = {name: given[name] for name in ("nodes", "devices", "links", "seed", "queue_s")}
        relay = PacketRelay(addresses=addresses, **options)
        relay.run(socket.socket(fileno=given["control"]), owner)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.execve(given["remove"][0], given["remove"], os.environ | given["environment"])


if __name__ == "__main__":
    main()
