"""Questions to the twin, and what goes between the page and the twin's process.

Each message is packed by msgpack and has its length in four bytes before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import msgspec

from inferway.deployment.policies import ROWS

POLICIES: Final = tuple(name for name, row in ROWS["dispatch"].items() if row.section)
"""Dispatch policies that a question may name, with their options as they are by default."""
LONGEST: Final = 64 * 2**20
"""Bytes of a message."""
_PREFIX: Final = 4


class WhatIfError(ValueError):
    """A question that cannot be answered; the message is one sentence for whoever looks."""


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """A setting that is tried.

    Attributes
    ----------
    server, task
        Whose last minutes, by the URL of the admin listener.
    rate
        How many times as many requests come.
    target, policy
        In place of those in force.
    instances
        By class, how many. Other tasks that targets join it with stay as they are.
    lost
        A node that is lost, with all that is reached by way of it.
    """

    server: str
    task: str
    rate: float = 1.0
    target: float | None = None
    policy: str | None = None
    instances: dict[str, int] = {}
    lost: str = ""


class ObservedTask(msgspec.Struct):
    """Words of a server on a task.

    Attributes
    ----------
    content
        Of the file in force, as `/deployment` has it.
    fleet
        As `/deployment/TASK` has it.
    requests
        As `/requests/TASK` has them.
    folder
        That the policies' files start from; None where none of them is run.
    beside
        The other tasks that targets over several, or devices, join it with, without content.
    balances
        Of these targets, by name, at present.
    """

    content: dict[str, Any]
    fleet: dict[str, Any]
    requests: bytes = b""
    folder: str | None = None
    beside: list[ObservedTask] = []
    balances: dict[str, float] = {}


class Prepare(msgspec.Struct, tag="prepare"):
    """Compile what a task's setting needs."""

    number: int
    told: ObservedTask


class Ask(msgspec.Struct, tag="ask"):
    """Answer a question."""

    number: int
    question: Question
    told: ObservedTask


class Cancel(msgspec.Struct, tag="cancel"):
    """Answer it no more."""

    number: int


Order = Prepare | Ask | Cancel


class Doing(msgspec.Struct, tag="doing"):
    """State of an order, in words; whether code is being compiled for it."""

    number: int
    words: str
    compiling: bool = False


class Done(msgspec.Struct, tag="done"):
    """An order is done: with a document, or a sentence that says why not, or canceled with none."""

    number: int
    document: dict[str, Any] | None = None
    error: str = ""


Said = Doing | Done


def framed(message: Any) -> bytes:
    """Write a message as it goes over a pipe."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_PREFIX, "big") + body


def frames(file: BinaryIO, kind: Any) -> Iterator[Any]:
    """Yield the messages of a pipe until it ends."""
    decoder = msgspec.msgpack.Decoder(kind)
    while len(prefix := file.read(_PREFIX)) == _PREFIX:
        size = int.from_bytes(prefix, "big")
        body = file.read(size)
        if len(body) < size:
            return
        yield decoder.decode(body)
