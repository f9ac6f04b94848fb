"""Runs the generator in a process of its own and brings its outcome back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferway.loadgen.access import OPEN, Access, DriveError
from inferway.loadgen.addresses import server_at
from inferway.loadgen.message import encode, head
from inferway.loadgen.metadata import signature
from inferway.loadgen.plan import SendOutcome, SendPlan
from inferway.loadgen.record import Record
from inferway.protocol.inference import Parameters

CONNECTIONS: Final = 512
"""Greatest number of connections unless told otherwise."""

GRACE_S: Final = 10.0
"""How long answers are waited for after the last send, seconds."""

Progress = Callable[[int, int, int], None]
Told = Callable[[str, float], None]


@dataclass(frozen=True)
class Stream:
    """An open-loop stream of requests for one task.

    Attributes
    ----------
    task
        The task's name.
    times_s
        Shape (N,): when each request is due, seconds from the start.
    images
        Shape (M, ...): distinct inputs without their batch axis.
    labels
        Shape (M,): their true classes, if known.
    item
        Shape (N,): which input each request sends; in turn if not given.
    variant
        Pins all requests to one variant.
    parameters
        Sent with each request, say `{"deadline_ms": 50}`.
    """

    task: str
    times_s: ArrayLike
    images: NDArray[Any]
    labels: ArrayLike | None = None
    item: ArrayLike | None = None
    variant: str | None = None
    parameters: Parameters | None = None


@dataclass(frozen=True)
class _Merged:
    """Streams as one plan, and how to take its outcome apart again."""

    streams: Sequence[Stream]
    plan: SendPlan
    owner: NDArray[np.int64]
    item: NDArray[np.int64]

    def records(self, outcome: SendOutcome) -> list[Record]:
        """Split the outcome by stream."""
        count = len(outcome)
        return [
            self._record(stream, outcome, np.flatnonzero(self.owner[:count] == index))
            for index, stream in enumerate(self.streams)
        ]

    def _record(self, stream: Stream, outcome: SendOutcome, rows: NDArray[np.int64]) -> Record:
        item = self.item[rows].astype(np.int32)
        labels = np.full(len(stream.images), -1) if stream.labels is None else stream.labels
        return Record(
            task=stream.task,
            intended_s=self.plan.due_s[rows],
            item=item,
            label=np.asarray(labels, np.int32)[item],
            **outcome.columns(rows),
        )


def merge(
    url: str,
    streams: Sequence[Stream],
    *,
    access: Access,
    binary: bool,
    connections: int,
    grace_s: float,
) -> _Merged:
    """Encode several streams into one plan, in the order of time.

    The server is asked for each task's signature.

    Raises
    ------
    DriveError
        When the server does not answer or lacks a task, or a stream does not fit together.
    """
    address = server_at(url)
    if connections < 1:
        raise DriveError(f"connections is {connections}: at least one is needed to send anything")
    bodies: list[bytes] = []
    due, owner, item, body = [], [], [], []
    for index, stream in enumerate(streams):
        times, items = _validated(stream)
        due.append(times)
        owner.append(np.full(len(times), index))
        item.append(items)
        body.append(items + len(bodies))
        bodies += encode(
            stream.task,
            signature(url, stream.task, access=access),
            stream.images,
            parameters=stream.parameters,
            binary=binary,
        )
    order = np.argsort(np.concatenate(due), kind="stable")
    plan = SendPlan(
        addresses=[address],
        heads=[head(address, stream.task, stream.variant) for stream in streams],
        target=[0] * len(streams),
        bodies=bodies,
        due_s=np.concatenate(due)[order],
        head=np.concatenate(owner)[order],
        body=np.concatenate(body)[order],
        connections=connections,
        grace_s=grace_s,
    )
    return _Merged(streams, plan, plan.head, np.concatenate(item)[order])


def _validated(stream: Stream) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    times = np.asarray(stream.times_s, np.float64)
    count = len(stream.images)
    given = np.arange(len(times)) % max(count, 1) if stream.item is None else stream.item
    items = np.asarray(given, np.int64)
    where = f"the stream for the task {stream.task!r}"
    if not np.all(np.isfinite(times)) or np.any(times < 0):
        raise DriveError(f"{where} has a time that is negative or not finite")
    if len(items) != len(times):
        raise DriveError(f"{where} has {len(times)} times but {len(items)} items: one each, please")
    if len(items) and (items.min() < 0 or items.max() >= count):
        raise DriveError(f"{where} names an item outside its {count} inputs")
    if stream.labels is not None and len(np.asarray(stream.labels)) != count:
        raise DriveError(f"{where} has {count} inputs but {len(np.asarray(stream.labels))} labels")
    return times, items


def spoken(told: Told | None) -> Progress | None:
    """Turn numbers of requests into a sentence and the part that is done, 0..1."""
    if told is None:
        return None
    return lambda due, ended, planned: told(
        f"{due} of {planned} requests sent, {due - ended} open", due / planned
    )


def replay(
    url: str,
    streams: Sequence[Stream],
    *,
    access: Access = OPEN,
    binary: bool = True,
    connections: int = CONNECTIONS,
    grace_s: float = GRACE_S,
    progress: Progress | None = None,
) -> list[Record]:
    """Send streams of requests to a server at their times, from a process of its own.

    Requests are sent when they are due whatever the answers do, so latency counts from the
    intended time.

    Parameters
    ----------
    url
        The server, as `http://127.0.0.1:8000`; nothing is sent anywhere else.
    streams
        One for each task; they run at the same time.
    access
        The key that the server asks for, and who signed its certificate.
    binary
        Tensors as raw bytes (the binary tensor extension), else as JSON.
    connections
        Greatest number of connections; a request that finds all in use waits, and its wait counts.
    grace_s
        How long to wait for answers after the last request is due, seconds.
    progress
        Called about ten times a second with how many requests are due, ended, and planned.

    Returns
    -------
    records
        One per stream. After Ctrl-C they hold what was due until then and say `interrupted`.

    Raises
    ------
    DriveError
        When no server answers there, it is not ready, lacks a task, asks for a key or has a
        certificate that is not trusted, or when inputs do not fit.
    KeyboardInterrupt
        Where Ctrl-C comes before any request is due.
    """
    merged = merge(
        url, streams, access=access, binary=binary, connections=connections, grace_s=grace_s
    )
    return merged.records(carry_out(merged.plan, access, progress))


def drive(
    url: str,
    task: str,
    times_s: ArrayLike,
    images: NDArray[Any],
    labels: ArrayLike | None = None,
    *,
    item: ArrayLike | None = None,
    variant: str | None = None,
    parameters: Parameters | None = None,
    access: Access = OPEN,
    binary: bool = True,
    connections: int = CONNECTIONS,
    grace_s: float = GRACE_S,
    progress: Progress | None = None,
) -> Record:
    """Send one task's requests at their times; see `Stream` and `replay`.

    >>> record = drive("http://127.0.0.1:8000", "digits", times_s, images, labels)  # doctest: +SKIP
    """
    stream = Stream(task, times_s, images, labels, item, variant, parameters)
    return replay(
        url,
        [stream],
        access=access,
        binary=binary,
        connections=connections,
        grace_s=grace_s,
        progress=progress,
    )[0]


def carry_out(
    plan: SendPlan, access: Access = OPEN, progress: Progress | None = None
) -> SendOutcome:
    """Send a plan's requests from a process of its own; see `replay`.

    What gives access goes to it through a pipe: others of this machine may read command lines, and
    a file would outlive a process that is killed.
    """
    with tempfile.TemporaryDirectory(prefix="inferway-drive-") as folder:
        there, back = Path(folder, "plan.npz"), Path(folder, "outcome.npz")
        plan.save(there)
        # It inherits that SIGINT waits, until it can handle it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            # A session of its own: Ctrl-C reaches this process alone, which passes it on once.
            with subprocess.Popen(
                [sys.executable, "-m", "inferway.loadgen", str(there), str(back), "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                text=True,
            ) as process:
                stopped = _accompany(process, before, access, len(plan.due_s), progress)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if stopped and process.returncode != 0:
            raise KeyboardInterrupt
        if process.returncode != 0 or not back.exists():
            raise DriveError(f"the generator's process ended with status {process.returncode}")
        outcome = SendOutcome.load(back)
    if outcome.interrupted and not len(outcome):
        raise KeyboardInterrupt
    if outcome.refused:
        raise DriveError(f"no connection to {outcome.refused}")
    return outcome


def _accompany(
    process: subprocess.Popen[str],
    mask: Iterable[int],
    access: Access,
    planned: int,
    progress: Progress | None,
) -> bool:
    """See a process through to its end, from when signals come as before.

    Returns
    -------
    bool
        Whether Ctrl-C has stopped it.
    """
    try:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _tell(process, access)
            _follow(process, planned, progress)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            # It may still wait to be told how it gets access.
            assert process.stdin is not None
            process.stdin.close()
            _follow(process, planned, None)
            return True
        return False
    except BaseException:
        process.kill()
        raise


def _tell(process: subprocess.Popen[str], access: Access) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # its status says that it has ended
        os.write(process.stdin.fileno(), access.encode())


def _follow(process: subprocess.Popen[str], planned: int, progress: Progress | None) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if progress is not None:
            due, ended = map(int, line.split())
            progress(due, ended, planned)
    process.wait()
