"""Ports: which listener cannot have one, and why."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from inferway.live.errors import PortError


@contextmanager
def listening(listener: str, host: str, port: int) -> Iterator[None]:
    """Say of which listener it is that what happens within fails."""
    try:
        yield
    except OSError as error:
        raise PortError(listener, host, port, _why(error)) from error


def check_host(listener: str, host: str, port: int) -> None:
    """Refuse a host that is no address of this machine, before a listener is made.

    Raises
    ------
    PortError
        With `port`, which is not looked at.
    """
    with listening(listener, host, port):
        for family, kind, number, _, address in socket.getaddrinfo(
            host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, number) as one:
                one.bind(address)


def _why(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "something listens there already"
        case int(code) if code > 0:
            return os.strerror(code)
        case None:  # gRPC does not tell
            return "something may listen there already"
        case _:  # of a name that is not found
            return error.strerror or str(error)
