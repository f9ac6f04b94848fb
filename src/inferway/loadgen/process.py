"""The generator in a process of its own: started with a plan, its outcome brought back."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from inferway.loadgen.access import OPEN, Access, DriveError
from inferway.loadgen.generator import SendOutcome, SendPlan

Progress = Callable[[int, int, int], None]


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
    """See a process through to its end, from when signals come as before.

    Returns
    -------
    bool
        Whether Ctrl-C has stopped it.
    """
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
