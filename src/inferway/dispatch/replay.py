"""Replay: a recording's events through the same policy, on a view built from them alone."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np

from inferway.dispatch.dispatcher import Dispatcher, PolicyError
from inferway.dispatch.entries import code_of
from inferway.dispatch.recording import (
    ARRIVE,
    BALANCE,
    BEGIN,
    EVENT,
    FINISH,
    HELD,
    LASTING,
    MARK,
    PULL,
    READ,
    RETUNE,
    ROUTE,
    SCHEMA,
    SHIFT,
    WITHDRAW,
    RecordingGap,
    restore,
)
from inferway.site.fleet import Fleet
from inferway.site.view import HOLD, Site
from inferway.unreadable import UNREADABLE, fault

_FIXED: Final = ("first", "server_class")
"""Of the site, what the fleet says."""
_POLICYS: Final = ("order", "other")
"""Of a policy, what counts classes or servers from 0."""
_AT_SERVER: Final = frozenset({FINISH, BEGIN, WITHDRAW, MARK, PULL})


class UnsoundError(ValueError):
    """What a recording says could not have happened."""


def check_state(dispatcher: Dispatcher, state: dict[str, np.ndarray]) -> None:
    """Check what a file says of its begin, before a dispatcher is set to it.

    UnsoundError where it is no state of such a dispatcher.
    """
    for name, array in state.items():
        owner, _, field = name.partition(".")
        if name == "dispatcher.lasting":
            _check(array.shape == () and array.dtype.kind == "i", name)
            continue
        parts: Any = {"site": dispatcher.site, "policy": dispatcher.policy}.get(owner)
        own: Any = getattr(parts, field, None) if field in getattr(parts, "_fields", ()) else None
        _check(isinstance(own, np.ndarray), name)
        _check(array.shape == own.shape and np.can_cast(array.dtype, own.dtype, "same_kind"), name)
        if owner == "policy" and field in _POLICYS and array.dtype.kind == "i":
            _check(_within(array, 0, len(own)), name)
    missing = [f for f in Site._fields if f"site.{f}" not in state and f != "most_rows"]
    if missing:
        raise UnsoundError(f"there is no site.{missing[0]}")
    _check_site(
        dispatcher.site,
        {f: state.get(f"site.{f}", getattr(dispatcher.site, f)) for f in Site._fields},
    )


def _check_site(own: Site, said: dict[str, np.ndarray]) -> None:
    places = own.arrived_s.shape[1]
    counts = np.diff(own.first)
    for field in _FIXED:
        _check(np.array_equal(said[field], getattr(own, field)), field)
    _check(_within(said["queue"], 0, places + 1), "queue")
    _check(_within(said["head"], 0, places), "head")
    _check(bool((said["rows"] >= 0).all()), "rows")
    # A place without a request has no rows; whoever waits has.
    offset = (np.arange(places) - said["head"][:, None]) % places
    taken = offset < said["queue"][:, None]
    _check(bool((said["rows"][taken] >= 1).all()), "rows")
    _check(bool((said["most_rows"] >= 1).all()), "most_rows")
    _check(bool((said["measured"] >= 0).all()), "measured")
    _check(bool((said["held"] >= 0).all()), "held")
    for field in ("idle", "busy"):
        _check(bool(((said[field] >= 0) & (said[field] <= counts)).all()), field)
    servers = np.arange(len(own.queue))
    _check(np.array_equal(np.sort(said["idle_server"]), servers), "idle_server")
    _check(
        np.array_equal(said["idle_server"][said["idle_place"] % len(servers)], servers),
        "idle_place",
    )
    _check(_within(said["idle_place"], 0, len(servers)), "idle_place")
    # Each class has places of its own, and its idle servers stand in front.
    classes = own.server_class
    _check(np.array_equal(classes[said["idle_server"]], classes), "idle_server")
    idle = (said["queue"] == 0) & said["healthy"]
    _check(np.array_equal(np.bincount(classes[idle], minlength=len(counts)), said["idle"]), "idle")
    front = said["idle_place"] < own.first[classes] + said["idle"][classes]
    _check(np.array_equal(front, idle), "idle_place")
    busy = np.bincount(classes[said["queue"] > 0], minlength=len(counts))
    _check(np.array_equal(busy, said["busy"]), "busy")
    for field in ("rate", "row_s", "slow_s"):
        _check(bool((np.isfinite(said[field]) & (said[field] > 0)).all()), field)


def check_event(site: Site, row: tuple[Any, ...]) -> None:
    """Check that an event could happen at the site as it is; UnsoundError where it could not."""
    kind, _, _, rows, server, floor, time_s, _, value, _ = row
    if not math.isfinite(time_s):
        raise UnsoundError(f"an event is at {time_s} s")
    servers, places = site.arrived_s.shape
    if kind == ARRIVE:
        sound = HOLD <= server < servers and rows >= 1
        sound = sound and (server < 0 or site.queue[server] < places)
    elif kind in _AT_SERVER:
        sound = 0 <= server < servers
        if sound and kind == FINISH:
            sound = site.queue[server] > 0
        elif sound and kind == WITHDRAW:
            sound = 0 <= rows < site.queue[server]
        elif kind == BEGIN:
            sound = sound and rows >= 0
    elif kind == SHIFT:
        sound = 0 <= server <= rows <= servers and math.isfinite(value) and math.isfinite(floor)
    elif kind == RETUNE:
        sound = 0 < value < math.inf
    else:
        sound = kind <= max(LASTING, BALANCE)
    if not sound:
        raise UnsoundError(f"an event of kind {kind} at server {server} could not have happened")


def _within(array: np.ndarray, low: int, high: int) -> bool:
    return bool(((array >= low) & (array < high)).all())


def _check(sound: bool, name: str) -> None:
    if not sound:
        raise UnsoundError(f"{name} is none of such a site")


MOST_PLACES = 10_000_000
"""In the buffers of all servers of a recorded site together."""


@dataclass(frozen=True)
class Difference:
    """A decision that came out otherwise."""

    request: int
    """Which request of the recording, from 0; for a batch, the last that had arrived."""
    time_s: float
    recorded: int
    """Server, REJECT or HOLD; for a batch, requests."""
    replayed: int
    what: str = "server"
    """Or what a free server was told to ``drop`` or ``take``."""


@dataclass(frozen=True)
class Replay:
    """What a replay found."""

    task: str
    policy: str
    requests: int
    """Decisions compared."""
    events: int
    differences: tuple[Difference, ...]
    same_code: bool
    """Whether the recording was made by this very code of policies and site."""
    losses: tuple[str, ...] = ()
    """What of the recording is missing, or not whole and so was left out, a sentence for each."""
    batches: int = 0
    """Times that a free server was told what to drop and take, compared likewise."""
    gap: RecordingGap | None = None
    """What is missing between the section before and this one, where the disk had no room."""
    ended: RecordingGap | None = None
    """What is missing behind this one, likewise."""

    def to_json(self) -> dict[str, Any]:
        """As `inferway replay DIR --json` prints it under ``tasks.NAME``."""
        return {
            "policy": self.policy,
            "requests": self.requests,
            "events": self.events,
            "batches": self.batches,
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
            check_state(course.dispatcher, state)
        except UnsoundError as wrong:
            losses.append(f"the state of file {file} is damaged, and so it is left out: {wrong}")
            continue
        restore(course.dispatcher, state)
        try:
            for row in rows.tolist():
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
        gap=gap,
        ended=ended,
    )


class _Course:
    """Follows recorded events one after another, and compares each decision."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        requests: int | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.dispatcher = dispatcher
        self.compared = self.handled = self.batches = 0
        self.differences: list[Difference] = []
        self._requests, self._progress = requests, progress
        self._routing: list[tuple[Any, ...]] = []

    @property
    def done(self) -> bool:
        """Whether as many requests have been compared as were asked for."""
        return self.compared == self._requests

    def take(self, row: tuple[Any, ...]) -> None:
        """Follow one event; UnsoundError where it could not have happened, and nothing has then.

        PolicyError or ZeroDivisionError where times that could not have been measured lead to it.
        """
        check_event(self.dispatcher.site, row)
        self.handled += 1
        if row[0] == PULL:
            self.differences += _pulled(self.dispatcher, row, self.compared - 1)
            self.batches += 1
        elif row[0] == ROUTE:
            self._route(row)
        elif row[0] == ARRIVE:
            self._compare(row)
        else:
            _repeat(self.dispatcher, row)

    def _compare(self, row: tuple[Any, ...]) -> None:
        _, counted, priority, size, taken, floor, time_s, word, deadline_s, classes = row
        decided = self.dispatcher.follow(
            time_s, word, deadline_s, floor, priority, classes, size, bool(counted), taken
        )
        if decided != taken:
            self.differences.append(Difference(self.compared, time_s, taken, decided))
        self.compared += 1
        if self._progress is not None and self.compared % 1000 == 0:
            self._progress(self.compared)

    def _route(self, row: tuple[Any, ...]) -> None:
        """Gather the rows of a routing, until it is whole."""
        self._routing.append(row)
        if not row[1]:
            return
        rows, self._routing = self._routing, []
        try:
            _route(self.dispatcher, rows)
        except (ValueError, IndexError, AttributeError, TypeError) as wrong:
            raise UnsoundError(f"a routing is none of this site: {wrong}") from wrong


def _gap(folder: Path, head: dict[str, Any], name: str) -> RecordingGap | None:
    written = head.get(name)
    if written is None:
        return None
    try:
        gap = RecordingGap(**written)
        times = gap.since, gap.since if gap.until is None else gap.until
        for time in times:
            datetime.fromtimestamp(time, UTC)
        if not all(isinstance(one, str) for one in (gap.reason, gap.after)) or not all(
            isinstance(one, int) for one in (gap.decisions, gap.events)
        ):
            raise TypeError
    except (TypeError, ValueError, OverflowError, OSError):
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


def _pulled(dispatcher: Dispatcher, row: tuple[Any, ...], request: int) -> list[Difference]:
    """Ask again what a free server drops and takes; what comes out otherwise."""
    _, _, _, take, server, _, time_s, word, _, drop = row
    drops, takes = dispatcher.pull(server, time_s, word)
    found = []
    if drops != drop:
        found.append(Difference(request, time_s, drop, drops, "drop"))
    if takes != take:
        found.append(Difference(request, time_s, take, takes, "take"))
    return found


def _route(dispatcher: Dispatcher, rows: list[tuple[Any, ...]]) -> None:
    """Route as recorded, a row for each server or class."""
    if rows[0][4] < 0:
        dispatcher.route(None)
        return
    servers, classes = len(dispatcher.site.queue), len(dispatcher.site.rate)
    dispatcher.route(
        np.array([row[8] for row in rows[:servers]]),
        np.array([row[3] for row in rows[:classes]]),
        np.array([row[9] for row in rows[:classes]]),
    )


def _repeat(dispatcher: Dispatcher, row: tuple[Any, ...]) -> None:
    kind, flag, _, count, server, floor, time_s, _, value, classes = row
    if kind == FINISH:
        dispatcher.finish(server, time_s, value, count)
    elif kind == BEGIN:
        dispatcher.begin(server, count, time_s)
    elif kind == WITHDRAW:
        dispatcher.withdraw(server, count, time_s, bool(flag))
    elif kind == MARK:
        dispatcher.mark(server, bool(flag), time_s)
    elif kind == SHIFT:
        dispatcher.shift(server, count, value, floor, time_s)
    elif kind == BALANCE:
        dispatcher.site.balance[0] = value
    elif kind == LASTING:
        dispatcher.set_lasting(classes)
    elif kind == RETUNE:
        dispatcher.retune(value)
    elif kind == HELD:
        dispatcher.site.held[0] = count


def header(folder: Path) -> dict[str, Any]:
    """What a recording says of itself: fleet, policy, options, target, versions.

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
    if not isinstance(head, dict) or head.get("schema") not in READ:
        raise ValueError(f"{file} is not a recording of schema {SCHEMA}")
    return head


def _number(digits: str) -> int | float:
    """Read a whole number as arrays can hold it: beyond 64 bits there are only floats."""
    number = int(digits)
    return number if abs(number) < 1 << 63 else float(digits)


def _dispatcher(folder: Path, head: dict[str, Any]) -> Dispatcher:
    """Make the dispatcher that a recording says it is of.

    ValueError where it says it of none, or of one that is too large.
    """
    try:
        fleet = head["fleet"]
        places = sum(fleet["count"]) * (fleet["buffer"] or 1)
        if not 0 < places <= MOST_PLACES:
            raise ValueError(f"its servers have {places} places, and {MOST_PLACES:,} are the most")
        return _built(head)
    except (*UNREADABLE, KeyError, TypeError, AttributeError, OverflowError, OSError) as error:
        file = folder / "recording.json"
        reason = f"there is no {error}" if isinstance(error, KeyError) else fault(error)
        raise ValueError(f"{file} says of no dispatcher how it decided: {reason}") from error


def _shown(value: object) -> str:
    return f"{value!r:.40}"


def _built(head: dict[str, Any]) -> Dispatcher:
    fleet = head["fleet"]
    # Of other types, each would be compiled for anew.
    for name, kind, usual in (("measure", bool, None), ("narrow", bool, True), ("lasting", int, 0)):
        if type(head.get(name, usual)) is not kind:
            raise TypeError(f"its `{name}` is {_shown(head.get(name))}")
    for name in ("target", "rate_per_s", "max_wait_s"):
        value = head.get(name)
        # A truth value is a whole number in Python, and none of these.
        if value is not None and (type(value) not in (int, float) or not math.isfinite(value)):
            raise TypeError(f"its `{name}` is {_shown(value)}")
    for name in ("task", "node"):
        if not isinstance(fleet[name], str):
            raise TypeError(f"its fleet's `{name}` is {_shown(fleet[name])}")
    dispatcher = Dispatcher(
        Fleet(
            variants=tuple(fleet["variants"]),
            rate=np.array(fleet["rate"]),
            accuracy=np.array(fleet["accuracy"]),
            count=np.array(fleet["count"]),
            price=np.array(fleet["price"]),
            energy=np.array(fleet.get("energy", [])),
            buffer=fleet["buffer"],
            task=fleet["task"],
            node=fleet["node"],
        ),
        head["policy"],
        target=head["target"],
        rate_per_s=head["rate_per_s"],
        measure=head["measure"],
        narrow=head.get("narrow", True),
        max_wait_s=head.get("max_wait_s"),
        folder=None if head["folder"] is None else Path(head["folder"]),
        **head["options"],
    )
    dispatcher.set_lasting(head.get("lasting", 0))
    return dispatcher
