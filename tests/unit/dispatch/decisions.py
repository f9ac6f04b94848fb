"""Prints every policy's decisions over a fixed course of events, with the JIT on or off."""

from __future__ import annotations

import json
import sys

import numpy as np

from inferway.dispatch import POLICIES, Dispatcher, max_rate
from inferway.site import ALL_CLASSES, Fleet


def decisions(name: str, max_wait_s: float | None = None) -> list[float]:
    """Servers, in turn, and at the end the accuracy balance."""
    fleet = Fleet(
        ("a", "b", "c"),
        np.array([8.0, 3.0, 1.0]),
        np.array([0.6, 0.8, 0.95]),
        np.array([2, 2, 3]),
        buffer=4,
    )
    rate = 0.8 * max_rate(fleet, 0.8)
    dispatcher = Dispatcher(
        fleet, name, target=0.8, rate_per_s=rate, max_wait_s=max_wait_s, lasting=0b100
    )
    generator = np.random.default_rng(11)
    found: list[float] = []
    for step in range(600):
        now, word = step / 10, int(generator.integers(-(2**63), 2**63))
        deadline = now + 1.5 if step % 7 == 0 else np.inf
        classes = 0b110 if step % 11 == 0 else ALL_CLASSES
        floor = 0.7 if step % 13 == 0 else 0.0
        server = dispatcher.arrive(
            now, word, deadline, floor, 0, classes, 1 + step % 3, step % 11 != 0
        )
        found.append(server)
        for server in range(fleet.servers):
            waiting = int(dispatcher.site.queue[server])
            if waiting > 1 and generator.random() < 0.05:
                dispatcher.withdraw(server, waiting - 1, now)
            elif waiting and generator.random() < 0.3:
                dispatcher.finish(server, now, 0.1)
        if step % 50 == 0:
            dispatcher.mark(step % fleet.servers, step % 100 == 0, now)
    return [*found, dispatcher.balance]


if __name__ == "__main__":
    found = {name: decisions(name) for name in POLICIES}
    found |= {f"{name}, saturated": decisions(name, 0.3) for name in POLICIES}
    json.dump(found, sys.stdout)
