"""The last requests of a process as rows of numbers, for whoever replays them in the twin.

A row is written when a request has ended, of all tasks into one block of bytes that is as large at
the start as it will ever be, and the oldest makes way for the newest.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from struct import Struct
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec
import numpy as np
import numpy.typing as npt

from inferway.live.http.exchange import OCTETS, Exchange
from inferway.live.request import InferRequest
from inferway.live.site import TaskSite
from inferway.protocol import RefusalError

MOST: Final = 100_000
"""Requests that are kept, of all tasks together."""
PINNED, FLOOR, URGENT, SECOND = 1, 2, 4, 8
"""Bits of a row's flags: pinned to a variant, with an accuracy floor, with a priority; answered by
a second variant, after the first one's answer."""
ROW: Final = np.dtype(
    [
        ("received_s", "<f8"),  # on the site's clock
        # From there until it was decided for the last time, and until it ended.
        ("decided_s", "<f4"),
        ("ended_s", "<f4"),
        ("model_s", "<f4"),  # what the model took for the run that it was in; 0 without an answer
        ("deadline_s", "<f4"),  # from its receipt; inf where it had none
        ("task", "<u2"),
        # Accuracy that its answer was expected to have; nan where its confidence was not looked at.
        ("expected", "<f2"),
        ("server", "<i4"),  # of the fleet that had it; -1 where it went to none
        ("column", "<i2"),  # of its variant in the task's statistics; -1 likewise
        ("together", "<u2"),  # requests that were run at once, this one included; 0 for it alone
        ("rows", "<u2"),  # that it asked for
        ("outcome", "u1"),
        ("flags", "u1"),
    ]
)
"""One request, 40 bytes."""
_pack: Final = Struct("<dffffHeihHHBB").pack_into
_LARGEST: Final = 2**16 - 1
_WORDS: Final = ROW.itemsize // 8

Rows = npt.NDArray[np.void]


class RecentRequests:
    """The last requests of a process, whichever task they were of.

    All methods belong to the event loop.

    Parameters
    ----------
    most
        How many are kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self._block, self._at, self._full = bytearray(most * ROW.itemsize), 0, False
        self._tasks: dict[str, int] = {}

    @property
    def nbytes(self) -> int:
        """Memory of the rows."""
        return len(self._block)

    def of(self, task: str) -> Callable[[InferRequest, int], None]:
        """Make what notes a request of a task that has ended, and the column of its variant.

        A row has room for the number of one of 65,536 tasks; requests of further ones are not kept.
        """
        if task not in self._tasks and len(self._tasks) > _LARGEST:
            return lambda request, column: None
        return partial(self._note, self._tasks.setdefault(task, len(self._tasks)))

    def _note(self, task: int, request: InferRequest, column: int) -> None:
        # With every request: a branch costs less than a number that is always worked out.
        before, received_s, at = request.before, request.received_s, self._at
        rows, flags = request.rows, 0
        if not request.counted or request.floor or request.priority:
            flags = (
                (0 if request.counted else PINNED)
                | (FLOOR if request.floor else 0)
                | (URGENT if request.priority else 0)
            )
        expected = math.nan
        if request.settled:
            expected = request.credit
            if request.escalated_from:
                flags |= SECOND
        _pack(
            self._block,
            at,
            received_s,
            0.0 if before is None else before.now_s - received_s,
            request.latency_s,
            request.service_s,
            request.deadline_s - received_s,
            task,
            expected,
            request.server,
            column,
            request.together[0],
            rows if rows < _LARGEST else _LARGEST,
            request.outcome,
            flags,
        )
        at += ROW.itemsize
        if at == len(self._block):
            at, self._full = 0, True
        self._at = at

    def taken(self, task: str) -> Callable[[float], Rows]:
        """Take the rows as they are now; what that gives finds a task's, in any thread.

        Given a time of the site's clock, it returns the rows of requests received since then, in
        the order in which they ended.
        """
        number = self._tasks.get(task, -1)
        kept = self._block if self._full else self._block[: self._at]
        rows: Rows = np.frombuffer(bytes(kept), ROW)
        begin = self._at // ROW.itemsize if self._full else 0

        def find(since_s: float) -> Rows:
            found = []
            for one in (rows[begin:], rows[:begin]):
                own = np.flatnonzero((one["task"] == number) & (one["received_s"] > since_s))
                # As whole words they are copied in a tenth of the time.
                found.append(one.view(np.uint64).reshape(-1, _WORDS)[own])
            return np.concatenate(found).view(ROW).ravel()

        return find


def recent_page(
    recent: RecentRequests, sites: Callable[[], Mapping[str, TaskSite]]
) -> Callable[[Exchange, bytes], None]:
    """Make what answers ``/requests/TASK?since=SECONDS``: a line of JSON, and rows behind it.

    The rows are made in a thread, so that requests are not held up.
    """
    answering: set[asyncio.Task[None]] = set()

    async def tell(exchange: Exchange, name: bytes) -> None:
        try:
            site, since_s = site_named(name, sites()), _since_s(exchange.target)
        except RefusalError as refusal:
            exchange.refuse(refusal.status, refusal.reason)
            return
        try:
            # By how much the site's clock is behind the seconds since 1970.
            behind_s = time.time() - site.now()
            find, variants = recent.taken(site.task), list(site.stats.variants)
            body = await asyncio.to_thread(_body, site.task, variants, behind_s, find, since_s)
        except Exception:
            exchange.refuse(500, "the requests cannot be told")
            raise
        exchange.respond(200, body, OCTETS)

    def answer(exchange: Exchange, name: bytes) -> None:
        task = asyncio.get_running_loop().create_task(tell(exchange, name))
        answering.add(task)
        task.add_done_callback(answering.discard)

    return answer


def _body(
    task: str,
    variants: list[str],
    behind_s: float,
    find: Callable[[float], Rows],
    since_s: float,
) -> bytes:
    rows = find(since_s - behind_s)
    return written(head_of(task, variants, behind_s, len(rows)), rows)


def head_of(task: str, variants: list[str], clock_s: float, count: int) -> dict[str, Any]:
    """Say of so many rows what `recent_page` says before them.

    `variants` are the task's by column, `clock_s` is by how much the site's clock is behind the
    seconds since 1970.
    """
    return {
        "schema": 1,
        "task": task,
        "clock_s": clock_s,
        "variants": variants,
        "row": [[name, ROW[name].str] for name in ROW.names or ()],
        "rows": count,
    }


def written(head: Mapping[str, Any], rows: Rows) -> bytes:
    """Write a line of JSON and rows behind it."""
    return msgspec.json.encode(head) + b"\n" + rows.tobytes()


def read_rows(body: bytes) -> tuple[dict[str, Any], Rows]:
    """Read what `recent_page` answers: what the line says, and the rows.

    Raises
    ------
    ValueError
        Where it is none.
    """
    line, _, rest = body.partition(b"\n")
    head = msgspec.json.decode(line, type=dict[str, Any])
    if head.get("row") != [[name, ROW[name].str] for name in ROW.names or ()]:
        raise ValueError("it has rows of another kind, as servers of other versions have")
    return head, np.frombuffer(rest, ROW)


def site_named(name: bytes, sites: Mapping[str, TaskSite]) -> TaskSite:
    """Find a task's site by the name in a path; RefusalError where there is none."""
    task = name.decode("utf-8", "replace")
    if task not in sites:
        raise RefusalError(404, f"there is no task {task[:64]!r} here")
    return sites[task]


def _since_s(target: bytes) -> float:
    given = parse_qs(urlsplit(target.decode("latin-1")).query, keep_blank_values=True)
    for name in given.keys() - {"since"}:
        raise RefusalError(400, f"there is no parameter {name[:64]!r}; since is")
    text = given.get("since", ["0"])[-1]
    try:
        since_s = float(text)
    except ValueError:
        since_s = math.nan
    if not math.isfinite(since_s):
        raise RefusalError(400, f"since is {text[:64]!r}, expected seconds since 1970")
    return since_s
