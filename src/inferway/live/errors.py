"""Errors of a live server: of its deployment, its listeners, its models and where they lie."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager


class ServeError(ValueError):
    """A deployment that cannot be served, with a sentence for each reason."""


class LoadError(ValueError):
    """A model that cannot be served; the message begins with its variant."""


class WarmUpError(RuntimeError):
    """A model that cannot answer its first request."""


class PortError(OSError):
    """A listener, `http`, `grpc`, `admin` or a node's `peer`, that has no port; and why not."""

    def __init__(self, listener: str, host: str, port: int, why: str) -> None:
        super().__init__(f"the {listener} listener cannot have port {port} at {host}: {why}")
        self.listener, self.host, self.port, self.why = listener, host, port, why


class StoreError(Exception):
    """A model that cannot be had, with one sentence that says why."""


class ForbiddenSourceError(StoreError):
    """A URI, a host or an address that models must not come from: trying again is useless."""


class UnavailableError(StoreError):
    """The source does not answer, or not with a model: it may later."""


class DamagedError(StoreError):
    """The source has another file than the digest says."""


class NoRoomError(StoreError):
    """The model is larger than what the store, or its disk, has room for now."""


@contextmanager
def listening(listener: str, host: str, port: int) -> Iterator[None]:
    """Say of which listener it is that what happens within fails."""
    try:
        yield
    except OSError as error:
        number = error.errno
        if number is None:  # gRPC does not tell
            why = "something may listen there already"
        elif number == errno.EADDRINUSE:
            why = "something listens there already"
        else:  # below 0 for a name that is not found
            why = os.strerror(number) if number > 0 else error.strerror or str(error)
        raise PortError(listener, host, port, why) from error


def check_host(listener: str, host: str, port: int) -> None:
    """Refuse a host that is no address of this machine, before a listener is made.

    PortError with `port`, which is not looked at.
    """
    with listening(listener, host, port):
        for family, kind, number, _, address in socket.getaddrinfo(
            host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, number) as one:
                one.bind(address)
