"""One node's process: started, watched, and started again.

Run as a file, it becomes another program, which then ends when its parent does, however that ends::

    python -I -S process.py PARENT_PID COMMAND...

Nothing but the standard library is imported, so that this takes milliseconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
_LAST_WORDS: Final = 8192
_PR_SET_PDEATHSIG: Final = 1


class State(StrEnum):
    """The stage of a node's process."""

    WAITING = "waiting"  # To be started, for the first time or again
    STARTING = "starting"
    READY = "ready"
    ENDED = "ended"


class NodeProcess:
    """One node's process, over all its starts.

    A thread starts each process, reads what it says and waits for its end. The kernel is told to
    end the process with this thread, so no node outlives the one who started it.

    Parameters
    ----------
    name
        The node's.
    command
        What runs it: says a line that begins with ``ready`` on its standard output once it is.
    log
        File that gets all that it says.
    environment
        Of the process.
    restart
        Whether it is started again when it ends unasked, once it has been ready: after a pause that
        doubles from 1 s to 30 s until it is ready again.
    changed
        Held and notified with every change of state.
    told
        Called with this object, without the lock, when a process has ended unasked.

    Attributes
    ----------
    state, starts
        The stage it is in, and how many processes were started.
    code
        Exit status of the last process that ended; the signal, negative, that ended it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        *,
        restart: bool,
        changed: threading.Condition,
        told: Callable[[NodeProcess], None],
    ) -> None:
        self.name, self.command, self.log = name, tuple(command), log
        self._environment, self._restart = dict(environment), restart
        self._changed, self._told = changed, told
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = self._begun = False
        self._said_from, self._fault = 0, ""
        self.state, self.starts = State.WAITING, 0
        self.code: int | None = None

    @property
    def pid(self) -> int | None:
        """The process's number while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def over(self) -> bool:
        """Tell whether nothing runs, nor will by itself."""
        return not self._begun or self.state is State.ENDED

    def start(self) -> None:
        """Start a process, unless one runs."""
        with self._changed:
            if not self.over:
                if not self._asked:
                    return
                # One that was asked to end holds its ports until it has.
                self._changed.wait_for(lambda: self.over)
            self._asked, self._begun = False, True
            self._turn(State.STARTING)
            threading.Thread(target=self._live, name=f"inferway-{self.name}", daemon=True).start()

    def send(self, number: int) -> None:
        """Send a signal that it may end by; it is then not started again."""
        with self._changed:
            self._asked = True
            if self._process is not None:
                self._process.send_signal(number)
            self._changed.notify_all()

    def ending(self) -> str:
        """Say how the last process ended."""
        if self._fault:
            return f"cannot be started ({self._fault})"
        if self.code is None:
            return "was not started"
        if self.code < 0:
            return f"was ended by {signal.Signals(-self.code).name}"
        return f"ended with exit code {self.code}"

    def last_words(self) -> str:
        """Return the last line that its last process wrote, empty for none."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(self._said_from, log.seek(0, os.SEEK_END) - _LAST_WORDS))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _live(self) -> None:
        pause_s, ever_ready = FIRST_PAUSE_S, False
        while True:
            was_ready = False
            try:
                was_ready = self._run()
            except OSError as error:
                self._fault = f"{error.filename or 'its process'}: {error.strerror}"
            ever_ready |= was_ready
            with self._changed:
                unasked = not self._asked
                again = unasked and self._restart and ever_ready
                self._turn(State.WAITING if again else State.ENDED)
            if unasked:
                self._told(self)
            if not again:
                return
            pause_s = FIRST_PAUSE_S if was_ready else pause_s
            with self._changed:
                asked = self._changed.wait_for(lambda: self._asked, pause_s)
                self._turn(State.ENDED if asked else State.STARTING)
            if asked:
                return
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _run(self) -> bool:
        """Run one process to its end, and tell whether it was ready."""
        ready = False
        with self.log.open("ab", buffering=0) as log:
            with self._changed:
                if self._asked:  # between the order to start and this
                    return False
                self._said_from, self._fault, self.code = log.tell(), "", None
                self.starts += 1
                self._process = process = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__, str(os.getpid()), *self.command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,  # Ctrl-C is for its owner
                )
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    # A full disk is no reason to listen no more: the process would wait.
                    with suppress(OSError):
                        log.write(line)
                    if not ready and line.startswith(b"ready "):
                        ready = True
                        with self._changed:
                            self._turn(State.READY)
            code = process.wait()
        with self._changed:
            self.code = code
        return ready

    def _turn(self, state: State) -> None:
        self.state = state
        self._changed.notify_all()


def main(parent: str, *command: str) -> None:
    """Become the command, to be asked to end with the thread that started it."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != int(parent):  # it ended before it could be noticed
            sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
