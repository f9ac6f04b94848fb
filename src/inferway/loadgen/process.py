"""Runs the generator in a process of its own and brings its outcome back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from numpy.typing import ArrayLike, NDArray

from inferway.loadgen.access import OPEN, Access
from inferway.loadgen.error import DriveError
from inferway.loadgen.plan import Outcome, Plan
from inferway.loadgen.record import Record
from inferway.loadgen.stream import Stream, merge
from inferway.protocol.inference import Parameters

CONNECTIONS: Final = 512
"""Greatest number of connections unless told otherwise."""

GRACE_S: Final = 10.0
"""How long answers are waited for after the last send, seconds."""

Progress = Callable[[int, int, int], None]
Told = Callable[[str, float], None]


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


def carry_out(plan: Plan, access: Access = OPEN, progress: Progress | None = None) -> Outcome:
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
        outcome = Outcome.load(back)
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
