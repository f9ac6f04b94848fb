"""Recorded truth: every event and random word that a dispatcher was given, and what it decided.

A recording is a folder with `recording.json` (fleet with what its confidences say, policy, target,
versions) and numbered pairs of files: `000001.state.npz`, the site's and the policy's arrays at
that moment, and `000001.events`, rows of `EVENT` from there on. Old pairs go when there are more
than `keep`, and the oldest one left still says where to start. A process that dies loses the rows
since its last `flush` and nothing else, but for a state that it had begun to write.

A recording has one fleet. A world whose fleet changes begins another recording. So does one whose
disk takes no more: `Recording.go_on`, once there is room. What is missing between the two is
counted meanwhile, and both say so: `ended` of the first one's head, `gap` of the other's.
"""

from __future__ import annotations

import json
import math
import struct
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import FileIO
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np

from inferway.dispatch.dispatcher import Dispatcher, RetunedPolicy
from inferway.dispatch.steps import code_of
from inferway.site.claims import DEVICE, VARIANT, no_claims, no_contents
from inferway.site.confidence import ConfidenceTables
from inferway.site.devices import DeviceSlots
from inferway.site.sharing import as_shown
from inferway.site.view import ALL_CLASSES, Floats, Ints, Site

ARRIVE, FINISH, WITHDRAW, MARK, PULL, RETUNE, HELD, BEGIN, ROUTE, SHIFT = range(10)
# Kinds of event: the dispatcher's calls, and what the world has changed itself since the last of
# them: the length of the central queue, which it keeps, and the balance, to which it adds what
# became of requests of the site before. A routing has a row for each server, or class where there
# are more of these.
LASTING, BALANCE = 10, 11
# Where a second variant may be asked: an answer that has come, of a server, with the expected
# accuracy credited so far (value), when its request entered (floor) and how many servers have
# answered (classes); for each bin of its confidence, falling none, how many of its rows are in it;
# and last what is decided, as of an arrival. Then, that the answer in hand is sent for want of the
# second: value and floor are what was credited and what is in hand, classes its server.
ANSWER, BIN, SETTLE, FALL_BACK = 12, 13, 14, 15
# That the accuracies are others from now on, as labels have measured them: a row for each class.
ACCURACY = 16
# Where servers share devices: one asks for its turn, its first request due then (value); a run
# begins; it ends; one waits no longer; and who is next is asked at a server's device.
TURN, START, END, LEAVE, NEXT = range(17, 22)
# What others have changed of the memory that policies of several tasks share, since the last call:
# a row for each number, of which `server` says the place.
SHARED = 22
# Where a device holds one variant at a time: it begins to change for a server; that has ended; and
# how long loading a class's variant is predicted to take (value, s).
CHANGE, CHANGED, LOAD_TIME = range(23, 26)
# What a server of another fleet has changed of what it holds of the devices and waits for, since
# the last call: its row among the claims (`server`), device (`priority`, -1 for none), slots
# (`rows`), whether it holds them (`flag`), by when, or when it is due (`floor`), and its work
# (`value`), as `inferway.site.claims` has them.
CLAIM = 26
# What each request takes of a device (`server`) before it runs (value, s), as it is measured.
OVERHEAD = 27
# What such a server has changed where a device holds one variant at a time: its row (`server`), its
# variant (`classes`), the time to load it (`value`, s), and when its next run is due (`floor`).
CLAIM_HELD = 28
# That another fleet has changed such a device (`server`), by how many changes of it there were
# (`word`) and what it holds (`classes`), as the same place has it.
CONTENT = 29

EVENT = np.dtype(
    [
        ("kind", "<u1"),
        # Counted, or healthy, or the last row of a routing or of accuracies.
        ("flag", "<u1"),
        ("priority", "<i2"),
        # Or the position withdrawn, what `pull` took or began, rows measured, a smallest batch,
        # the end of a range of servers.
        ("rows", "<i4"),
        # Chosen or concerned; REJECT, HOLD and ACCEPT as they are; -1 for no routing; bin or class.
        ("server", "<i4"),
        ("floor", "<f8"),  # or of times that are shifted, s
        ("time_s", "<f8"),
        ("word", "<i8"),
        # Deadline, service time, its shift or rate, s or 1/s; a probability, balance or accuracy.
        ("value", "<f8"),
        ("classes", "<i8"),  # or what `pull` dropped, a largest batch; those that last
    ]
)
_ROW = struct.Struct("<BBhiiddqdq")
assert _ROW.size == EVENT.itemsize

_BUFFERED = 1024
SCHEMA = 11
# Recordings of schema 4 have no second answers, those of 5 no accuracies that change, those of 6
# neither devices nor memory that several tasks share, those of 7 no exclusive devices; in those of
# 8 what requests take of devices before they run stays what it was at the start, in those of 9
# what was measured is believed for ever, and in those of 10 no two tasks share an exclusive device.
READABLE: Final = (4, 5, 6, 7, 8, 9, 10, 11)
# A state is a megabyte of mostly nothing: to pack it takes 10 ms, which the caller has not to give.
_PACKING: Final = ThreadPoolExecutor(1, "recording")
_HEAD: Final = "recording.json"
# Bytes of the head that are left blank: on a full disk, what is there can be written over.
_SPARE: Final = 1024
# Bytes that the disk has to take before a recording goes on: a state, and a buffer of events.
ROOM: Final = 128 * 1024


# How a call of the dispatcher's is written down: its name, the columns of its arguments, in order,
# and the defaults of the last ones.
CALLS: Final[dict[int, tuple[str, str, tuple[Any, ...]]]] = {
    BEGIN: ("begin", "server rows time_s", ()),
    FINISH: ("finish", "server time_s value rows", (0,)),
    WITHDRAW: ("withdraw", "server rows time_s flag", (True,)),
    MARK: ("mark", "server flag time_s", ()),
    SHIFT: ("shift", "server rows value floor time_s", ()),
    RETUNE: ("retune", "value", ()),
    LASTING: ("set_lasting", "classes", ()),
    TURN: ("ask_turn", "server value time_s", ()),
    START: ("start_run", "server rows time_s", ()),
    END: ("end_run", "server time_s", ()),
    LEAVE: ("leave_line", "server time_s", ()),
    NEXT: ("next_turn", "server time_s", ()),
    CHANGE: ("begin_change", "server time_s", ()),
    CHANGED: ("end_change", "server flag time_s", ()),
    LOAD_TIME: ("set_load_time", "server value", ()),
    OVERHEAD: ("set_overhead", "server value", ()),
}


def _recorded(kind: int) -> Callable[..., Any]:
    """A method that makes a call and writes it down."""
    name, columns, defaults = CALLS[kind]
    places = {column: place for place, column in enumerate(columns.split(), 1)}
    row = itemgetter(
        *(places.get(column, 0) for column in (EVENT.names or ())[1:])
    )  # 0 for no argument

    def call(self: Recording, *arguments: Any) -> Any:
        self._look()
        result = getattr(self._dispatcher, name)(*arguments)
        self._write(kind, *row((0, *arguments, *defaults)))
        return result

    return call


# Arrays of a site that a recording holds. What confidences say is none of them: it stands with the
# fleet, and changes only as accuracies do.
RECORDED: Final = tuple(
    field
    for field in Site._fields
    if field not in ("bin_mass", "bin_accuracy", "bin_edges", "devices")
)
# Of these, what recordings of schema 9 do not have yet.
OF_CHANCES: Final = ("first_s", "asked", "again", "chances")
# And of its devices, where it has any.
RECORDED_OF_DEVICES: Final = (
    *("used", "holds", "waits", "due_s", "first", "last", "after", "before", "resting"),
)
# And of those that hold one variant at a time.
RECORDED_OF_CHANGES: Final = (
    *("load_s", "held", "loads", "ready_s"),
    *("since", "after_s", "contents"),
)
# Of these, what recordings of schema 10 do not have yet.
OF_TASKS: Final = ("since", "after_s", "contents")


@dataclass(slots=True)
class Losses:
    """Losses of what could not be written down so far."""

    gaps: int = 0  # Times that the disk refused
    decisions: int = 0  # Requests dispatched meanwhile
    events: int = 0  # Everything else included


@dataclass(slots=True)
class RecordingGap:
    """A time of which nothing is recorded, s since 1970."""

    since: float  # When the last event was written
    reason: str  # Of the disk's refusal
    until: float | None = None  # When the first one was again; None while that is not known
    decisions: int = 0  # What is missing, as in `Losses`
    events: int = 0
    after: str = ""  # Name of the folder that was written to before; empty for none


class Recording:
    """A dispatcher whose every call is written down.

    It takes the dispatcher's place: the same calls, with the same results. One call costs one to
    two microseconds more. Where the disk refuses a write, the recording ends there, `gap` says why
    and counts, and the dispatcher goes on; `go_on` begins another one.

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
    following
        Names a new folder for what `go_on` begins; None: it does nothing.
    losses
        Where what is missing is added up, maybe with that of others.
    patient
        Whether a disk that refuses from the start is waited for, as one that refuses later.

    Attributes
    ----------
    folder
        Where it goes now, or went at last.
    gap
        While nothing can be written, since when and why; else None.

    Raises
    ------
    ValueError
        Where the folder already holds a recording.
    OSError
        Where nothing can be written there, unless it is patient.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        folder: Path,
        *,
        rows: int = 1_000_000,
        keep: int = 16,
        told: Callable[[], None] | None = None,
        following: Callable[[], Path] | None = None,
        losses: Losses | None = None,
        patient: bool = False,
    ) -> None:
        self._dispatcher = dispatcher
        self.folder = folder
        self._rows, self._keep, self._following = rows, keep, following
        self._told = told or (lambda: None)
        self.losses = losses or Losses()
        self.gap: RecordingGap | None = None
        # The gap that this section's head names, until something of the section is certain.
        self._named: RecordingGap | None = None
        self._since_s = self._file_since_s = time.time()
        site: Any = dispatcher.site
        # Of classes that have bins of confidence, where the next one begins.
        self._edges: dict[int, list[float]] = {
            k: site.bin_edges[k].tolist()
            for k in np.flatnonzero(site.bin_mass.sum(axis=1) > 0.0).tolist()
        }
        self._class_of: list[int] = site.server_class.tolist()
        self._buffer = bytearray(_BUFFERED * _ROW.size)
        self._used, self._in_file, self._number = 0, 0, 0
        self._file: FileIO | None = None
        self._packing: Future[None] | None = None
        self._held, self._seen_held = memoryview(site.held), 0
        self._balance, self._seen_balance = memoryview(site.balance), 0.0
        self._shared = getattr(dispatcher.policy, "shared", None)
        self._seen_shared = np.zeros(0) if self._shared is None else self._shared.copy()
        # What others have at the devices: when it was last looked at, and as it is written.
        self._claims: Floats | None = None
        self._seen_claims: bytes | None = None
        self._written_claims: Floats = no_claims(0)
        self._seen_contents: Ints = no_contents(0)
        self._share()
        if (folder / _HEAD).exists():
            raise ValueError(f"{folder} already holds a recording; name another folder")
        try:
            self._begin()
        except OSError as error:
            if not patient:
                raise
            self._give_up(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatcher, name)

    @property
    def writing(self) -> bool:
        """Tell whether anything may still be written to the folder."""
        return self._file is not None or not (self._packing is None or self._packing.done())

    @property
    def following(self) -> Path | None:
        """Position at which `go_on` would go on; None where it would not."""
        return None if self.gap is None or self._following is None else self._following()

    def go_on(self) -> bool:
        """Begin another section where the disk refused the last one; whether it is written now.

        Its head says what is missing between the two.
        """
        folder = self.following
        if folder is None:
            return self._file is not None
        gap = self.gap
        assert gap is not None
        gap.until = time.time()
        self.folder = folder
        self.gap, self._named, self._number = None, gap, 0
        try:
            self._begin()
        except OSError as error:
            self._give_up(error)
            return False
        self._told()
        return True

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

    def finish(self, server: int, now_s: float, service_s: float, measured: int = 0) -> None:
        """As `Dispatcher.finish`."""
        self._look()
        self._dispatcher.finish(server, now_s, service_s, measured)
        self._write(FINISH, 0, 0, measured, server, 0.0, now_s, 0, service_s, 0)

    def settle(
        self,
        server: int,
        now_s: float,
        draw: int,
        confidence: Floats,
        credit: float,
        count: int = 1,
        entered_s: float = 0.0,
        deadline_s: float = np.inf,
        floor: float = 0.0,
        priority: int = 0,
        classes: int = ALL_CLASSES,
        rows: int = 1,
        counted: bool = True,
    ) -> int:
        """As `Dispatcher.settle`."""
        self._look()
        # In order, so that a bin is written once: that of the rows is of no weight.
        values = sorted(one if one == one else -math.inf for one in confidence.tolist())
        if len(values) > 1:
            confidence = np.array(values)
        decided = self._dispatcher.settle(
            server,
            now_s,
            draw,
            confidence,
            credit,
            count,
            entered_s,
            deadline_s,
            floor,
            priority,
            classes,
            rows,
            counted,
        )
        self._write(ANSWER, 0, 0, 0, server, entered_s, now_s, 0, credit, count)
        edges = self._edges.get(self._class_of[server]) if count == 1 else None
        if edges is not None:
            bins = [bisect_right(edges, one) for one in values]
            for b in dict.fromkeys(bins):
                self._write(BIN, 0, 0, bins.count(b), b, 0.0, now_s, 0, 0.0, 0)
        self._write(
            SETTLE, counted, priority, rows, decided, floor, now_s, draw, deadline_s, classes
        )
        return decided

    def fall_back(
        self,
        server: int,
        position: int,
        now_s: float,
        *,
        first: int,
        in_hand: float,
        credit: float,
        counted: bool = True,
    ) -> None:
        """As `Dispatcher.fall_back`."""
        self._look()
        self._dispatcher.fall_back(
            server, position, now_s, first=first, in_hand=in_hand, credit=credit, counted=counted
        )
        self._write(FALL_BACK, counted, 0, position, server, in_hand, now_s, 0, credit, first)

    # As the dispatcher's, which say what they take.
    begin, withdraw, mark, shift = map(_recorded, (BEGIN, WITHDRAW, MARK, SHIFT))
    ask_turn, start_run, end_run = map(_recorded, (TURN, START, END))
    leave_line, next_turn = map(_recorded, (LEAVE, NEXT))
    begin_change, end_change, set_load_time = map(_recorded, (CHANGE, CHANGED, LOAD_TIME))
    set_overhead = _recorded(OVERHEAD)

    def set_lasting(self, lasting: int) -> None:
        """As `Dispatcher.set_lasting`."""
        if lasting != self._dispatcher.lasting:
            self._look()
            self._dispatcher.set_lasting(lasting)
            self._write(LASTING, 0, 0, 0, 0, 0.0, 0.0, 0, 0.0, lasting)

    def share_devices(
        self, claims: Floats, at: int, numbers: Ints, contents: Ints | None = None
    ) -> None:
        """As `Dispatcher.share_devices`."""
        self._look()
        self._dispatcher.share_devices(claims, at, numbers, contents)
        self._share()

    def pull(self, server: int, now_s: float, draw: int) -> tuple[int, int]:
        """As `Dispatcher.pull`."""
        self._look()
        drop, take = self._dispatcher.pull(server, now_s, draw)
        self._write(PULL, 0, 0, take, server, 0.0, now_s, draw, 0.0, drop)
        return drop, take

    def retune(self, rate_per_s: float) -> None:
        """As `Dispatcher.retune`."""
        self.adopt(self._dispatcher.plan(rate_per_s))

    def adopt(self, plan: RetunedPolicy) -> None:
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
        columns = np.asarray(probabilities, np.float64), policy.smallest, policy.largest
        rows = list(zip_longest(*(column.tolist() for column in columns), fillvalue=0))
        for i, (share, least, most) in enumerate(rows, 1):
            self._write(ROUTE, i == len(rows), 0, least, i - 1, 0.0, 0.0, 0, share, most)

    def correct(self, accuracy: Floats) -> None:
        """As `Dispatcher.correct`."""
        self._look()
        self._dispatcher.correct(accuracy)
        rows = self._dispatcher.site.accuracy.tolist()
        for k, value in enumerate(rows):
            self._write(ACCURACY, k + 1 == len(rows), 0, 0, k, 0.0, 0.0, 0, value, 0)

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        packing = self._packing
        if packing is not None and packing.done() and (error := self._packed()) is not None:
            self._give_up(error, stateless=True)
        if self._file is None:
            return
        content = memoryview(self._buffer)[: self._used * _ROW.size]
        try:
            while content:
                content = content[self._file.write(content) :]
        except OSError as refused:
            self._give_up(refused, stateless=self._packed() is not None)
            return
        self._used, self._since_s = 0, time.time()

    def close(self) -> None:
        """Write the last rows; later calls are decided and no longer written."""
        self._end()
        if self.gap is not None:
            self.gap.until = time.time()
            self._say_ended(self.gap)
            self.gap = None
        self._told()

    def _begin(self) -> None:
        """Begin a section in the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: a node that is killed here leaves other recordings beside it.
        part = self.folder / "recording.part"
        said = _head(self._dispatcher)
        if self._named is not None:
            said["gap"] = asdict(self._named)
        part.write_text(json.dumps(said, indent=2) + " " * _SPARE + "\n", encoding="utf-8")
        part.replace(self.folder / _HEAD)
        self._next_file()

    def _end(self) -> None:
        self.flush()
        error = self._packed()
        if error is not None:
            self._give_up(error, stateless=True)
        file, self._file = self._file, None
        _close(file)

    def _packed(self) -> OSError | ValueError | None:
        """Wait until the state is packed, and say why it could not be."""
        packing, self._packing = self._packing, None
        try:
            if packing is not None:
                packing.result()
        except (OSError, ValueError) as error:  # the second of a ZIP file that is half written
            return error
        return None

    def _give_up(self, error: OSError | ValueError, *, stateless: bool = False) -> None:
        """Write nothing more, and count what is missing; all of a stateless file."""
        lost, kept = self._lost(stateless)
        reason = getattr(error, "strerror", None) or str(error)
        began = self._number > 0
        if self._named is not None and self._number <= 1 and not kept:
            # The section that was to end a gap has come to nothing: the gap goes on.
            gap, self._named = self._named, None
            gap.until, gap.reason = None, reason
            self._remove()
            if gap.after:
                self.folder = self.folder.with_name(gap.after)
        else:
            since_s = self._file_since_s if stateless else self._since_s
            gap = RecordingGap(since_s, reason, after=self.folder.name if began else "")
            self.losses.gaps += 1
            if began:
                self._say_ended(gap)
            else:
                self._remove()
        self.gap = gap
        self._miss(len(lost), int(np.count_nonzero(lost["kind"] == ARRIVE)))
        self._told()

    def _lost(self, stateless: bool) -> tuple[np.ndarray, int]:
        """Let the file go; events that are not in it, or not worth anything, and how many are."""
        file, self._file = self._file, None
        buffered = np.frombuffer(self._buffer, EVENT, self._used).copy()
        packed, self._in_file, self._used = self._in_file, 0, 0
        if file is None and not stateless:
            return buffered, 0
        name = self.folder / f"{self._number:06d}"
        before = packed - len(buffered)  # in the file for certain
        whole = before
        with suppress(OSError):
            whole = name.with_suffix(".events").stat().st_size // EVENT.itemsize
            if file is not None:
                file.truncate(whole * EVENT.itemsize)
        _close(file)
        if not stateless:
            return buffered[whole - before :], whole
        first = np.zeros(before, EVENT)
        with suppress(OSError), name.with_suffix(".events").open("rb") as written:
            content = written.read(before * EVENT.itemsize)
            first = np.frombuffer(content, EVENT, len(content) // EVENT.itemsize)
        _unlink(name.with_suffix(".events"), name.with_suffix(".state.npz"))
        return np.concatenate((first, buffered)), 0

    def _miss(self, events: int, decisions: int) -> None:
        assert self.gap is not None
        self.gap.events += events
        self.gap.decisions += decisions
        self.losses.events += events
        self.losses.decisions += decisions

    def _say_ended(self, gap: RecordingGap) -> None:
        """Say in the head that the disk has refused what comes after, in the room that is there."""
        with suppress(OSError, ValueError):
            head = self.folder / _HEAD
            size = head.stat().st_size
            said = json.loads(head.read_text(encoding="utf-8"))
            text = json.dumps(said | {"ended": asdict(gap)}, indent=2).encode()
            if len(text) < size:
                with head.open("r+b", buffering=0) as file:
                    file.write(text.ljust(size - 1) + b"\n")

    def _remove(self) -> None:
        """Remove a section that has come to nothing."""
        names = "recording.part", _HEAD, "000001.events", "000001.state.npz"
        _unlink(*(self.folder / name for name in names))
        with suppress(OSError):
            self.folder.rmdir()

    def _look(self) -> None:
        """Write down that the balance is another than after the last call; to be asked before one.

        So is what others have changed of the memory that policies share. In full, for sums of the
        same numbers in another order differ in their last bits.
        """
        if (balance := self._balance[0]) != self._seen_balance and self._file is not None:
            self._seen_balance = balance
            self._pack(BALANCE, 0, 0, 0, 0, 0.0, 0.0, 0, balance, 0)
        if self._shared is not None and not np.array_equal(self._shared, self._seen_shared):
            for place in np.flatnonzero(self._shared != self._seen_shared).tolist():
                if self._file is not None:
                    value = self._shared.flat[place]
                    self._pack(SHARED, 0, 0, 0, place, 0.0, 0.0, 0, value, 0)
            self._seen_shared[:] = self._shared
        if self._claims is not None and (seen := self._claims.tobytes()) != self._seen_claims:
            self._seen_claims = seen
            self._write_claims()
        if self._dispatcher.changes:
            self._write_contents()

    def _share(self) -> None:
        """Look at what others have at the devices, where there are any, from now on."""
        if self._dispatcher.shares:
            self._claims, self._seen_claims = self._dispatcher.site.devices.claims, None

    def _write_claims(self) -> None:
        claims, before = _claims_of_others(self._dispatcher), self._written_claims
        rows = max(len(claims), len(before))  # none where it shares with nobody any more
        claims, before = (
            np.concatenate((one, no_claims(rows - len(one)))) for one in (claims, before)
        )
        for row in np.flatnonzero((claims != before).any(axis=1)).tolist():
            device, taken, holds, until_s, work_s, *held = claims[row].tolist()
            if self._file is not None:
                flags = int(holds), int(device), int(taken)
                self._pack(CLAIM, *flags, row, until_s, 0.0, 0, work_s, 0)
            if self._file is not None and held != before[row, VARIANT:].tolist():
                variant, load_s, next_s = held
                self._pack(CLAIM_HELD, 0, 0, 0, row, next_s, 0.0, 0, load_s, int(variant))
        self._written_claims = claims

    def _write_contents(self) -> None:
        contents = contents_of(self._dispatcher)
        for d in np.flatnonzero((contents != self._seen_contents).any(axis=1)).tolist():
            if self._file is not None:
                change, variant = contents[d].tolist()
                self._pack(CONTENT, 0, 0, 0, d, 0.0, 0.0, change, 0.0, variant)
        self._seen_contents = contents

    def _write(self, *row: float) -> None:
        if self._file is None:
            if self.gap is not None:
                self._miss(1, row[0] == ARRIVE)
            return
        self._seen_balance = self._balance[0]
        if self._shared is not None:
            self._seen_shared[:] = self._shared
        if self._claims is not None:
            self._seen_claims = self._claims.tobytes()
        if self._dispatcher.changes:
            self._seen_contents = contents_of(self._dispatcher)
        if (held := self._held[0]) != self._seen_held:
            # No call changes it, so that it was the same before this one.
            self._seen_held = held
            self._pack(HELD, 0, 0, held, 0, 0.0, 0.0, 0, 0.0, 0)
            if self._file is None:  # the disk has just refused that
                self._write(*row)
                return
        self._pack(*row)
        # Nothing is divided that has several rows: what begins a file is whole.
        divided = row[0] in (ANSWER, BIN) or (row[0] in (ROUTE, ACCURACY) and not row[1])
        if self._in_file >= self._rows and not divided:
            try:
                self._next_file()
            except OSError as error:
                self._give_up(error)
            self._told()

    def _pack(self, *row: float) -> None:
        _ROW.pack_into(self._buffer, self._used * _ROW.size, *row)
        self._used += 1
        self._in_file += 1
        if self._used == _BUFFERED:
            self.flush()

    def _next_file(self) -> None:
        if self._number:
            self._end()
            if self.gap is not None:
                return
            self._named = None
        self._number += 1
        self._in_file = 0
        self._since_s = self._file_since_s = time.time()
        self._seen_held, self._seen_balance = self._held[0], self._balance[0]
        if self._shared is not None:
            self._seen_shared[:] = self._shared
        if self._claims is not None:
            self._seen_claims = self._claims.tobytes()
            self._written_claims = _claims_of_others(self._dispatcher)
        if self._dispatcher.changes:
            self._seen_contents = contents_of(self._dispatcher)
        name = f"{self._number:06d}"
        state: Any = {name: array.copy() for name, array in _state(self._dispatcher).items()}
        # Before the state, which may be on its way to the disk when this is refused.
        self._file = (self.folder / f"{name}.events").open("wb", buffering=0)
        file = self.folder / f"{name}.state.npz"
        self._packing = _PACKING.submit(np.savez_compressed, file, **state)
        old = self.folder / f"{self._number - self._keep:06d}"
        for ending in (".state.npz", ".events"):
            old.with_suffix(ending).unlink(missing_ok=True)


def _close(file: FileIO | None) -> None:
    with suppress(OSError):
        if file is not None:
            file.close()


def _unlink(*files: Path) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink()


def has_room(folder: Path) -> bool:
    """Tell whether a disk takes as much as a recording needs to go on; waits for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return file.write(bytes(ROOM)) == ROOM
    except OSError:
        return False


def restore(dispatcher: Dispatcher, state: dict[str, np.ndarray]) -> None:
    """Set a dispatcher's arrays as they were when a file began.

    Where nothing is said of chances, no server has any.
    """
    if "site.asked" not in state:
        dispatcher.site.asked[0] = -1
    accuracy = state["site.accuracy"]
    if not np.array_equal(accuracy, dispatcher.site.accuracy):
        dispatcher.correct(accuracy)
    for name, array in state.items():
        owner, _, field = name.partition(".")
        if owner == "site" and field not in Site._fields:
            continue
        if owner == "dispatcher":
            dispatcher.set_lasting(int(array))
            continue
        if name == "devices.claims":
            claims = no_claims(len(array))
            claims[:, : array.shape[1]] = array
            share_as_recorded(dispatcher, claims)
            continue
        devices = dispatcher.site.devices
        parts: Any = {"site": dispatcher.site, "devices": devices}
        if dispatcher.changes:
            parts["changes"] = devices.changes
        np.copyto(getattr(parts.get(owner, dispatcher.policy), field), array)
    if dispatcher.shares:
        as_shown(dispatcher.site.devices)


def share_as_recorded(dispatcher: Dispatcher, claims: Floats) -> None:
    """Have a dispatcher see others at its devices that are not there: rows as recorded."""
    devices = len(dispatcher.site.devices.slots)
    dispatcher.share_devices(claims, len(claims), np.arange(devices))


def contents_of(dispatcher: Dispatcher) -> Ints:
    """(D, 2) what is held by the devices of a dispatcher that hold one variant at a time."""
    devices = dispatcher.site.devices
    contents: Ints = devices.changes.contents[devices.number]
    return contents


def _claims_of_others(dispatcher: Dispatcher) -> Floats:
    """Rows of others, with the numbers that the devices have here; blank where none concerns it."""
    devices = dispatcher.site.devices
    claims: Floats = devices.claims.copy()
    claims[devices.at : devices.at + len(devices.holds), DEVICE] = -1.0
    numbers = claims[:, DEVICE].astype(np.int64)
    numbers[numbers >= len(devices.own)] = -1
    own = np.where(numbers < 0, -1, devices.own[numbers])
    claims[:, DEVICE] = own
    claims[own < 0] = no_claims(1)
    if not dispatcher.changes:  # which variants others need is nothing to it
        claims[:, VARIANT:] = no_claims(1)[:, VARIANT:]
    return claims


def _state(dispatcher: Dispatcher) -> dict[str, np.ndarray]:
    arrays = {f"site.{field}": getattr(dispatcher.site, field) for field in RECORDED}
    arrays["dispatcher.lasting"] = np.array(dispatcher.lasting, np.int64)
    if dispatcher.shares:
        devices = dispatcher.site.devices
        arrays |= {f"devices.{field}": getattr(devices, field) for field in RECORDED_OF_DEVICES}
        arrays["devices.lead_s"] = devices.lead_s
        if dispatcher.changes:
            of, contents = RECORDED_OF_CHANGES, contents_of(dispatcher)
            arrays |= {f"changes.{field}": getattr(devices.changes, field) for field in of}
            arrays["changes.contents"] = contents
        if len(devices.claims):
            arrays["devices.claims"] = _claims_of_others(dispatcher)
    policy = dispatcher.policy
    for field in getattr(policy, "learned", policy._fields):
        if isinstance(value := getattr(policy, field), np.ndarray):
            arrays[f"policy.{field}"] = value
    return arrays


def _head(dispatcher: Dispatcher) -> dict[str, Any]:
    from inferway.version import __version__

    folder = dispatcher.folder
    own = "target rate_per_s measure narrow max_wait_s lasting"
    fleet = "task node variants rate accuracy count price energy buffer"
    return {
        "schema": SCHEMA,
        "inferway": __version__,
        "code": code_of(dispatcher.policy),
        "policy": dispatcher.policy_name,
        "options": dispatcher.options,
        "folder": None if folder is None else str(folder.resolve()),
        **{name: getattr(dispatcher, name) for name in own.split()},
        "fleet": {name: _plain(getattr(dispatcher.fleet, name)) for name in fleet.split()}
        | {"accuracy": dispatcher.fleet.grades, "confidence": _said(dispatcher.fleet.confidence)}
        | {"devices": _shared(dispatcher.fleet.devices)},
    }


def _said(tables: ConfidenceTables | None) -> dict[str, Any] | None:
    """What confidences say, as JSON holds it: null stands for the bins that there are not."""
    if tables is None:
        return None
    told = {name: table.tolist() for name, table in tables._asdict().items()}
    edges = [[edge if edge < math.inf else None for edge in row] for row in told["edges"]]
    return told | {"edges": edges}


def _shared(devices: DeviceSlots | None) -> dict[str, Any] | None:
    if devices is None:
        return None
    told = {name: _plain(value) for name, value in devices._asdict().items()}
    if devices.load_s is None:
        del told["load_s"]  # of which readers of before know nothing
    return told


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
