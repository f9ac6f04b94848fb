"""Replay: a recording's events through the same policy, on a view built from them alone."""

from __future__ import annotations

import json
import math
import re
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from inferway.dispatch.dispatcher import Dispatcher, PolicyError
from inferway.dispatch.recording import (
    ACCURACY,
    ANSWER,
    ARRIVE,
    BALANCE,
    BEGIN,
    BIN,
    CALLS,
    CHANGE,
    CHANGED,
    CLAIM,
    CLAIM_HELD,
    CONTENT,
    END,
    EVENT,
    FALL_BACK,
    FINISH,
    HELD,
    LASTING,
    LEAVE,
    LOAD_TIME,
    MARK,
    NEXT,
    OF_CHANCES,
    OF_TASKS,
    OVERHEAD,
    PULL,
    READABLE,
    RECORDED,
    RECORDED_OF_CHANGES,
    RECORDED_OF_DEVICES,
    RETUNE,
    ROUTE,
    SCHEMA,
    SETTLE,
    SHARED,
    SHIFT,
    START,
    TURN,
    WITHDRAW,
    RecordingGap,
    restore,
    share_as_recorded,
)
from inferway.dispatch.steps import code_of
from inferway.site.chances import TRIED
from inferway.site.claims import (
    CHANGE_COUNT,
    COLUMNS,
    DEVICE,
    HELD_VARIANT,
    HOLDS,
    LOAD_S,
    NEXT_S,
    TAKEN,
    UNTIL_S,
    VARIANT,
    WORK_S,
    no_claims,
)
from inferway.site.confidence import ConfidenceTables
from inferway.site.devices import DeviceSlots
from inferway.site.fleet import Fleet
from inferway.site.view import ACCEPT, HOLD, Changes, Floats, SharedDevices, Site
from inferway.unreadable import UNREADABLE, fault

MOST_PLACES = 10_000_000  # In the buffers of all servers of a recorded site together
MOST_SLOTS: Final = 1 << 20  # Of a device
MOST_CLAIMS: Final = 1 << 16  # Servers of other fleets at its devices
MOST_CHANGES: Final = 1 << 52  # Of a device, as far as a number of a row counts exactly
MOST_ROWS: Final = 1 << 24  # Of a request that was decided on again


@dataclass(frozen=True)
class Difference:
    """A decision that came out otherwise."""

    # Which request of the recording, from 0; for a batch or an answer, the last that had arrived.
    request: int
    time_s: float
    recorded: int  # Server, REJECT, HOLD or ACCEPT; for a batch, requests
    replayed: int
    # Or what a free server was told to ``drop`` or ``take``, or who was asked after an ``answer``.
    what: str = "server"


@dataclass(frozen=True)
class Replay:
    """Findings of a replay."""

    task: str
    policy: str
    requests: int  # Decisions compared
    events: int
    differences: tuple[Difference, ...]
    same_code: bool  # Whether the recording was made by this very code of policies and site
    # What of the recording is missing, or not whole and so was left out, a sentence for each.
    losses: tuple[str, ...] = ()
    batches: int = 0  # Times that a free server was told what to drop and take, compared likewise
    answers: int = 0  # That were decided on before they were sent, compared likewise
    # What is missing between the section before and this one, where the disk had no room.
    gap: RecordingGap | None = None
    ended: RecordingGap | None = None  # What is missing behind this one, likewise

    def to_json(self) -> dict[str, Any]:
        """As `inferway replay DIR --json` prints it under ``tasks.NAME``."""
        return {
            "policy": self.policy,
            "requests": self.requests,
            "events": self.events,
            "batches": self.batches,
            "answers": self.answers,
            "differing": len(self.differences),
            "same_code": self.same_code,
            "losses": list(self.losses),
            "gap": None if self.gap is None else asdict(self.gap),
            "ended": None if self.ended is None else asdict(self.ended),
            "differences": [vars(difference) for difference in self.differences],
        }


def recordings(folder: Path) -> list[Path]:
    """The recordings at a folder, by name; ValueError where there is none.

    Itself; one per task below it, or several where the task's fleet has changed, in their order;
    and the same below a folder per node.
    """
    found: list[Path] = []
    for below in ("", "*/", "*/*/"):
        found += sorted((one.parent for one in folder.glob(f"{below}recording.json")), key=_order)
    if not found:
        raise ValueError(f"{folder} holds no recording: there is no recording.json in it")
    return found


def _order(folder: Path) -> list[tuple[int, str | int]]:
    """Sort numbers within names by their size."""
    parts = re.split(r"(\d+)", str(folder))
    return [(1, int(part)) if part.isdecimal() else (0, part) for part in parts]


def events(
    folder: Path, losses: list[str] | None = None
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Each file's state at its start and its events, `EVENT` rows, in order.

    What is not whole is left out, as after a process was killed (a last row that was cut off, a
    file whose state cannot be read), with a sentence in `losses`; ValueError for such a state where
    nobody takes them.
    """
    for file in sorted(folder.glob("*.events")):
        beginning = file.with_suffix(".state.npz")
        try:
            with np.load(BytesIO(beginning.read_bytes())) as state:
                arrays = dict(state)
        # Whatever the parts of NumPy's reader raise: a wrong archive, a header that is no Python,
        # a size that no memory has.
        except Exception as wrong:
            sentence = f"{beginning} cannot be read, and so {file.name} is left out: {fault(wrong)}"
            if losses is None:
                raise ValueError(sentence) from wrong
            losses.append(sentence)
            continue
        content = file.read_bytes()
        whole, rest = divmod(len(content), EVENT.itemsize)
        if rest and losses is not None:
            losses.append(f"{file} ends within an event, which is left out; {whole} are whole")
        yield arrays, np.frombuffer(content, EVENT, count=whole)


def replay(
    folder: Path,
    *,
    requests: int | None = 10_000,
    progress: Callable[[int], None] | None = None,
) -> Replay:
    """Run recorded requests through the recorded policy and compare every decision.

    Parameters
    ----------
    folder
        Of one recording.
    requests
        How many, from the oldest on; None for all.
    progress
        Called now and then with the number of requests done.

    Raises
    ------
    ValueError
        Where the folder holds no recording that this version reads, or the policy's file is gone.
    """
    head = header(folder)
    gap, ended = _gap(folder, head, "gap"), _gap(folder, head, "ended")
    course = _Course(_dispatcher(folder, head), requests, progress)
    losses: list[str] = []
    if gap is not None:
        losses.append(f"nothing was recorded {_missing(gap)}")
    for file, (state, rows) in enumerate(events(folder, losses), 1):
        try:
            _check_state(course.dispatcher, state)
        except UnsoundError as wrong:
            losses.append(f"the state of file {file} is damaged, and so it is left out: {wrong}")
            continue
        restore(course.dispatcher, state)
        try:
            for row in map(EventRow._make, rows.tolist()):
                if course.done:
                    break
                course.take(row)
        except (UnsoundError, PolicyError, ZeroDivisionError) as wrong:
            losses.append(f"file {file} is damaged, and left out from there on: {wrong}")
        if course.done:
            break
    if ended is not None:
        losses.append(f"it ends early: nothing more was recorded {_missing(ended)}")
    return Replay(
        task=head["fleet"]["task"],
        policy=head["policy"],
        requests=course.compared,
        events=course.handled,
        differences=tuple(course.differences),
        same_code=head.get("code") == code_of(course.dispatcher.policy),
        losses=tuple(losses),
        batches=course.batches,
        answers=course.answers,
        gap=gap,
        ended=ended,
    )


# One row of `EVENT`, whose comments say what else its numbers mean.
EventRow = namedtuple("EventRow", "kind flag priority rows server floor time_s word value classes")
_AT_DEVICE: Final = frozenset({TURN, START, END, LEAVE, NEXT, CHANGE, CHANGED})
_AT_SERVER: Final = frozenset({FINISH, BEGIN, WITHDRAW, MARK, PULL, ANSWER, FALL_BACK}) | _AT_DEVICE


class _Course:
    """Follows recorded events one after another, and compares each decision."""

    def __init__(
        self, dispatcher: Dispatcher, requests: int | None, progress: Callable[[int], None] | None
    ) -> None:
        self.dispatcher = dispatcher
        self.compared = self.handled = self.batches = self.answers = 0
        self.differences: list[Difference] = []
        self._requests, self._progress = requests, progress
        self._routing, self._accuracies = list[EventRow](), list[EventRow]()
        # Of an answer whose decision has not come yet: what it is, and rows by bin.
        self._answer: EventRow | None = None
        self._bins: dict[int, int] = {}

    @property
    def done(self) -> bool:
        """Tell whether as many requests have been compared as were asked for."""
        return self.compared == self._requests

    def take(self, row: EventRow) -> None:
        """Follow one event; UnsoundError where it could not have happened, and nothing has then.

        PolicyError or ZeroDivisionError where times that could not have been measured lead to it.
        """
        _check_event(self.dispatcher.site, row)
        self.handled += 1
        if row.kind not in (BIN, SETTLE):
            self._answer = None
        if row.kind == ARRIVE:
            request = row.value, row.floor, row.priority, row.classes, row.rows, bool(row.flag)
            decided = self.dispatcher.follow(row.time_s, row.word, *request, row.server)
            self._compare(self.compared, row, "server", row.server, decided)
            self.compared += 1
            if self._progress is not None and self.compared % 1000 == 0:
                self._progress(self.compared)
        elif row.kind == PULL:
            drop, take = self.dispatcher.pull(row.server, row.time_s, row.word)
            self._compare(self.compared - 1, row, "drop", row.classes, drop)
            self._compare(self.compared - 1, row, "take", row.rows, take)
            self.batches += 1
        elif row.kind == ROUTE:
            self._routing.append(row)
            if row.flag:  # the last row of a routing
                self._route()
        elif row.kind == ACCURACY:
            self._accuracies.append(row)
            if row.flag:  # that of the last class
                self._correct()
        elif row.kind == ANSWER:
            self._answer, self._bins = row, {}
        elif row.kind == BIN:
            self._bins[row.server] = self._bins.get(row.server, 0) + row.rows
        elif row.kind == SETTLE:
            self._settle(row)
        elif row.kind == FALL_BACK:
            self.dispatcher.fall_back(
                row.server,
                row.rows,
                row.time_s,
                first=row.classes,
                in_hand=row.floor,
                credit=row.value,
                counted=bool(row.flag),
            )
        elif row.kind == BALANCE:
            self.dispatcher.site.balance[0] = row.value
        elif row.kind == SHARED:
            self._share(row)
        elif row.kind in (CLAIM, CLAIM_HELD):
            self._claim(row)
        elif row.kind == CONTENT:
            self._change(row)
        elif row.kind == HELD:
            self.dispatcher.site.held[0] = row.rows
        else:
            name, columns, _ = CALLS[row.kind]
            arguments = (getattr(row, column) for column in columns.split())
            getattr(self.dispatcher, name)(*arguments)

    def _compare(self, request: int, row: EventRow, what: str, recorded: int, again: int) -> None:
        if again != recorded:
            self.differences.append(Difference(request, row.time_s, recorded, again, what))

    def _settle(self, row: EventRow) -> None:
        """Decide on an answer whose rows have been followed before."""
        answer, self._answer = self._answer, None
        if answer is None or not self.dispatcher.settles:
            raise UnsoundError("nobody decides on an answer here")
        if answer.server == row.server or sum(self._bins.values()) not in (0, row.rows):
            raise UnsoundError(f"an answer of server {answer.server} could not have come so")
        decided = self.dispatcher.settle(
            answer.server,
            row.time_s,
            row.word,
            self._confidence(answer.server),
            answer.value,
            count=answer.classes,
            entered_s=answer.floor,
            deadline_s=row.value,
            floor=row.floor,
            priority=row.priority,
            classes=row.classes,
            rows=row.rows,
            counted=bool(row.flag),
            taken=row.server,
        )
        self._compare(self.compared - 1, row, "answer", row.server, decided)
        self.answers += 1

    def _confidence(self, server: int) -> Floats:
        """Confidences in the bins that were recorded, one for each row."""
        site = self.dispatcher.site
        lows = [-math.inf, *site.bin_edges[site.server_class[server]].tolist()]
        try:
            return np.repeat([lows[b] for b in self._bins], [*self._bins.values()])
        except IndexError:
            raise UnsoundError("an answer is in a bin that its variant does not have") from None

    def _correct(self) -> None:
        """Count accuracies as recorded, a row for each class."""
        rows, self._accuracies = self._accuracies, []
        classes = range(len(self.dispatcher.site.accuracy))
        if [row.server for row in rows] != list(classes):
            raise UnsoundError("accuracies are none of this site's classes")
        self.dispatcher.correct(np.array([row.value for row in rows]))

    def _share(self, row: EventRow) -> None:
        """Take a number of what policies of several tasks share as another task has left it."""
        shared = getattr(self.dispatcher.policy, "shared", None)
        if shared is None or not 0 <= row.server < shared.size or not math.isfinite(row.value):
            raise UnsoundError("no such memory is shared with other tasks")
        shared.flat[row.server] = row.value

    def _claim(self, row: EventRow) -> None:
        """Take what a server of another fleet has at the devices as it has left it."""
        claims = self.dispatcher.site.devices.claims
        if row.server >= len(claims):  # by more than one, so that it seldom happens
            more = no_claims(row.server + 1 + len(claims) - len(claims) // 2)
            more[: len(claims)] = claims
            claims = more
            share_as_recorded(self.dispatcher, claims)
        if row.kind == CLAIM:
            claims[row.server, :VARIANT] = (
                *(row.priority, row.rows, row.flag),
                *(row.floor, row.value),
            )
        else:
            claims[row.server, VARIANT:] = row.classes, row.value, row.floor

    def _change(self, row: EventRow) -> None:
        """Have a device hold what another fleet has changed it to."""
        devices = self.dispatcher.site.devices
        devices.changes.contents[devices.number[row.server]] = row.word, row.classes

    def _route(self) -> None:
        """Route as recorded, a row for each server or class."""
        rows, self._routing = self._routing, []
        site = self.dispatcher.site
        servers, classes = rows[: len(site.queue)], rows[: len(site.rate)]
        try:
            if rows[0].server < 0:
                self.dispatcher.route(None)
            else:
                self.dispatcher.route(
                    np.array([row.value for row in servers]),
                    np.array([row.rows for row in classes]),
                    np.array([row.classes for row in classes]),
                )
        except (ValueError, IndexError, AttributeError, TypeError) as wrong:
            raise UnsoundError(f"a routing is none of this site: {wrong}") from wrong


class UnsoundError(ValueError):
    """A recording's statement that could not have happened."""


def _check_event(site: Site, row: EventRow) -> None:
    """Check that an event could happen at the site as it is; UnsoundError where it could not."""
    if not math.isfinite(row.time_s):
        raise UnsoundError(f"an event is at {row.time_s} s")
    servers, places = site.arrived_s.shape
    kind, server, rows = row.kind, row.server, row.rows
    if kind == ARRIVE:
        sound = HOLD <= server < servers and rows >= 1
        sound = sound and (server < 0 or site.queue[server] < places)
    elif kind == SETTLE:
        sound = server == ACCEPT or 0 <= server < servers
        sound = sound and 1 <= rows <= MOST_ROWS
        sound = sound and (server < 0 or site.queue[server] < places)
    elif kind == BIN:
        sound = 0 <= server < site.bin_mass.shape[1] and 1 <= rows <= MOST_ROWS
    elif kind in _AT_SERVER:
        sound = 0 <= server < servers
        if sound and kind in (FINISH, ANSWER):
            sound = site.queue[server] > 0
        elif sound and kind in (WITHDRAW, FALL_BACK):
            sound = 0 <= rows < site.queue[server]
        if sound and kind == ANSWER:
            sound = math.isfinite(row.value) and row.classes in (1, 2)
        elif sound and kind == FALL_BACK:
            sound = math.isfinite(row.value) and 0 <= row.classes < servers
        elif kind == BEGIN:
            sound = sound and rows >= 0
        elif sound and kind in _AT_DEVICE:
            sound = isinstance(site.devices, SharedDevices) and _is_turn(site, row)
    elif kind == CLAIM:
        sound = isinstance(site.devices, SharedDevices) and 0 <= server < MOST_CLAIMS
        one = no_claims(1)
        one[0, :VARIANT] = row.priority, rows, row.flag, row.floor, row.value
        sound = sound and _are_claims(site.devices, one)
    elif kind == CLAIM_HELD:
        sound = _changes(site) and 0 <= server < MOST_CLAIMS
        one = no_claims(1)
        one[0, VARIANT:] = row.classes, row.value, row.floor
        sound = sound and _are_claims(site.devices, one)
    elif kind == CONTENT:
        sound = _changes(site) and 0 <= server < len(site.devices.slots)
        sound = sound and _are_contents(np.array([[row.word, row.classes]]))
    elif kind == SHIFT:
        sound = 0 <= server <= rows <= servers
        sound = sound and math.isfinite(row.value) and math.isfinite(row.floor)
    elif kind == RETUNE:
        sound = 0 < row.value < math.inf
    elif kind == LOAD_TIME:
        sound = _changes(site) and 0 <= server < len(site.rate) and 0.0 <= row.value < math.inf
    elif kind == OVERHEAD:
        sound = isinstance(site.devices, SharedDevices) and 0.0 <= row.value < math.inf
        sound = sound and 0 <= server < len(site.devices.slots)
    elif kind == ACCURACY:
        sound = 0 <= server < len(site.accuracy) and 0.0 <= row.value <= 1.0
    else:
        sound = kind in (ROUTE, BALANCE, HELD, LASTING, SHARED)
    if not sound:
        raise UnsoundError(f"an event of kind {kind} at server {server} could not have happened")


def _changes(site: Site) -> bool:
    """Tell whether a device of the site holds one variant at a time."""
    return isinstance(getattr(site.devices, "changes", None), Changes)


def _is_turn(site: Site, row: EventRow) -> bool:
    """Tell whether a server could ask for a turn, begin or end a run or a change so."""
    devices, server = site.devices, row.server
    k = site.server_class[server]
    d = devices.device[k]
    if row.kind in (CHANGE, CHANGED):
        if not _changes(site) or d < 0 or not devices.changes.exclusive[d]:
            return False
        loads = devices.changes.loads[d]
        if row.kind == CHANGED:
            return bool(loads == server)
        return bool(loads < 0 and devices.used[d] == 0 and not devices.waits[server])
    if row.kind == TURN:
        # Where it is to be loaded, before its fleet serves.
        alone = _changes(site) and d >= 0 and bool(devices.changes.exclusive[d])
        asks = bool(site.queue[server] > 0) or alone
        return asks and not devices.holds[server] and row.value == row.value
    if row.kind == START:
        free = d < 0 or devices.used[d] + devices.taken[k] <= devices.slots[d]
        waiting = devices.waits[server] or devices.holds[server]
        return bool(free and not waiting and 1 <= row.rows <= site.queue[server])
    return True


def _are_claims(devices: SharedDevices, rows: np.ndarray) -> bool:
    """Tell whether such rows could be what others have at the devices."""
    claims = no_claims(len(rows))
    claims[:, : rows.shape[1]] = rows
    device, taken, until_s = claims[:, DEVICE], claims[:, TAKEN], claims[:, UNTIL_S]
    holds, work_s = claims[:, HOLDS], claims[:, WORK_S]
    whole = bool((device == np.floor(device)).all() and (taken == np.floor(taken)).all())
    if not (whole and _within(device, -1, len(devices.slots)) and _within(taken, 0)):
        return False
    most = np.where(device < 0, 0, devices.slots[device.astype(np.int64)])
    there = bool((taken <= most).all()) and bool(((holds == 0) | (holds == 1)).all())
    there = there and not np.isnan(until_s).any() and bool(np.isfinite(work_s).all())
    variant, next_s = claims[:, VARIANT], claims[:, NEXT_S]
    there = there and _within(variant, 0, MOST_CLAIMS) and not np.isnan(next_s).any()
    return there and _within(claims[:, LOAD_S], 0)


def _are_contents(contents: np.ndarray) -> bool:
    """Tell whether devices could hold such variants, by so many changes."""
    change, variant = contents[:, CHANGE_COUNT], contents[:, HELD_VARIANT]
    return _within(change, 0, MOST_CHANGES) and _within(variant, -1, MOST_CLAIMS)


def _check_state(dispatcher: Dispatcher, state: dict[str, np.ndarray]) -> None:
    """Check what a file says of its begin, before a dispatcher is set to it.

    UnsoundError where it is no state of such a dispatcher.
    """
    for name, sound in _facts_of_arrays(dispatcher, state):
        if not sound:
            raise UnsoundError(f"{name} is none of such a site")
    # All of it, or nothing as before there was any.
    there = any(f"site.{field}" in state for field in OF_CHANCES)
    fields = [field for field in RECORDED if there or field not in OF_CHANCES]
    for field in fields:
        if f"site.{field}" not in state:
            raise UnsoundError(f"there is no site.{field}")
    said = {field: state[f"site.{field}"] for field in fields}
    rests = said["idle"]
    if dispatcher.shares:
        for field in RECORDED_OF_DEVICES:
            if f"devices.{field}" not in state:
                raise UnsoundError(f"there is no devices.{field}")
        line = {field: state[f"devices.{field}"] for field in RECORDED_OF_DEVICES}
        rests = line["resting"]
        if dispatcher.changes:
            there = any(f"changes.{field}" in state for field in OF_TASKS)
            of = [field for field in RECORDED_OF_CHANGES if there or field not in OF_TASKS]
            for field in of:
                if f"changes.{field}" not in state:
                    raise UnsoundError(f"there is no changes.{field}")
            line |= {field: state[f"changes.{field}"] for field in of}
        for name, sound in _facts_of_devices(dispatcher.site, line, said["queue"]):
            if not sound:
                raise UnsoundError(f"{name} is none of such a site")
    for name, sound in _facts_of_site(dispatcher.site, said, rests):
        if not sound:
            raise UnsoundError(f"{name} is none of such a site")


def _facts_of_arrays(
    dispatcher: Dispatcher, state: dict[str, np.ndarray]
) -> Iterator[tuple[str, bool]]:
    """Names and whether these arrays have the shapes and types of the dispatcher's own."""
    for name, array in state.items():
        owner, _, field = name.partition(".")
        if owner == "site" and field not in Site._fields:
            continue  # of a later release, which decided without it: the schema is the same
        if name == "dispatcher.lasting":
            yield name, array.shape == () and array.dtype.kind == "i"
            continue
        site = dispatcher.site
        if name == "devices.claims":
            yield name, isinstance(site.devices, SharedDevices) and array.dtype == np.float64
            # Of schema 10, without what is said of variants.
            yield name, array.ndim == 2 and array.shape[1:] in ((COLUMNS,), (VARIANT,))
            yield name, len(array) <= MOST_CLAIMS and _are_claims(site.devices, array)
            continue
        whole: Any = {"site": site, "policy": dispatcher.policy, "devices": site.devices}
        if dispatcher.changes:
            whole["changes"] = site.devices.changes
        parts: Any = whole.get(owner)
        own: Any = getattr(parts, field, None) if field in getattr(parts, "_fields", ()) else None
        yield name, isinstance(own, np.ndarray)
        yield name, array.shape == own.shape and np.can_cast(array.dtype, own.dtype, "same_kind")
        if owner == "policy" and field == "price":
            yield name, bool((array >= 0).all())
        if owner == "policy" and field == "chances" and array.dtype.kind == "i":
            yield name, _within(array, 0)
        if name == "devices.lead_s":
            yield name, bool(((array >= 0) & np.isfinite(array)).all())
        # Of a policy, the targets that it has, and what counts classes or servers from 0.
        if owner == "policy" and field == "rows" and hasattr(parts, "shared"):
            yield name, _within(array, 0, len(parts.shared))
        if owner == "policy" and field in ("order", "other") and array.dtype.kind == "i":
            yield name, _within(array, 0, len(own))


def _facts_of_devices(
    own: Site, said: dict[str, np.ndarray], queue: np.ndarray
) -> Iterator[tuple[str, bool]]:
    """As `_facts_of_site`, of who holds slots of the devices and who waits for some."""
    devices, classes, numbers = own.devices, own.server_class, np.arange(len(own.queue))
    of, holds, waits = devices.device[classes], said["holds"], said["waits"]
    yield "holds", not (holds & ((of < 0) | (queue == 0) | waits)).any()
    taken = np.where(holds, devices.taken[classes], 0)
    used = np.bincount(of[of >= 0], taken[of >= 0], len(devices.slots))
    if (loads := said.get("loads")) is not None:
        yield "loads", _within(loads, -1, len(numbers))
        yield "held", _within(said["held"], -1, len(devices.device))
        changing = loads >= 0
        at = np.where(changing, of[np.maximum(loads, 0)], np.arange(len(loads)))
        yield "loads", np.array_equal(at, np.arange(len(loads)))
        yield "loads", not (changing & ((used > 0) | ~devices.changes.exclusive)).any()
        yield "load_s", _within(said["load_s"], 0)
        yield "ready_s", bool(np.isfinite(said["ready_s"]).all())
        if "since" in said:
            yield "since", _within(said["since"], -1, MOST_CHANGES)
            yield "after_s", not np.isnan(said["after_s"]).any()
            yield "contents", _are_contents(said["contents"])
        used = np.where(changing, devices.slots, used)
    yield "used", np.array_equal(used, said["used"])
    yield "used", bool((said["used"] <= devices.slots).all())
    alone = np.zeros(len(of), np.bool_)
    if isinstance(devices.changes, Changes):
        alone = devices.changes.exclusive[of]
    yield "waits", not (waits & ((of < 0) | ((queue == 0) & ~alone))).any()
    yield "due_s", not np.isnan(said["due_s"]).any()
    for field in ("first", "last", "after", "before"):
        yield field, _within(said[field], -1, len(numbers))
    for d in range(len(devices.slots)):
        line, server, before = list[int](), int(said["first"][d]), -1
        while server >= 0 and len(line) < len(numbers):
            yield "before", int(said["before"][server]) == before
            line.append(server)
            before, server = server, int(said["after"][server])
        yield "after", server < 0
        yield "last", int(said["last"][d]) == before
        yield "waits", sorted(line) == np.flatnonzero(waits & (of == d)).tolist()


def _facts_of_site(
    own: Site, said: dict[str, np.ndarray], resting: np.ndarray
) -> Iterator[tuple[str, bool]]:
    """Names and whether what is said of them could be so at a site like this, one by one.

    So many healthy servers of each class have no requests.
    """
    places, servers = own.arrived_s.shape[1], np.arange(len(own.queue))
    counts, classes = np.diff(own.first), own.server_class
    queue, place, idle = said["queue"], said["idle_place"], said["idle"]
    for field in ("first", "server_class"):
        yield field, np.array_equal(said[field], getattr(own, field))
    yield "queue", _within(queue, 0, places + 1)
    yield "head", _within(said["head"], 0, places)
    # A place without a request has no rows; whoever waits has.
    offset = (np.arange(places) - said["head"][:, None]) % places
    yield "rows", _within(said["rows"], 0) and _within(said["rows"][offset < queue[:, None]], 1)
    for field, least in (("most_rows", 1), ("measured", 0), ("held", 0)):
        yield field, _within(said[field], least)
    for field in ("idle", "busy"):
        yield field, bool(((said[field] >= 0) & (said[field] <= counts)).all())
    yield "idle_server", np.array_equal(np.sort(said["idle_server"]), servers)
    yield "idle_place", _within(place, 0, len(servers))
    yield "idle_place", np.array_equal(said["idle_server"][place], servers)
    # Each class has places of its own, and its idle servers stand in front.
    yield "idle_server", np.array_equal(classes[said["idle_server"]], classes)
    free = (queue == 0) & said["healthy"]
    yield "idle", np.array_equal(np.bincount(classes[free], minlength=len(counts)), resting)
    yield "idle", bool(((idle == resting) | (idle == 0)).all())
    yield "idle_place", np.array_equal(place < own.first[classes] + resting[classes], free)
    busy = np.bincount(classes[queue > 0], minlength=len(counts))
    yield "busy", np.array_equal(busy, said["busy"])
    yield "in_system", np.array_equal(np.bincount(classes, queue, len(counts)), said["in_system"])
    bits = 1 << np.arange(len(counts))
    for field, number in (("idle_classes", idle), ("busy_classes", busy)):
        yield field, said[field][0] == bits[number > 0].sum()
    sizes = said["sizes"]
    yield "sizes", _within(sizes, 0) and _within(sizes[:, 0], 1)
    rising = (np.diff(sizes) > 0) | (sizes[:, 1:] == 0)
    yield "sizes", bool(rising.all()) and bool((np.diff((sizes > 0).astype(int)) <= 0).all())
    yield "running", bool(((said["running"] >= 0) & (said["running"] <= queue)).all())
    yield "waiting_rows", _within(said["waiting_rows"], 0)
    for field in ("rate", "row_s", "slow_s"):
        yield field, bool((np.isfinite(said[field]) & (said[field] > 0)).all())
    yield "accuracy", bool(((said["accuracy"] >= 0) & (said["accuracy"] <= 1)).all())
    if "asked" in said:
        first_s = said["first_s"]
        yield "first_s", bool((np.isfinite(first_s) & (first_s > 0)).all())
        for field, least in (("asked", -1), ("again", -1), ("chances", 0)):
            yield field, _within(said[field], least, TRIED + 1)


def _within(array: np.ndarray, low: int, high: float = math.inf) -> bool:
    return bool(((array >= low) & (array < high)).all())


def _gap(folder: Path, head: dict[str, Any], name: str) -> RecordingGap | None:
    try:
        gap = msgspec.convert(head.get(name), RecordingGap | None)
        if gap is not None:
            _missing(gap)
    except (ValueError, OverflowError, OSError):
        file = folder / "recording.json"
        raise ValueError(f"{file} is damaged: its `{name}` makes no sense") from None
    return gap


def _missing(gap: RecordingGap) -> str:
    """Say from when to when, how much and why."""
    said = f"from {_utc(gap.since)}"
    if gap.until is not None:
        others = gap.events - gap.decisions
        said += (
            f" to {_utc(gap.until)} ({gap.until - gap.since:.1f} s): {gap.decisions:,} "
            f"decisions and {others:,} other events are missing"
        )
    return f"{said} ({gap.reason})"


def _utc(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def header(folder: Path) -> dict[str, Any]:
    """A recording's statement about itself: fleet, policy, options, target, versions.

    ValueError where the folder holds no recording that this version reads.
    """
    file = folder / "recording.json"
    try:
        head = json.loads(file.read_text(encoding="utf-8"), parse_int=_number)
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no recording: there is no recording.json in it") from None
    except (OSError, *UNREADABLE) as error:
        reason = getattr(error, "strerror", None) or fault(error)
        raise ValueError(f"{file} cannot be read: {reason}") from error
    if not isinstance(head, dict) or head.get("schema") not in READABLE:
        raise ValueError(f"{file} is not a recording of schema {SCHEMA}")
    return head


def _number(digits: str) -> int | float:
    """Read a whole number as arrays can hold it: beyond 64 bits there are only floats."""
    number = int(digits)
    return number if abs(number) < 1 << 63 else float(digits)


# Of other types, a dispatcher would be compiled for anew; none of these is infinite or nan.
_Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]


_Numbers = list[float]
_TABLES = msgspec.defstruct(
    "_TABLES",
    [
        ("mass", list[_Numbers]),
        ("expected", list[list[_Numbers]]),
        ("edges", list[list[float | None]]),
    ],
)
_DEVICES = msgspec.defstruct(
    "_DEVICES",
    [
        ("names", tuple[str, ...]),
        ("slots", list[int]),
        ("exclusive", list[bool]),
        ("overhead_s", _Numbers),
        ("device", list[int]),
        ("taken", list[int]),
        ("load_s", _Numbers | None, None),
    ],
)
_FLEET = msgspec.defstruct(
    "_FLEET",
    [
        ("task", str),
        ("node", str),
        ("variants", tuple[str, ...]),
        ("rate", _Numbers),
        ("accuracy", list[float | None]),
        ("count", list[int]),
        ("price", _Numbers),
        ("energy", _Numbers),
        ("buffer", int | None),
        ("confidence", _TABLES | None, None),
        ("devices", _DEVICES | None, None),
    ],
)
_HEAD = msgspec.defstruct(
    "_HEAD",
    [
        ("fleet", _FLEET),
        ("policy", str),
        ("options", dict[str, Any]),
        ("folder", str | None),
        ("target", _Finite | None),
        ("rate_per_s", _Finite | None),
        ("measure", bool),
        ("narrow", bool),
        ("max_wait_s", _Finite | None),
        ("lasting", int),
    ],
)


def _tables(said: Any) -> ConfidenceTables | None:
    if said is None:
        return None
    edges = [[math.inf if edge is None else edge for edge in row] for row in said.edges]
    # A class without another bin has an empty row.
    shape = len(edges), len(edges[0]) if edges else 0
    return ConfidenceTables(
        np.array(said.mass, np.float64),
        np.array(said.expected, np.float64),
        np.array(edges, np.float64).reshape(shape),
    )


def _slots(said: Any, classes: int) -> DeviceSlots | None:
    if said is None:
        return None
    columns = msgspec.structs.asdict(said)
    for name in ("slots", "exclusive", "overhead_s", "device", "taken"):
        columns[name] = np.array(columns[name])
    if said.load_s is not None:
        columns["load_s"] = np.array(said.load_s, np.float64)
    slots = DeviceSlots(**columns)
    if said.load_s is not None and len(said.load_s) != classes:
        raise ValueError("its devices are not of its classes")
    devices = len(slots.names)
    sizes = {len(slots.slots), len(slots.exclusive), len(slots.overhead_s)}
    if sizes != {devices} or devices == 0 or {len(slots.device), len(slots.taken)} != {classes}:
        raise ValueError("its devices are not of its classes")
    if not (_within(slots.slots, 1, MOST_SLOTS) and _within(slots.device, -1, devices)):
        raise ValueError("its devices have no such slots")
    if not (_within(slots.taken, 0) and bool((slots.taken <= slots.most).all())):
        raise ValueError("its runs do not fit on their devices")
    return slots


def _dispatcher(folder: Path, head: dict[str, Any]) -> Dispatcher:
    """Make the dispatcher that a recording says it is of.

    ValueError where it says it of none, or of one that is too large.
    """
    try:
        of: Any = msgspec.convert(head, _HEAD)
        fleet = msgspec.structs.asdict(of.fleet)
        places = sum(of.fleet.count) * (of.fleet.buffer or 1)
        if not 0 < places <= MOST_PLACES:
            raise ValueError(f"its servers have {places} places, and {MOST_PLACES:,} are the most")
        columns: dict[str, Any]
        columns = {key: np.array(of) for key, of in fleet.items() if isinstance(of, list)}
        columns["accuracy"] = np.array(of.fleet.accuracy, np.float64)  # None is NaN
        columns["confidence"] = _tables(of.fleet.confidence)
        columns["devices"] = _slots(of.fleet.devices, len(of.fleet.variants))
        dispatcher = Dispatcher(
            Fleet(**(fleet | columns)),
            of.policy,
            target=of.target,
            rate_per_s=of.rate_per_s,
            folder=None if of.folder is None else Path(of.folder),
            measure=of.measure,
            narrow=of.narrow,
            max_wait_s=of.max_wait_s,
            **of.options,
        )
        dispatcher.set_lasting(of.lasting)
    except (*UNREADABLE, TypeError, AttributeError, OverflowError, OSError) as error:
        file = folder / "recording.json"
        raise ValueError(f"{file} says of no dispatcher how it decided: {fault(error)}") from error
    return dispatcher
