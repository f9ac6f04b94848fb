"""One server or node that the page shows: asked once a second, its last samples kept."""

from __future__ import annotations

import asyncio
import http.client
import math
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from inferway.loadgen.access import Access, unsecured
from inferway.protocol.address import ServerAddress, parse_server
from inferway.unreadable import UNREADABLE, fault

SAMPLES: Final = 15 * 60
"""Samples that are kept, a second each."""
MINUTE_S: Final = 60
_ASK_S: Final = 3.0
"""How long a server may take for the connection, and for an answer."""
DECIDED_EVERY: Final = 3
"""Rounds of questions in one of which the last decisions are asked for."""
GONE_AFTER: Final = 2
"""Questions in a row without an answer after which a server counts as gone."""
_EVERYWHERE: Final = ("0.0.0.0", "::")


# Requests that were asked again, by first and second variant.
_Pairs = dict[tuple[str, str], int]


def devices_of(status: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Find the devices in ``/status``: slots, busy ones, who waits.

    Servers of before tell them by task alone.
    """
    if "devices" in status:
        whole_server: dict[str, dict[str, int]] = status["devices"]
        return whole_server
    found: dict[str, dict[str, int]] = {}
    for told in status.get("tasks", {}).values():
        for name, one in told.get("devices", {}).items():
            whole = found.setdefault(name, {"slots": one["slots"], "busy": 0, "waiting": 0})
            whole["busy"] += one["busy"]
            whole["waiting"] += one["waiting"]
    return found


class UnreadError(Exception):
    """A server that cannot be read; the message is one sentence for whoever looks at the page."""


class WatchedServer:
    """A server or node by the URL of its admin listener.

    Parameters
    ----------
    url
        Of the admin listener.
    access
        With a key that may read, where the server asks for one.
    name
        What it is called on the page; if empty, the node's name once it has told, before host and
        port.

    Attributes
    ----------
    name, given
        What it is called on the page, and the name that it was given.
    state
        ``"asked"`` before the first answer, then ``"answers"`` or ``"gone"``; ``"ended"`` after
        `end`.
    ending
        Whether it is asked no more, or once more.
    since_s, reason
        Since when, in seconds of the epoch, and, of one that is gone, why.
    status, node
        What ``/status`` and, of a node, ``/v2/node`` said last. Tasks in which a second variant may
        be asked have their `fleet` there as well, as ``/deployment/TASK`` has it.
    times
        Ends of the samples in seconds of the epoch.
    rows
        Samples by task, as ``/history`` has them: one mapping a sample, None where it has none.
    counts
        By task, answers since the start by variant and latency: a time and the counts, the oldest
        of the last minute first.
    bounds_s
        Ends of the buckets that these are counted in.
    again
        By task in which a second variant may be asked, how often that was since the start, by first
        and second variant: a time and the counts, the oldest of the last minute first.
    fleets
        By such a task, its fleet as ``/deployment/TASK`` has it.
    busy
        By device, the part of its slots that was busy whenever it was asked in the last minute.
    access
        As it was given.
    decisions
        By task, the most surprising of its last requests, as ``/decisions`` has them.
    """

    def __init__(self, url: str, access: Access, name: str = "") -> None:
        self._address, self.access, self.given = parse_server(url), access, name
        self.url, self.name = self._address.url, name or self._address.authority
        self.state, self.since_s, self.reason = "asked", time.time(), ""
        self.status: dict[str, Any] = {}
        self.node: dict[str, Any] | None = None
        self._has_node = True
        self.times: deque[float] = deque(maxlen=SAMPLES)
        self.rows: dict[str, deque[dict[str, Any] | None]] = {}
        self.counts: dict[str, deque[tuple[float, dict[str, list[int]]]]] = {}
        self.bounds_s: list[float] = []
        self.again: dict[str, deque[tuple[float, _Pairs]]] = {}
        self.fleets: dict[str, dict[str, Any]] = {}
        self.busy: dict[str, deque[float]] = {}
        self.decisions: dict[str, list[dict[str, Any]]] = {}
        self.ending = False
        self._failed = self._rounds = 0
        self._talking = Lock()
        self._connection: http.client.HTTPConnection | None = None

    async def follow(self, changed: Callable[[], None]) -> None:
        """Ask at a quarter past every full second, when there is a new sample, until its end."""
        last = False
        while not last:
            last = self.ending
            try:
                self._take(
                    await asyncio.to_thread(self._ask, self.times[-1] if self.times else 0.0)
                )
            except UnreadError as error:
                self._miss(str(error))
            except Exception as error:
                self._miss(f"{self.url} told what cannot be read: {error!r}")
            else:
                self._failed = 0
                self._turn("answers", "")
            if last:
                self._turn("ended", "")
                self.close()
            changed()
            if not last:
                await asyncio.sleep(1.25 - time.time() % 1.0)

    def end(self) -> None:
        """Ask once more and never again: what it has told stays as it is then."""
        self.ending = True

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _miss(self, reason: str) -> None:
        self._failed += 1
        if self._failed >= GONE_AFTER or self.state == "asked":
            self._turn("gone", reason)
            self._failed = max(self._failed, GONE_AFTER)

    def _turn(self, state: str, reason: str) -> None:
        if state != self.state:
            self.state, self.since_s = state, time.time()
        self.reason = reason

    def _ask(self, since_s: float) -> _Heard:
        """Read all that is new; in a thread, which changes nothing that others read."""
        pages: list[dict[str, Any]] = []
        while not pages or pages[-1].get("more"):
            page = self._get(f"/history?since={since_s}")
            if since_s and not pages and page.get("now", since_s) < since_s - 1.0:
                since_s = 0.0  # its clock has been set back
                continue
            pages.append(page)
            since_s = max(page.get("times", []), default=since_s)
        status, node = self._get("/status"), None
        if self._has_node:
            try:
                node = self._get("/v2/node")
            except _MissingError:
                self._has_node = False
        self._rounds += 1
        decisions = None
        if self._rounds % DECIDED_EVERY == 1:
            with suppress(_MissingError):
                decisions = self._get("/decisions")["tasks"]
        fleets = None
        twice = [name for name, told in pages[-1].get("tasks", {}).items() if "escalations" in told]
        if self._rounds % DECIDED_EVERY == 1 or (twice and not self.fleets):
            # Of one that has no fleet at the moment there is none to tell.
            fleets = {}
            for name in twice:
                with suppress(UnreadError):
                    fleets[name] = self._get(f"/deployment/{quote(name, safe='')}")
        return _Heard(pages, status, node, decisions, fleets)

    def explanation(self, task: str, request: str) -> dict[str, Any]:
        """Ask why a request was answered as it was; UnreadError where nobody can say. Blocks."""
        return self._get(f"/decisions/{quote(task, safe='')}/{quote(request, safe='')}")

    @property
    def address(self) -> ServerAddress:
        """Where its admin listener is."""
        return self._address

    def told(self, path: str) -> dict[str, Any]:
        """Read a page of its admin listener; UnreadError where it cannot be read. Blocks."""
        return self._get(path)

    def requests(self, task: str, since_s: float) -> bytes:
        """Read a task's last requests, as ``/requests`` has them; UnreadError. Blocks."""
        with self._talking:
            return self._fetched(f"/requests/{quote(task, safe='')}?since={since_s}")

    def inference(self) -> ServerAddress:
        """Ask where it takes requests; UnreadError where it does not say. Blocks."""
        try:
            found = parse_server(str(self._get("/")["inference"]))
        except (KeyError, ValueError):
            raise UnreadError(f"{self.url} does not say where it takes requests") from None
        # One that listens everywhere is found where its admin listener is.
        host = self._address.host if found.host in _EVERYWHERE else found.host
        return replace(found, host=host)

    def _take(self, heard: _Heard) -> None:
        self.status, self.node = heard.status, heard.node
        self.decisions = self.decisions if heard.decisions is None else heard.decisions
        self.fleets = self.fleets if heard.fleets is None else heard.fleets
        now = devices_of(self.status)
        self.busy = {
            name: deque([*self.busy.get(name, ()), one["busy"] / one["slots"]], MINUTE_S)
            for name, one in now.items()
        }
        for name, fleet in self.fleets.items():
            if name in self.status.get("tasks", {}):
                self.status["tasks"][name]["fleet"] = fleet
        if self.node is not None and not self.given:
            self.name = str(self.node["node"])
        try:
            for page in heard.pages:
                self._keep(page)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise UnreadError(f"{self.url} told no history that can be read: {error!r}") from None

    def _keep(self, page: dict[str, Any]) -> None:
        times, tasks, self.bounds_s = page["times"], page["tasks"], page["response_bounds_s"]
        if times and self.times and times[0] <= self.times[-1]:  # its clock has been set back
            self.times.clear()
            self.rows.clear()
            self.counts.clear()
            self.again.clear()
        for gone in self.rows.keys() - tasks.keys():
            del self.rows[gone]
        for name, told in tasks.items():
            kept = self.rows.setdefault(name, deque([None] * len(self.times), SAMPLES))
            for i in range(len(times)):
                row = {key: series[i] for key, series in told.items() if isinstance(series, list)}
                row["variants"] = {
                    variant: {key: series[i] for key, series in of.items()}
                    for variant, of in told["variants"].items()
                }
                # The task was not there yet.
                kept.append(None if row.get("arrivals") is None else row)
            counts = self.counts.setdefault(name, deque())
            if counts and sum(map(sum, told["response_times"].values())) < sum(
                map(sum, counts[-1][1].values())
            ):  # it has started again
                counts.clear()
            counts.append((page["now"], told["response_times"]))
            while counts[0][0] < page["now"] - MINUTE_S - 1.0:
                counts.popleft()
            if "escalations" not in told:
                self.again.pop(name, None)
                continue
            pairs = {
                (first, then): count
                for first, of in told["escalations"].items()
                for then, count in of.items()
            }
            asked = self.again.setdefault(name, deque())
            if asked and sum(pairs.values()) < sum(asked[-1][1].values()):  # it has started again
                asked.clear()
            asked.append((page["now"], pairs))
            while asked[0][0] < page["now"] - MINUTE_S - 1.0:
                asked.popleft()
        self.times.extend(times)

    def _get(self, path: str) -> dict[str, Any]:
        with self._talking:  # an explanation may be asked for meanwhile
            return self._got(path)

    def _got(self, path: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = msgspec.json.decode(self._fetched(path), type=dict[str, Any])
        except UNREADABLE as error:
            raise UnreadError(f"{self.url} answers what is no JSON: {fault(error)}") from None
        return found

    def _fetched(self, path: str) -> bytes:
        address = self._address
        if self._connection is None:
            self._connection = (
                http.client.HTTPSConnection(
                    address.host, address.port, timeout=_ASK_S, context=self.access.context
                )
                if address.tls
                else http.client.HTTPConnection(address.host, address.port, timeout=_ASK_S)
            )
        headers = {"Host": address.authority, "Accept": "application/json", **self.access.headers}
        try:
            self._connection.request("GET", address.prefix + path, headers=headers)
            answer = self._connection.getresponse()
            body = answer.read()
        except ssl.SSLError as error:
            self.close()
            raise UnreadError(f"no connection to {self.url}: {unsecured(error)}") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UnreadError(f"{self.url} does not answer ({why.lower()})") from None
        if answer.status == 404:
            where = path.partition("?")[0]
            raise _MissingError(f"{self.url} is no admin listener: it has no {where}")
        if answer.status != 200:
            raise UnreadError(self._refusal(answer.status, body))
        return body

    def _refusal(self, status: int, body: bytes) -> str:
        if status == 401:
            return f"{self.url} asks for a key with the role read: give one with --key-file FILE"
        try:
            why = str(msgspec.json.decode(body)["error"])
        except (*UNREADABLE, KeyError, TypeError):
            why = f"status {status}"
        return f"{self.url} refuses to be read: {self.access.hidden(why)}"

    def last(self, task: str, seconds: int) -> list[dict[str, Any]]:
        """List the task's samples of the last seconds, the oldest first."""
        if not self.times:
            return []
        since_s = self.times[-1] - seconds
        pairs = list(zip(self.times, self.rows.get(task, ()), strict=False))[-seconds:]
        return [row for moment, row in pairs if row is not None and moment > since_s]

    def answered_within(self, task: str, seconds: float) -> dict[str, list[int]]:
        """Count the answers of the last seconds, a minute at most, by variant and latency."""
        counts = self.counts.get(task)
        if not counts:
            return {}
        now_s, last = counts[-1]
        begin = next((before for at, before in counts if at >= now_s - seconds - 0.5), last)
        return {
            variant: [a - b for a, b in zip(now, begin.get(variant, [0] * len(now)), strict=True)]
            for variant, now in last.items()
        }

    def again_within(self, task: str, seconds: float) -> dict[tuple[str, str], int] | None:
        """Count what was asked again within the last seconds, a minute at most, by pair.

        None where no second variant may be asked.
        """
        asked = self.again.get(task)
        if not asked:
            return None
        now_s, last = asked[-1]
        begin = next((before for at, before in asked if at >= now_s - seconds - 0.5), last)
        return {pair: count - begin.get(pair, 0) for pair, count in last.items()}


class _MissingError(UnreadError):
    """A path that a server does not have."""


class _Heard(NamedTuple):
    """What a server has said to one round of questions."""

    pages: list[dict[str, Any]]
    status: dict[str, Any]
    node: dict[str, Any] | None
    decisions: dict[str, list[dict[str, Any]]] | None
    fleets: dict[str, dict[str, Any]] | None


def finite(value: Any) -> float | None:
    """Return a number that can be drawn; None for any other."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
