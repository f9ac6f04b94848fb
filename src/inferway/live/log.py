"""Structured logs: JSON lines on standard error, or a human form on a terminal."""

from __future__ import annotations

import json
import os
import select
import stat
import sys
import threading
from typing import Any, Final, TextIO

import structlog

_CHUNK: Final = select.PIPE_BUF
"""Bytes that a pipe which is ready takes without waiting."""


def logger(level: str = "info") -> structlog.typing.FilteringBoundLogger:
    """Make a logger of the server's own; structlog's global settings stay the application's.

    Parameters
    ----------
    level
        ``debug``, ``info``, ``warning`` or ``error``: the least that is written.
    """
    stream = sys.stderr
    terminal = stream is not None and stream.isatty()
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if terminal:
        processors.append(structlog.dev.ConsoleRenderer(sort_keys=False))
    else:
        processors += [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    wrapped: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(_Outlet(stream)),  # type: ignore[arg-type]
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
    return wrapped


class _Outlet:
    """A stream that takes lines as far as it can: a server neither waits nor fails for its log.

    A pipe that nobody empties would hold up the event loop, and with it every request; one that
    nobody reads any more, or a full disk, would fail whatever has something to say. Lines that it
    does not take are counted, and the next one that it takes comes behind their number.

    Parameters
    ----------
    stream
        Standard error; None where it was closed before the start.
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

    def write(self, line: str) -> int:
        """Write a line, or count it as lost."""
        with self._lock:
            if self._file is not None:
                self._send(line.encode(errors="backslashreplace"))
            elif self._stream is not None:
                self._stream.write(line)
        return len(line)

    def flush(self) -> None:
        """Nothing is kept back but what the stream does not take."""
        if self._file is None and self._stream is not None:
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
        if self._rest or self._lost:
            self._lost += 1
            return
        left = self._sent(line)
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
