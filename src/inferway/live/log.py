"""Structured logs: JSON lines on standard error, or a human form on a terminal."""

from __future__ import annotations

import json
import os
import select
import stat
import sys
import threading
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partialmethod
from typing import Any, Final, TextIO

# How grave it is, the gravest last; nothing is as grave as ``critical``.
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
# Bytes that a pipe which is ready takes without waiting.
_CHUNK: Final = select.PIPE_BUF


class Logger:
    """Writes what happens, each with what belongs to it by name.

    `least` is the least level that is written; `bound` is what every line says. At a terminal a
    person reads along: words instead of JSON.
    """

    def __init__(
        self, outlet: _Outlet, least: str, terminal: bool, bound: Mapping[str, Any] | None = None
    ) -> None:
        self._outlet, self._least, self._terminal = outlet, least, terminal
        self._bound = dict(bound or {})

    def bind(self, **more: Any) -> Logger:
        """Make one whose lines say more."""
        return Logger(self._outlet, self._least, self._terminal, self._bound | more)

    def _say(
        self, level: str, event: str, *, exc_info: BaseException | None = None, **more: Any
    ) -> None:
        """Say what happened, with the exception that did it, if there is one."""
        if LEVELS.index(level) < LEVELS.index(self._least):
            return
        trace = "" if exc_info is None else "".join(traceback.format_exception(exc_info))
        trace, now, said = trace.rstrip("\n"), datetime.now(UTC), {**self._bound, **more}
        if self._terminal:
            words = "".join(f" {key}={value!r}" for key, value in said.items())
            line = f"{now:%H:%M:%S} {level:7} {event}{words}"
            self._outlet.write(f"{line}\n{trace}\n" if trace else f"{line}\n")
            return
        stamp = now.isoformat(timespec="microseconds").replace("+00:00", "Z")
        said |= {"event": event, "level": level, "timestamp": stamp}
        if trace:
            said["exception"] = trace
        self._outlet.write(f"{json.dumps(said, default=repr)}\n")

    # What only those who look for a fault want to know, what happened as it should, what somebody
    # should look at, and what failed.
    debug = partialmethod(_say, "debug")
    info = partialmethod(_say, "info")
    warning = partialmethod(_say, "warning")
    error = partialmethod(_say, "error")


def logger(level: str = "info") -> Logger:
    """Make a logger of the server's own, which leaves those of `logging` as they are.

    The level is the least that is written, of `LEVELS`; ``critical``: nothing.
    """
    stream = sys.stderr
    return Logger(_Outlet(stream), level, stream is not None and stream.isatty())


class _Outlet:
    """A stream that takes lines as far as it can: a server neither waits nor fails for its log.

    A pipe that nobody empties would hold up the event loop, and with it every request; one that
    nobody reads any more, or a full disk, would fail whatever has something to say. Lines that it
    does not take are counted, and the next one that it takes comes behind their number. Standard
    error may have been closed before the start: None.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._lost, self._rest = 0, b""
        self._file: int | None = None
        self._poll: select.poll | None = None
        try:
            self._file = None if stream is None else stream.fileno()
            if self._file is not None and not stat.S_ISREG(os.fstat(self._file).st_mode):
                self._poll = select.poll()
                self._poll.register(self._file, select.POLLOUT)
        except (OSError, ValueError):  # a stream within this process
            self._file = None

    def write(self, line: str) -> None:
        """Write a line, or count it as lost."""
        with self._lock:
            if self._file is not None:
                self._send(line.encode(errors="backslashreplace"))
            elif self._stream is not None:
                self._stream.write(line)
                self._stream.flush()

    def _send(self, line: bytes) -> None:
        # The rest of a line whose beginning is out already, before all else.
        self._rest = self._sent(self._rest)
        if not self._rest and self._lost:
            said = {"event": "lines of the log were lost", "lines": self._lost, "level": "warning"}
            notice = json.dumps(said).encode() + b"\n"
            left = self._sent(notice)
            if len(left) < len(notice):
                self._lost, self._rest = 0, left
        left = line if self._rest or self._lost else self._sent(line)
        if len(left) < len(line):
            self._rest = left
        else:
            self._lost += 1

    def _sent(self, content: bytes) -> bytes:
        """Write as much as the stream takes now, and return what it does not."""
        assert self._file is not None
        try:
            while content:
                if self._poll is not None and not self._poll.poll(0):
                    break
                content = content[os.write(self._file, content[:_CHUNK]) :]
        except OSError:  # nobody reads it any more, or the disk is full
            pass
        return content
