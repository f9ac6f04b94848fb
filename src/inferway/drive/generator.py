"""The sending side: an event loop that writes each request when it is due, whatever comes back."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import httptools
import numpy as np

from inferway.drive.alarm import alarm
from inferway.drive.answer import decode
from inferway.drive.plan import Outcome, Plan

_FIRST_CONNECTIONS: Final = 32
_CONNECT_S: Final = 5.0
_REPORT_S: Final = 0.1
_HEADER: Final = b"inference-header-content-length"

Report = Callable[[int, int], None]


class _Connection(asyncio.Protocol):
    """One kept-alive connection; carries one request at a time."""

    __slots__ = ("_body", "_generator", "_json_length", "_parser", "_transport", "request")

    def __init__(self, generator: _Generator) -> None:
        self._generator = generator
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._body = b""
        self._json_length = -1
        self.request = -1

    def send(self, request: int, message: bytes) -> None:
        self.request = request
        self._transport.write(message)

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._generator.lost(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError):
            self._transport.abort()

    # What the HTTP parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == _HEADER:
            self._json_length = int(value)

    def on_body(self, body: bytes) -> None:
        self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        if self.request < 0:  # an answer that nobody asked for
            self._transport.abort()
            return
        status = self._parser.get_status_code()
        keep = self._parser.should_keep_alive()
        body, self._body = self._body, b""
        json_length, self._json_length = self._json_length, -1
        self._generator.answered(self, status, body, json_length, keep)


class _Generator:
    """Sends a plan's requests at their times, records what comes back.

    Arrivals are never delayed by answers: a due request takes an idle connection, or a new one is
    opened, up to the plan's number; only beyond that it waits, and that wait is in its latency.
    """

    def __init__(self, plan: Plan, loop: asyncio.AbstractEventLoop, report: Report | None) -> None:
        self._plan = plan
        self._loop = loop
        self._report = report
        self._due_s: list[float] = plan.due_s.tolist()
        self._message: list[int] = plan.message.tolist()
        count = len(self._due_s)
        self._sent = [math.nan] * count
        self._done = [math.nan] * count
        self._status = [0] * count
        self._variant = [-1] * count
        self._class = [-1] * count
        self._predicted = [math.nan] * count
        self._waited = [False] * count
        self._variants: dict[str, int] = {}
        self._next = 0
        self._ended = 0
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._pending: deque[int] = deque()
        self._start = 0.0
        self._finished = asyncio.Event()
        self._stopped = False
        self._refused = ""
        self._alarm = alarm(loop, self._send_due)

    async def run(self) -> Outcome:
        plan = self._plan
        await self._connect(min(_FIRST_CONNECTIONS, plan.connections))
        if not self._idle:
            self._alarm.close()
            return self._outcome(0.0)
        # Nothing below makes reference cycles worth a collection's pause.
        gc.collect()
        gc.freeze()
        gc.disable()
        cpu = time.process_time()
        self._start = time.monotonic() + 0.01
        if self._due_s:
            self._alarm.set(self._start + self._due_s[0])
            reporting = self._loop.create_task(self._progress())
            await self._finished.wait()
            reporting.cancel()
        self._alarm.close()
        outcome = self._outcome(time.process_time() - cpu)
        for task in tuple(self._opening):
            task.cancel()
        for connection in tuple(self._open):
            connection.close()
        gc.enable()
        return outcome

    def stop(self) -> None:
        """End the run now; what was due until now is kept."""
        self._stopped = True
        self._finished.set()

    # The connections report here.

    def answered(
        self, connection: _Connection, status: int, body: bytes, json_length: int, keep: bool
    ) -> None:
        request = connection.request
        connection.request = -1
        self._done[request] = time.monotonic() - self._start
        self._status[request] = status
        if keep:
            self._release(connection)
        else:
            connection.close()
        if status == 200:
            answer = decode(body, json_length)
            if answer is None:
                self._status[request] = 0
            else:
                index = self._variants.setdefault(answer.variant, len(self._variants))
                self._variant[request] = index
                self._class[request] = answer.predicted_class
                self._predicted[request] = answer.predicted_s
        self._end(1)

    def lost(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection.request >= 0:
            self._done[connection.request] = time.monotonic() - self._start
            connection.request = -1
            self._end(1)
        else:
            # A connection that the server closed while it was idle; few, so a scan will do.
            if connection in self._idle:
                self._idle.remove(connection)
        if self._pending and not self._finished.is_set():
            self._grow()

    # Sending.

    def _send_due(self) -> None:
        due_s, start = self._due_s, self._start
        count = len(due_s)
        now = time.monotonic() - start
        while self._next < count and due_s[self._next] <= now:
            request = self._next
            self._next += 1
            if self._idle:
                self._write(self._idle.pop(), request)
                now = time.monotonic() - start
            else:
                self._pending.append(request)
                self._grow()
        if self._next < count:
            self._alarm.set(start + due_s[self._next])
        else:
            self._loop.call_later(self._plan.grace_s, self._finished.set)

    def _write(self, connection: _Connection, request: int) -> None:
        self._sent[request] = time.monotonic() - self._start
        connection.send(request, self._plan.messages[self._message[request]])

    def _release(self, connection: _Connection) -> None:
        if self._pending:
            self._write(connection, self._pending.popleft())
        else:
            self._idle.append(connection)

    def _grow(self) -> None:
        if len(self._open) + len(self._opening) >= self._plan.connections:
            if self._pending:
                self._waited[self._pending[-1]] = True
            return
        if len(self._opening) < len(self._pending):
            task = self._loop.create_task(self._open_one())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open_one(self) -> None:
        address = self._plan.address
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self), address.host, address.port, ssl=address.tls or None
                )
        except (OSError, TimeoutError) as error:
            self._refused = str(error) or "no connection in time"
            if self._pending:
                request = self._pending.popleft()
                self._done[request] = time.monotonic() - self._start
                self._end(1)
            return
        self._open.add(connection)
        self._release(connection)

    async def _connect(self, count: int) -> None:
        await asyncio.gather(*(self._open_one() for _ in range(count)))

    def _end(self, count: int) -> None:
        self._ended += count
        if self._ended == len(self._due_s):
            self._finished.set()

    async def _progress(self) -> None:
        while self._report is not None:
            self._report(self._next, self._ended)
            await asyncio.sleep(_REPORT_S)

    def _outcome(self, cpu_s: float) -> Outcome:
        count = self._next
        return Outcome(
            tuple(self._variants),
            np.array(self._sent[:count]),
            np.array(self._done[:count]),
            np.array(self._status[:count], np.int16),
            np.array(self._variant[:count], np.int16),
            np.array(self._class[:count], np.int32),
            np.array(self._predicted[:count]),
            np.array(self._waited[:count], np.bool_),
            cpu_s,
            self._stopped,
            "" if self._open or self._next else self._refused,
        )


async def generate(
    plan: Plan,
    *,
    report: Report | None = None,
    started: Callable[[Callable[[], None]], None] | None = None,
) -> Outcome:
    """Send a plan's requests at their times.

    Parameters
    ----------
    plan
        What to send, when, and where.
    report
        Called ten times a second with the numbers of requests that are due and ended so far.
    started
        Called once with a function that ends the run early.

    Returns
    -------
    outcome
        One entry per request that was due until the end.
    """
    generator = _Generator(plan, asyncio.get_running_loop(), report)
    if started is not None:
        started(generator.stop)
    return await generator.run()
