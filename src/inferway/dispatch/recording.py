"""Recorded truth: every event and random word that a dispatcher was given, and what it decided.

A recording is a folder with `recording.json` (fleet, policy, target, versions) and numbered pairs
of files: `000001.state.npz`, the site's and the policy's arrays at that moment, and
`000001.events`, rows of `EVENT` from there on. Old pairs go when there are more than `keep`, and
the oldest one left still says where to start. A process that dies loses the rows since its last
`flush` and nothing else, but for a state that it had begun to write.

A recording has one fleet. A world whose fleet changes begins another recording.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from inferway.dispatch.dispatcher import Dispatcher, Plan
from inferway.site.compiled import fingerprint
from inferway.site.view import ALL_CLASSES, WHOLE, Floats, Ints, Site

ARRIVE, FINISH, WITHDRAW, MARK, PULL, RETUNE, HELD, BEGIN, ROUTE, SHIFT = range(10)
LASTING, BALANCE = 10, 11
"""Kinds of event: the dispatcher's calls, and what the world has changed itself since the last of
them: the length of the central queue, which it keeps, and the balance, to which it adds what became
of requests of the site before. A routing has a row for each server, or class where there are more
of these."""

EVENT = np.dtype(
    [
        ("kind", "<u1"),
        ("flag", "<u1"),  # counted, or healthy, or the last row of a routing
        ("priority", "<i2"),
        # Or the position withdrawn, what `pull` took or began, rows measured, a smallest batch,
        # the end of a range of servers.
        ("rows", "<i4"),
        ("server", "<i4"),  # chosen or concerned; REJECT and HOLD as they are; -1 for no routing
        ("floor", "<f8"),  # or of times that are shifted, s
        ("time_s", "<f8"),
        ("word", "<i8"),
        # Deadline, service time, its shift or rate, s or 1/s; a probability; a balance.
        ("value", "<f8"),
        ("classes", "<i8"),  # or what `pull` dropped, a largest batch; those that last
    ]
)
_ROW = struct.Struct("<BBhiiddqdq")
assert _ROW.size == EVENT.itemsize

_BUFFERED = 1024
SCHEMA = 3
READ: Final = (1, 2, 3)
"""Schemas that can be replayed; the first had no classes that last, and the second no rows that a
run has at most."""
# A state is a megabyte of mostly nothing: to pack it takes 10 ms, which the caller has not to give.
_PACKING: Final = ThreadPoolExecutor(1, "recording")


class Recording:
    """A dispatcher whose every call is written down.

    It takes the dispatcher's place: the same calls, with the same results. One call costs one to
    two microseconds more. Where the disk refuses a write, the recording ends there, `error` says
    why, and the dispatcher goes on.

    Parameters
    ----------
    dispatcher
        The one that decides.
    folder
        Where the recording goes; made if missing, refused if it holds one already.
    rows
        Events per file.
    keep
        Files kept.
    told
        Called when another file has begun, and when the recording has ended.

    Raises
    ------
    ValueError
        Where the folder already holds a recording.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        folder: Path,
        *,
        rows: int = 1_000_000,
        keep: int = 16,
        told: Callable[[], None] | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._folder = folder
        self._rows, self._keep, self._told = rows, keep, told
        self._buffer = bytearray(_BUFFERED * _ROW.size)
        self._used, self._in_file, self._number = 0, 0, 0
        self._file: BinaryIO | None = None
        self._packing: Future[None] | None = None
        held: Any = dispatcher.site.held
        self._held, self._seen_held = memoryview(held), 0
        balance: Any = dispatcher.site.balance
        self._balance, self._seen_balance = memoryview(balance), 0.0
        self.error: OSError | None = None
        head = folder / "recording.json"
        if head.exists():
            raise ValueError(f"{folder} already holds a recording; name another folder")
        folder.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: a node that is killed here leaves other recordings beside it.
        part = folder / "recording.part"
        part.write_text(json.dumps(_head(dispatcher), indent=2) + "\n", encoding="utf-8")
        part.replace(head)
        self._next_file()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatcher, name)

    @property
    def writing(self) -> bool:
        """Whether anything may still be written to the folder."""
        return self._file is not None or not (self._packing is None or self._packing.done())

    def arrive(
        self,
        now_s: float,
        draw: int,
        deadline_s: float = np.inf,
        floor: float = 0.0,
        priority: int = 0,
        classes: int = ALL_CLASSES,
        rows: int = 1,
        counted: bool = True,
    ) -> int:
        """As `Dispatcher.arrive`."""
        self._look()
        server = self._dispatcher.arrive(
            now_s, draw, deadline_s, floor, priority, classes, rows, counted
        )
        self._write(
            ARRIVE, counted, priority, rows, server, floor, now_s, draw, deadline_s, classes
        )
        return server

    def begin(self, server: int, taken: int, now_s: float) -> None:
        """As `Dispatcher.begin`."""
        self._look()
        self._dispatcher.begin(server, taken, now_s)
        self._write(BEGIN, 0, 0, taken, server, 0.0, now_s, 0, 0.0, 0)

    def finish(self, server: int, now_s: float, service_s: float, measured: int = 0) -> None:
        """As `Dispatcher.finish`."""
        self._look()
        self._dispatcher.finish(server, now_s, service_s, measured)
        self._write(FINISH, 0, 0, measured, server, 0.0, now_s, 0, service_s, 0)

    def withdraw(self, server: int, position: int, now_s: float, counted: bool = True) -> None:
        """As `Dispatcher.withdraw`."""
        self._look()
        self._dispatcher.withdraw(server, position, now_s, counted)
        self._write(WITHDRAW, counted, 0, position, server, 0.0, now_s, 0, 0.0, 0)

    def mark(self, server: int, healthy: bool, now_s: float) -> None:
        """As `Dispatcher.mark`."""
        self._look()
        self._dispatcher.mark(server, healthy, now_s)
        self._write(MARK, healthy, 0, 0, server, 0.0, now_s, 0, 0.0, 0)

    def shift(self, low: int, high: int, by_s: float, least_s: float, now_s: float) -> None:
        """As `Dispatcher.shift`."""
        self._look()
        self._dispatcher.shift(low, high, by_s, least_s, now_s)
        self._write(SHIFT, 0, 0, high, low, least_s, now_s, 0, by_s, 0)

    def set_lasting(self, lasting: int) -> None:
        """As `Dispatcher.set_lasting`."""
        if lasting != self._dispatcher.lasting:
            self._look()
            self._dispatcher.set_lasting(lasting)
            self._write(LASTING, 0, 0, 0, 0, 0.0, 0.0, 0, 0.0, lasting)

    def pull(self, server: int, now_s: float, draw: int) -> tuple[int, int]:
        """As `Dispatcher.pull`."""
        self._look()
        drop, take = self._dispatcher.pull(server, now_s, draw)
        self._write(PULL, 0, 0, take, server, 0.0, now_s, draw, 0.0, drop)
        return drop, take

    def retune(self, rate_per_s: float) -> None:
        """As `Dispatcher.retune`."""
        self.adopt(self._dispatcher.plan(rate_per_s))

    def adopt(self, plan: Plan) -> None:
        """As `Dispatcher.adopt`."""
        self._look()
        self._dispatcher.adopt(plan)
        self._write(RETUNE, 0, 0, 0, 0, 0.0, 0.0, 0, plan.rate_per_s, 0)

    def route(
        self,
        probabilities: Floats | None,
        smallest: Ints | None = None,
        largest: Ints | None = None,
    ) -> None:
        """As `Dispatcher.route`."""
        self._look()
        self._dispatcher.route(probabilities, smallest, largest)
        if probabilities is None:
            self._write(ROUTE, 1, 0, 0, -1, 0.0, 0.0, 0, 0.0, 0)
            return
        policy = self._dispatcher.policy
        sizes = list(zip(policy.smallest.tolist(), policy.largest.tolist(), strict=True))
        shares = np.asarray(probabilities, np.float64).tolist()
        last = max(len(shares), len(sizes)) - 1
        for i in range(last + 1):
            least, most = sizes[i] if i < len(sizes) else (0, 0)
            share = shares[i] if i < len(shares) else 0.0
            self._write(ROUTE, i == last, 0, least, i, 0.0, 0.0, 0, share, most)

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        if self._packing is not None and self._packing.done():
            self._packed()
        if self._file is None:
            return
        used, self._used = self._used, 0
        try:
            self._file.write(memoryview(self._buffer)[: used * _ROW.size])
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Write the last rows; later calls are decided and no longer written."""
        self._end()
        if self._told is not None:
            self._told()

    def _end(self) -> None:
        self.flush()
        file, self._file = self._file, None
        if file is not None:
            file.close()
        self._packed()

    def _packed(self) -> None:
        packing, self._packing = self._packing, None
        if packing is not None:
            try:
                packing.result()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.error = error
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _look(self) -> None:
        """Write down that the balance is another than after the last call; to be asked before one.

        In full, for sums of the same numbers in another order differ in their last bits.
        """
        if (balance := self._balance[0]) != self._seen_balance and self._file is not None:
            self._seen_balance = balance
            self._pack(BALANCE, 0, 0, 0, 0, 0.0, 0.0, 0, balance, 0)

    def _write(self, *row: float) -> None:
        if self._file is None:
            return
        self._seen_balance = self._balance[0]
        if (held := self._held[0]) != self._seen_held:
            # No call changes it, so that it was the same before this one.
            self._seen_held = held
            self._pack(HELD, 0, 0, held, 0, 0.0, 0.0, 0, 0.0, 0)
        self._pack(*row)
        # A routing is not divided: what begins a file is whole.
        if self._in_file >= self._rows and (row[0] != ROUTE or row[1]):
            try:
                self._next_file()
            except OSError as error:
                self._give_up(error)
            if self._told is not None:
                self._told()

    def _pack(self, *row: float) -> None:
        _ROW.pack_into(self._buffer, self._used * _ROW.size, *row)
        self._used += 1
        self._in_file += 1
        if self._used == _BUFFERED:
            self.flush()

    def _next_file(self) -> None:
        self._end()
        if self.error is not None:
            return
        self._number += 1
        self._in_file = 0
        self._seen_held, self._seen_balance = self._held[0], self._balance[0]
        name = f"{self._number:06d}"
        state: Any = {name: array.copy() for name, array in _state(self._dispatcher).items()}
        file = self._folder / f"{name}.state.npz"
        self._packing = _PACKING.submit(np.savez_compressed, file, **state)
        self._file = (self._folder / f"{name}.events").open("wb")
        old = f"{self._number - self._keep:06d}"
        for ending in (".state.npz", ".events"):
            (self._folder / f"{old}{ending}").unlink(missing_ok=True)


def restore(dispatcher: Dispatcher, state: dict[str, np.ndarray]) -> None:
    """Set a dispatcher's arrays as they were when a file began."""
    for name, array in state.items():
        owner, _, field = name.partition(".")
        if owner == "dispatcher":
            dispatcher.set_lasting(int(array))
            continue
        np.copyto(getattr(dispatcher.site if owner == "site" else dispatcher.policy, field), array)
    if "site.most_rows" not in state:  # requests were not divided yet
        dispatcher.site.most_rows[:] = WHOLE


def _state(dispatcher: Dispatcher) -> dict[str, np.ndarray]:
    arrays = {f"site.{field}": getattr(dispatcher.site, field) for field in Site._fields}
    arrays["dispatcher.lasting"] = np.array(dispatcher.lasting, np.int64)
    for field, value in zip(dispatcher.policy._fields, dispatcher.policy, strict=True):
        if isinstance(value, np.ndarray):
            arrays[f"policy.{field}"] = value
    return arrays


def _head(dispatcher: Dispatcher) -> dict[str, Any]:
    from inferway import __version__

    fleet = dispatcher.fleet
    price = fleet.price if fleet.price is not None else np.zeros(len(fleet.variants))
    return {
        "schema": SCHEMA,
        "inferway": __version__,
        "code": fingerprint(dispatcher.sources, __name__),
        "policy": dispatcher.policy_name,
        "options": dispatcher.options,
        "folder": None if dispatcher.folder is None else str(dispatcher.folder.resolve()),
        "target": dispatcher.target,
        "rate_per_s": dispatcher.rate_per_s,
        "measure": dispatcher.measure,
        "narrow": dispatcher.narrow,
        "max_wait_s": dispatcher.max_wait_s,
        "lasting": dispatcher.lasting,
        "fleet": {
            "task": fleet.task,
            "node": fleet.node,
            "variants": list(fleet.variants),
            "rate": fleet.rate.tolist(),
            "accuracy": fleet.accuracy.tolist(),
            "count": fleet.count.tolist(),
            "price": price.tolist(),
            "energy": fleet.energy.tolist(),
            "buffer": fleet.buffer,
        },
    }
