"""A whole network of processes, and what a test asks of them."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from ports import free_ports

ROOT = Path(__file__).parents[3]
FILE = ROOT / "examples" / "topology-2.yaml"
LIMIT_S = 60.0


def parts(network: DeliveryNetwork, node: int, requests: Any, load: Any) -> dict[str, Any]:
    """Cut what a node measures itself out of the whole network's requests and loads."""
    from inferway.placement.layout import data_of

    crossings = data_of(network)[node].crossings
    return {
        "arrived": {
            rho: float(requests[rho])
            for rho, crossing in crossings.items()
            if crossing.downstream is None
        },
        "load": {rho: load[crossing.option].tolist() for rho, crossing in crossings.items()},
    }


class Process:
    """One member."""

    def __init__(self, settings: Path, name: str) -> None:
        self.name = name
        self.opening = 0.0
        self.events: list[tuple[str, bool, float]] = []
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._seen = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "member.py"), str(settings), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ready(self) -> None:
        self.opening = self.answer()["opening"]

    def tell(self, do: str, **what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **what}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        return self._answers.get(timeout=LIMIT_S)

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        self.tell(do, **what)
        return self.answer()

    def signal(self, which: signal.Signals) -> float:
        """Send a signal; returns when, by the clock that all processes share."""
        at = time.monotonic()
        self.process.send_signal(which)
        return at

    def saw(self, who: str, alive: bool, after: float) -> float:
        """Wait until the member sees a neighbor come or go; returns seconds since `after`."""

        def found() -> float | None:
            for name, state, at in self.events:
                if name == who and state == alive and at >= after:
                    return at
            return None

        with self._seen:
            assert self._seen.wait_for(lambda: found() is not None, LIMIT_S), (self.name, who)
            at = found()
        assert at is not None
        return at - after

    def finish(self) -> None:
        """Tell it to end."""
        assert self.process.stdin is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
        if not self.process.stdin.closed:
            self.process.stdin.close()

    def end(self) -> None:
        self.finish()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if "event" in said:
                with self._seen:
                    self.events.append((said["event"], said["alive"], said["at"]))
                    self._seen.notify_all()
            else:
                self._answers.put(said)


class Members:
    """All nodes of a file's network, each a process."""

    def __init__(
        self,
        network: DeliveryNetwork,
        folder: Path,
        *,
        file: Path = FILE,
        certs: Path | None = None,
        seed: int = 3,
        slot_s: float = 1.0,
    ) -> None:
        self.network = network
        self.settings = folder / "settings.json"
        ports = free_ports(len(network.nodes))
        self.addresses = {
            name: f"127.0.0.1:{port}" for name, port in zip(network.nodes, ports, strict=True)
        }
        self.settings.write_text(
            json.dumps(
                {
                    "file": str(file),
                    "addresses": self.addresses,
                    "certs": None if certs is None else str(certs),
                    "seed": seed,
                    "slot_s": slot_s,
                }
            )
        )
        self.of: dict[str, Process] = {}
        for name in network.nodes:
            self.start(name)
        for one in self.of.values():
            one.ready()

    def start(self, name: str) -> Process:
        self.of[name] = Process(self.settings, name)
        return self.of[name]

    def joined(self, neighbors: dict[str, set[str]]) -> None:
        """Wait until every member sees its neighbors."""
        for name, others in neighbors.items():
            for other in others:
                self.of[name].saw(other, True, 0.0)

    def settle(self) -> dict[str, dict[str, Any]]:
        """Wait until every letter that was sent has been taken; returns each member's counts."""
        end = time.monotonic() + LIMIT_S
        before = None
        while time.monotonic() < end:
            counts = {name: one.ask("counts") for name, one in self.of.items()}
            sent, received = (
                sum(n for one in counts.values() for n, _ in one[way].values())
                for way in ("sent", "received")
            )
            # Twice, as one that has answered may have had to take and to send before the next did.
            if sent == received and before == (sent, received):
                return counts
            before = (sent, received)
        raise AssertionError(f"letters are still on their way: {before}")

    def step(self, slot: int, requests: Any, load: Any) -> None:
        """Run one slot, its letters all delivered."""
        for node, name in enumerate(self.network.nodes):
            self.of[name].ask("close", slot=slot, **parts(self.network, node, requests, load))
        self.settle()
        for one in self.of.values():
            one.ask("step")
        self.settle()

    def state(self) -> tuple[np.ndarray, np.ndarray]:
        """Return allocation and fractional state of all nodes together."""
        states = [self.of[name].ask("state") for name in self.network.nodes]
        x = np.concatenate([np.array(one["x"], np.uint8) for one in states])
        y = np.concatenate([np.frombuffer(bytes.fromhex(one["y"])) for one in states])
        return x, y

    def end(self) -> None:
        for one in self.of.values():
            one.finish()
        for one in self.of.values():
            one.end()
