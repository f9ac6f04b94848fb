"""Children that fetch or save until they are killed, in the middle of it.

One process imports what they need and forks them, so that a round takes milliseconds. It prints a
line of JSON at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import ssl
import sys
from pathlib import Path

import numpy as np

from inferway.live.node.state import NodeState, Saved
from inferway.live.store.allowed import Allowed
from inferway.live.store.store import ModelStore
from inferway.placement.infida import InfidaState

PAIRS = 3000


def saved(slot: int) -> Saved:
    """A state in which every number is the slot's, so that two mixed ones are seen."""
    infida = InfidaState(
        y=np.full(PAIRS, float(slot)),
        spread=np.full(1, float(slot)),
        steep=np.full(1, float(slot)),
        x=np.full(PAIRS, slot % 256, np.uint8),
        slot=np.array([slot, slot]),
    )
    return Saved(infida, (f"digits/tiny#{slot}",), str(slot).encode())


def slot_of(state: Saved) -> int:
    """The slot of a state, if all of it is of this one."""
    slot = int(state.infida.slot[0])
    for found, expected in zip(state.infida, saved(slot).infida, strict=True):
        assert np.array_equal(found, expected)
    assert (state.loaded, state.random) == saved(slot)[1:]
    return slot


def mortal(limit: int) -> None:
    """Have the kernel kill this process as soon as it writes to a file beyond so many bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def save(file: Path, rounds: int) -> None:
    """Kill a child that saves slot after slot; what comes back is not older than it said."""
    chance, last = random.Random(1), 0
    for _ in range(rounds):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            state = NodeState(file, "one")
            slot = last
            while True:
                slot += 1
                state.save(saved(slot))
                os.write(writer, slot.to_bytes(8, "big"))
        os.close(writer)
        for _ in range(chance.randrange(4)):
            last = int.from_bytes(os.read(reader, 8), "big")
        # Some more moments, of any length, so that it is hit anywhere.
        for _ in range(chance.randrange(3000)):
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        last = checked(file, reader, last)
    print(json.dumps({"slots": last}))


def cut(file: Path) -> None:
    """Kill a child that saves at one byte after the other of what it writes."""
    last, killed = 0, 0
    for limit in range(1000, 110_000, 4999):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            mortal(limit)
            state = NodeState(file, "one")
            for slot in range(last + 1, last + 4):
                state.save(saved(slot))
                os.write(writer, slot.to_bytes(8, "big"))
            os._exit(0)
        os.close(writer)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXFSZ
        last = checked(file, reader, last)
    print(json.dumps({"slots": last, "killed": killed}))


def checked(file: Path, reader: int, last: int) -> int:
    """Compare what came back with what the child said; return its slot."""
    said = last
    while word := os.read(reader, 8):
        said = int.from_bytes(word, "big")
    os.close(reader)
    state = NodeState(file, "one")
    loaded = state.load()
    state.close()
    found = last if loaded is None else slot_of(loaded)
    # It may have been killed between the commit and its word.
    assert said <= found <= said + 1, (said, found)
    return found


def fetch(folder: Path, url: str, digest: str, trusted: str, rounds: int) -> None:
    """Kill a child that fetches at one byte after the other, until the model is whole."""
    chance, size = random.Random(2), 0
    whole, part = folder / digest[7:], folder / f"{digest[7:]}.part"

    async def once() -> None:
        context = ssl.create_default_context(cafile=trusted)
        store = ModelStore(
            folder, limit_bytes=100_000_000, allowed=Allowed(loopback=True), tls=context
        )
        await store.fetch(url, digest)

    for done in range(rounds):  # noqa: B007
        limit = size + chance.randrange(400_000)
        child = os.fork()
        if not child:
            mortal(limit)
            asyncio.run(once())
            os._exit(0)
        os.waitpid(child, 0)
        if whole.exists():
            break
        size = part.stat().st_size if part.exists() else 0
    print(json.dumps({"rounds": done + 1, "whole": whole.exists()}))


if __name__ == "__main__":
    _, what, place, *rest = sys.argv
    if what == "save":
        save(Path(place), int(rest[0]))
    elif what == "cut":
        cut(Path(place))
    else:
        fetch(Path(place), rest[0], rest[1], rest[2], int(rest[3]))
