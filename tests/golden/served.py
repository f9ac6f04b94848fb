"""Servers as processes, and what goes over their sockets, as text."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from exchanges import Exchange
from transcript import environment, plain

PATIENCE_S: Final = 120.0
_LONGEST: Final = 300
"""Of a line that is sent; a longer one is told by its length."""


@contextmanager
def serving(
    folder: Path, file: str, *options: str, grpc: bool = False
) -> Iterator[Mapping[str, Any]]:
    """Run ``inferway serve`` in a folder; what it says when it is ready."""
    command = [sys.executable, "-m", "inferway", "serve", file, "--json", "--forget"]
    command += ["--http-port", "0", "--admin-port", "0", "--drain-delay", "0"]
    command += ["--log-level", "error", *options, *(() if grpc else ("--no-grpc",))]
    with running(command, folder) as said:
        yield said


@contextmanager
def running(command: Sequence[str], folder: Path) -> Iterator[Mapping[str, Any]]:
    """Run a command that prints a line of JSON when it is ready; stop it in the end."""
    with (
        (folder / "errors.log").open("w") as errors,
        subprocess.Popen(
            command,
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError((folder / "errors.log").read_text())
            yield json.loads(line)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def told(exchange: Exchange, port: int, folder: Path, trust: ssl.SSLContext | None = None) -> str:
    """Send what an exchange sends, over TLS with `trust`; both sides of it, with placeholders."""
    text = f"{_sent(exchange.raw)}--- answer\n"
    bare = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    with closing(
        bare if trust is None else trust.wrap_socket(bare, server_hostname="127.0.0.1")
    ) as connection:
        if isinstance(connection, ssl.SSLSocket):
            text += f"({connection.version()})\n"
        connection.sendall(exchange.raw)
        answers = _Answers(connection)
        for place in range(exchange.answers):
            text += "--- and\n" if place else ""
            head, body = answers.read(bodiless=exchange.raw.startswith(b"HEAD"))
            text += _received(head, body, folder)
        if "\r\nconnection: close" in head.lower():
            text += "(closed)\n" if answers.closed() else "(open)\n"
    return re.sub(r"(127\.0\.0\.1:)[0-9]{5}", r"\1{port}", text)


def until(done: Callable[[], bool]) -> None:
    """Wait for what is going to be true."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)


def body(path: str, port: int) -> str:
    """Get a page."""
    with closing(socket.create_connection(("127.0.0.1", port), PATIENCE_S)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        _, content = _Answers(connection).read()
    return content.decode()


def names(metrics: str) -> str:
    """Leave the numbers out of what Prometheus reads; names, types and labels stay."""
    lines = (line if line[0] == "#" else line.rpartition(" ")[0] for line in metrics.splitlines())
    return "".join(f"{line}\n" for line in lines)


class _Answers:
    """Reads one answer after the other."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""

    def read(self, *, bodiless: bool = False) -> tuple[str, bytes]:
        head = self._until(lambda: b"\r\n\r\n" in self._rest)
        if head and self._rest.startswith(b"HTTP/1.1 1"):
            interim, _, self._rest = self._rest.partition(b"\r\n\r\n")
            final, content = self.read(bodiless=bodiless)
            return f"{interim.decode()}\r\n\r\n{final}", content
        top, _, self._rest = self._rest.partition(b"\r\n\r\n")
        length = re.search(rb"\r\ncontent-length: ([0-9]+)", top, re.IGNORECASE)
        size = int(length[1]) if length and not bodiless else 0
        self._until(lambda: len(self._rest) >= size)
        content, self._rest = self._rest[:size], self._rest[size:]
        return top.decode(), content

    def closed(self) -> bool:
        return not self._rest and self._connection.recv(1) == b""

    def _until(self, done: Callable[[], bool]) -> bool:
        while not done():
            piece = self._connection.recv(65536)
            if not piece:
                raise ConnectionError(f"closed after {self._rest!r}")
            self._rest += piece
        return True


_MADE: Final = (
    (re.compile(r"^(Date: ).+$", re.MULTILINE), r"\1{now}"),
    (re.compile(r"^(X-Request-Id: )[0-9a-f]{8}-[0-9a-f]{16}", re.MULTILINE), r"\1{made}"),
    (re.compile(r"^(Inferway-Time-Ms: ).+$", re.MULTILINE), r"\1{measured}"),
    # Of a client's own, only what names the span is new.
    (re.compile(r"^(traceparent: 00-0af765[0-9a-f]+-)[0-9a-f]{16}", re.MULTILINE), r"\1{made}"),
    (re.compile(r"^(traceparent: 00-)[0-9a-f]{32}-[0-9a-f]{16}", re.MULTILINE), r"\1{made}"),
)


def _sent(raw: bytes) -> str:
    lines = raw.decode("utf-8", "backslashreplace").replace("\r\n", "\n").split("\n")
    shown = [
        line if len(line) <= _LONGEST else f"{line[:40]}... ({len(line)} characters)"
        for line in lines
    ]
    text = "\n".join(shown).rstrip("\n")
    return f"{_printable(text)}\n"


def _received(head: str, content: bytes, folder: Path) -> str:
    text = content.decode("utf-8", "backslashreplace")
    fixed = plain(text, folder)
    top = head.replace("\r\n", "\n")
    for pattern, word in _MADE:
        top = pattern.sub(word, top)
    if fixed != text:
        top = re.sub(r"(?<=Content-Length: )[0-9]+", "{measured}", top)
    return _printable(f"{top}\n\n{fixed}\n" if fixed else f"{top}\n")


def _printable(text: str) -> str:
    return "".join(
        one if one == "\n" or one.isprintable() else f"\\x{ord(one):02x}" for one in text
    )
