"""The sending side: an event loop that writes each request when it is due, whatever comes back.

It runs in a process of its own (`carry_out`), started with a plan, its outcome brought back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import pickle
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.loadgen.access import OPEN, Access, DriveError, unsecured
from inferway.loadgen.alarm import alarm
from inferway.loadgen.message import decode
from inferway.protocol import Signature
from inferway.protocol.address import ServerAddress
from inferway.protocol.http1 import ClientConnection, ConnectionPool
from inferway.protocol.inference import AnswerError
from inferway.protocol.inference import decode as outputs_of
from inferway.unreadable import UNREADABLE

_CONNECT_S: Final = 5.0
_FIRST_CONNECTIONS: Final = 32
_FIRST_CONNECTIONS_EACH: Final = 4
_REPORT_S: Final = 0.1
_AHEAD_S: Final = 0.01
_MOST_REASONS: Final = 8  # Sentences that are kept of each status
_LONGEST_REASON: Final = 200

UNANSWERED: Final = "no answer before the end"
UNSENT: Final = "no connection was free before the end"

# Of an outcome: what stands there before anything is known, and the type; see `Record`.
_COLUMNS: Final[dict[str, tuple[Any, type[np.generic]]]] = {
    "sent_s": (math.nan, np.float64),
    "done_s": (math.nan, np.float64),
    "status": (0, np.int16),
    "variant": (-1, np.int16),
    "predicted_class": (-1, np.int32),
    "predicted_s": (math.nan, np.float64),
    "expected": (math.nan, np.float64),
    "served_s": (math.nan, np.float64),
    "waited": (False, np.bool_),
    "reason": (-1, np.int16),
    "said": (-1, np.int32),
}
Progress = Callable[[int, int, int], None]


@dataclass(frozen=True)
class SendPlan:
    """Everything that the generator needs; tasks do not concern it."""

    addresses: Sequence[ServerAddress]  # The servers that it talks to
    # Distinct beginnings of requests, as `inferway.loadgen.message.head` encodes them, which server
    # each of them goes to, and distinct rests, as `encode` does there.
    heads: Sequence[bytes]
    target: Sequence[int]
    bodies: Sequence[bytes]
    # (N,) when to send, seconds from the start, ascending; and which of the heads and bodies then.
    due_s: NDArray[np.float64]
    head: NDArray[np.int64]
    body: NDArray[np.int64]
    connections: int  # Most connections to each server, each with one request at a time
    grace_s: float  # How long to wait for answers after the last send, s
    # Begin when the wall clock reaches a multiple of this, s; 0 to begin at once.
    every_s: float = 0.0
    # By head, the signature of the task whose answers' outputs are kept; None keeps nothing.
    kept: Sequence[Signature | None] = ()

    def __post_init__(self) -> None:
        if self.connections < 1:
            raise DriveError(
                f"connections is {self.connections}: at least one is needed to send anything"
            )


@dataclass(frozen=True)
class SendOutcome:
    """The generator's view of the requests that were due, in the plan's order.

    `columns` are those of a `Record`, and `said`, which indexes `nodes`, `paths` and
    `degradations`: what answers' headers said of nodes, each empty where they said nothing; -1
    where there was no answer. `refused` is which server could not be reached at the start and why,
    else empty; `began_s` when the plan's time began, seconds since 1970. `outputs` are those of
    answers that were to be kept: requests, and their outputs by name, one row for each; those of
    one shape together.
    """

    columns: dict[str, NDArray[Any]]
    variants: tuple[str, ...]
    reasons: tuple[str, ...]
    nodes: tuple[str, ...]
    paths: tuple[str, ...]
    degradations: tuple[str, ...]
    cpu_s: float
    interrupted: bool
    refused: str
    began_s: float
    outputs: Sequence[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]] = ()

    def __len__(self) -> int:
        return len(self.columns["sent_s"])

    def of_record(self, rows: Any) -> dict[str, Any]:
        """Return what a `Record` takes as it is, of some of the requests."""
        columns = {name: column[rows] for name, column in self.columns.items() if name != "said"}
        return columns | {
            "generated": len(self),
            "variants": self.variants,
            "reasons": self.reasons,
            "cpu_s": self.cpu_s,
            "interrupted": self.interrupted,
        }


class Reply(NamedTuple):
    """One answer as it came: headers that do not matter are left out."""

    status: int
    body: bytes
    json_length: int  # Length of the body's JSON part; -1 when all of it is JSON, or none
    # Node, path, and why it is degraded; each empty if the headers do not say it.
    said: tuple[bytes, bytes, bytes]

    @classmethod
    def headed(cls, status: int, headers: dict[bytes, bytes], body: bytes) -> Reply:
        """Make a reply of its headers, by name in lower case."""
        get = headers.get
        length = get(b"inference-header-content-length")
        said = (get(b"inferway-node", b""), get(b"inferway-path", b""))
        # Where it is no number, there is no JSON, and so no answer.
        json_length = -1 if length is None else int(length) if length.isdigit() else 0
        return cls(status, body, json_length, (*said, get(b"inferway-degraded", b"")))


class RequestPool(ConnectionPool):
    """Sends requests to one server, by their numbers, at once, each on a connection of its own."""

    def __init__(
        self, address: ServerAddress, most: int, generator: Generator, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(
            address.host, address.port, form=Reply, most=most, connect_s=_CONNECT_S, tls=tls
        )
        self.address, self._generator = address, generator
        self.refused = ""  # Why the latest connection could not be made

    @property
    def connected(self) -> bool:
        """Tell whether there is a connection."""
        return bool(self._busy or self._idle)

    async def connect(self, count: int) -> None:
        """Open so many connections before there are requests."""
        await asyncio.gather(*(self._connect() for _ in range(min(count, self._most))))

    def close(self) -> None:
        """End all connections; nothing is told of the requests on them."""
        self._closed = True
        for connection in tuple(self._busy):
            connection.call = None
            connection.abort()
        self._busy.clear()
        self.anew()

    def write(self, connection: ClientConnection, call: int) -> None:
        """Write a request."""
        connection.send(self._generator.message(call))

    def answered(self, call: int, answer: Reply, sent_s: float, now_s: float) -> None:
        """Pass an answer on."""
        self._generator.answered(call, answer, now_s)

    def broken(self, connection: ClientConnection, call: int, wrong: str) -> None:
        """Say that a request is lost."""
        self._generator.failed(call, "the connection ended before the answer")

    def unreachable(self, call: int | None, error: Exception) -> None:
        """Say that a request has no connection."""
        number = getattr(error, "errno", None)
        match error:
            case TimeoutError():
                self.refused = "none in time"
            case ssl.SSLError():  # its number is none of the system's
                self.refused = unsecured(error)
            case _:
                self.refused = os.strerror(number).lower() if number else str(error)
        if call is not None:
            self._generator.failed(call, f"no connection: {self.refused}")

    def full(self) -> None:
        """Note that the last request waits for a connection."""
        self._generator.columns["waited"][self._waiting[-1]] = True


class _ErrorBody(msgspec.Struct):
    error: str = ""


def sentence_of(body: bytes) -> str:
    """Read why a server refuses, from the first line of its answer."""
    try:
        text = msgspec.json.decode(body, type=_ErrorBody).error
    except UNREADABLE:
        text = body.decode("utf-8", "replace")
    return text.strip().partition("\n")[0] or "the server gave no reason"


class Generator:
    """Sends a plan's requests at their times, records what comes back.

    Arrivals are never delayed by answers: a due request takes an idle connection, or a new one is
    opened, up to the plan's number; only beyond that it waits, and that wait is in its latency.
    `report` is told ten times a second how many requests are due and ended so far.
    """

    def __init__(
        self, plan: SendPlan, access: Access, report: Callable[[int, int], None] | None = None
    ) -> None:
        self._plan, self._access, self._report = plan, access, report
        self._loop = asyncio.get_running_loop()
        self._heads = [one + access.lines for one in plan.heads]
        self._due_s: list[float] = plan.due_s.tolist()
        self._head: list[int] = plan.head.tolist()
        self._body: list[int] = plan.body.tolist()
        self._pools = [
            RequestPool(one, plan.connections, self, access.context if one.tls else None)
            for one in plan.addresses
        ]
        self._pool_of = [self._pools[target] for target in plan.target]
        self.columns = {name: [blank] * len(plan.due_s) for name, (blank, _) in _COLUMNS.items()}
        self._variants: dict[str, int] = {}
        self._reasons: dict[str, int] = {}
        self._reasons_of: dict[int, dict[str, int]] = {}
        self._said = {(b"", b"", b""): 0}
        self._kept = plan.kept or [None] * len(plan.heads)
        # Of answers that are kept: as they came, with the length of their JSON.
        self._bodies: dict[int, tuple[bytes, int]] = {}
        self._next = self._ended = 0
        self._start, self._began = 0.0, math.nan
        self._finished = asyncio.Event()
        self._stopped = False
        self._alarm = alarm(self._loop, self._send_due)

    async def run(self) -> SendOutcome:
        """Send all, and wait for the answers; one entry per request that was due until the end."""
        first = max(_FIRST_CONNECTIONS // max(len(self._pools), 1), _FIRST_CONNECTIONS_EACH)
        await asyncio.gather(*(pool.connect(first) for pool in self._pools))
        if any(not pool.connected for pool in self._pools):
            self._close()
            return self._outcome(0.0)
        # Nothing below makes reference cycles worth a collection's pause.
        gc.collect()
        gc.freeze()
        gc.disable()
        cpu = time.process_time()
        wall, ahead = time.time(), _AHEAD_S
        if (every := self._plan.every_s) > 0:
            ahead += -(wall + ahead) % every
        self._start, self._began = time.monotonic() + ahead, wall + ahead
        if self._due_s:
            self._alarm.set(self._start + self._due_s[0])
            reporting = self._loop.create_task(self._progress())
            await self._finished.wait()
            reporting.cancel()
        outcome = self._outcome(time.process_time() - cpu)
        self._close()
        gc.enable()
        return outcome

    def stop(self) -> None:
        """End the run now; what was due until now is kept."""
        self._stopped = True
        self._finished.set()

    # The pools come here.

    def message(self, request: int) -> bytes:
        """Give the bytes of a request, which is written to a connection now."""
        self.columns["sent_s"][request] = time.monotonic() - self._start
        return self._heads[self._head[request]] + self._plan.bodies[self._body[request]]

    def answered(self, request: int, reply: Reply, now_s: float) -> None:
        """Note an answer, and when it came on the monotonic clock."""
        columns = self.columns
        columns["done_s"][request] = now_s - self._start
        status, body, json_length, said = reply
        columns["said"][request] = self._said.setdefault(said, len(self._said))
        answer = decode(body, json_length) if status == 200 else None
        if answer is not None:
            columns["status"][request] = status
            index = self._variants.setdefault(answer.variant, len(self._variants))
            columns["variant"][request] = index
            columns["predicted_class"][request] = answer.predicted_class
            columns["predicted_s"][request] = answer.predicted_s
            columns["expected"][request] = answer.expected
            columns["served_s"][request] = answer.served_s
            if self._kept[self._head[request]] is not None:
                self._bodies[request] = body, json_length
        elif status == 200:
            self._blame(request, 0, "the answer is no inference answer")
        else:
            columns["status"][request] = status
            self._blame(request, status, self._sentence(body))
        self._end()

    def failed(self, request: int, reason: str) -> None:
        """Note why a request gets no answer."""
        self.columns["done_s"][request] = time.monotonic() - self._start
        self._blame(request, 0, reason)
        self._end()

    def _sentence(self, body: bytes) -> str:
        return self._access.hidden(sentence_of(body))[:_LONGEST_REASON]

    def _blame(self, request: int, status: int, sentence: str) -> None:
        """Write down why a request has no inference answer: the first sentences of each status."""
        reasons = self._reasons_of.setdefault(status, {})
        if sentence not in reasons:
            if len(reasons) >= _MOST_REASONS:
                sentence = "other reasons"
            reasons[sentence] = self._reasons.setdefault(sentence, len(self._reasons))
        self.columns["reason"][request] = reasons[sentence]

    # Sending.

    def _send_due(self) -> None:
        due_s, start = self._due_s, self._start
        count = len(due_s)
        now = time.monotonic() - start
        while self._next < count and due_s[self._next] <= now:
            request = self._next
            self._next += 1
            self._pool_of[self._head[request]].submit(request)
            now = time.monotonic() - start
        if self._next < count:
            self._alarm.set(start + due_s[self._next])
        else:
            self._loop.call_later(self._plan.grace_s, self._finished.set)

    def _end(self) -> None:
        self._ended += 1
        if self._ended == len(self._due_s):
            self._finished.set()

    async def _progress(self) -> None:
        while self._report is not None:
            self._report(self._next, self._ended)
            await asyncio.sleep(_REPORT_S)

    def _close(self) -> None:
        self._alarm.close()
        for pool in self._pools:
            pool.close()

    def _outputs(self) -> list[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
        """Read the outputs of the answers that were kept; one that does not fit is none."""
        alike: dict[Any, tuple[list[int], list[dict[str, NDArray[Any]]]]] = {}
        while self._bodies:
            request, (body, json_length) = self._bodies.popitem()
            signature = self._kept[self._head[request]]
            assert signature is not None
            try:
                arrays = outputs_of(signature, 1, body, None if json_length < 0 else json_length)
            except AnswerError as error:
                self.columns["status"][request] = 0
                self._blame(request, 0, f"the answer {error}")
                continue
            shapes = tuple((name, array.dtype, array.shape) for name, array in arrays.items())
            requests, rows = alike.setdefault(shapes, ([], []))
            requests.append(request)
            rows.append(arrays)
        return [
            (
                np.array(requests, np.int64),
                {name: np.concatenate([one[name] for one in rows]) for name in rows[0]},
            )
            for requests, rows in alike.values()
        ]

    def _outcome(self, cpu_s: float) -> SendOutcome:
        count, columns = self._next, self.columns
        outputs = self._outputs()
        for request in range(count):
            if columns["status"][request] == 0 and columns["reason"][request] < 0:
                sent = math.isfinite(columns["sent_s"][request])
                self._blame(request, 0, UNANSWERED if sent else UNSENT)
        said = [[part.decode("utf-8", "replace") for part in one] for one in self._said]
        missing = [pool for pool in self._pools if not pool.connected]
        return SendOutcome(
            {name: np.array(columns[name][:count], kind) for name, (_, kind) in _COLUMNS.items()},
            variants=tuple(self._variants),
            reasons=tuple(self._reasons),
            # Names of nodes stand percent-encoded in headers.
            nodes=tuple(unquote(node) for node, _, _ in said),
            paths=tuple(unquote(path) for _, path, _ in said),
            degradations=tuple(self._access.hidden(degraded) for *_, degraded in said),
            cpu_s=cpu_s,
            interrupted=self._stopped,
            refused=""
            if self._next or not missing
            else f"{missing[0].address.url}: {missing[0].refused or 'it ended at once'}",
            began_s=self._began,
            outputs=outputs,
        )


def carry_out(
    plan: SendPlan, access: Access = OPEN, progress: Progress | None = None
) -> SendOutcome:
    """Send a plan's requests from a process of its own; see `replay`.

    The plan and what gives access go to it through a pipe: others of this machine may read command
    lines, and a file would outlive a process that is killed.
    """
    with tempfile.TemporaryDirectory(prefix="inferway-drive-") as folder:
        back = Path(folder, "outcome")
        # It inherits that SIGINT waits, until it can handle it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            # A session of its own: Ctrl-C reaches this process alone, which passes it on once.
            with subprocess.Popen(
                [sys.executable, "-m", "inferway.loadgen", str(back)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            ) as process:
                stopped = _accompany(process, before, plan, access, progress)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if stopped and process.returncode != 0:
            raise KeyboardInterrupt
        if process.returncode != 0 or not back.exists():
            raise DriveError(f"the generator's process ended with status {process.returncode}")
        outcome: SendOutcome = pickle.loads(back.read_bytes())
    if outcome.interrupted and not len(outcome):
        raise KeyboardInterrupt
    if outcome.refused:
        raise DriveError(f"no connection to {outcome.refused}")
    return outcome


def _accompany(
    process: subprocess.Popen[bytes],
    mask: Iterable[int],
    plan: SendPlan,
    access: Access,
    progress: Progress | None,
) -> bool:
    """See a process through to its end, from when signals come as before; whether Ctrl-C did it."""
    assert process.stdin is not None
    try:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            content = memoryview(pickle.dumps((plan, access)))
            with contextlib.suppress(BrokenPipeError):  # its status says that it has ended
                while content:
                    content = content[os.write(process.stdin.fileno(), content) :]
            _follow(process, len(plan.due_s), progress)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            # It may still wait to be told what to send.
            process.stdin.close()
            _follow(process, len(plan.due_s), None)
            return True
        return False
    except BaseException:
        process.kill()
        raise


def _follow(process: subprocess.Popen[bytes], planned: int, progress: Progress | None) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if progress is not None:
            due, ended = map(int, line.split())
            progress(due, ended, planned)
    process.wait()
