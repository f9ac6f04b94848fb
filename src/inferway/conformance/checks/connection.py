"""HTTP itself: compression, connections kept, several clients at once."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from inferway.conformance.answer import answered, compared, read, reference
from inferway.conformance.client import NotOfferedError
from inferway.conformance.report import Check
from inferway.conformance.target import Target

CLIENTS: Final = 8
EACH: Final = 4
"""Requests of each client."""


def _compressed(coding: str, compress: Callable[[bytes], bytes]) -> Callable[[Target], str]:
    """A compressed body is understood, or refused."""

    def run(target: Target) -> str:
        message = target.message()
        body, headers = message.encode()
        pressed = compress(body)
        answer = target.post(pressed, headers | {"Content-Encoding": coding})
        if 400 <= answer.status < 500:
            raise NotOfferedError(f"refused with {answer.status}")
        read(target, answer, message)
        return f"{len(pressed)} bytes for {len(body)} were understood"

    return run


def _compressed_answer(target: Target) -> str:
    """A client that accepts gzip and deflate gets an answer that unpacks."""
    message = target.message()
    body, headers = message.encode()
    answer = target.post(body, headers | {"Accept-Encoding": "gzip, deflate"})
    read(target, answer, message)
    coding = answer.headers.get("content-encoding")
    return f"answered in {coding}" if coding else "answered without compression, which is allowed"


def _chunked(target: Target) -> str:
    """A body may come in chunks."""
    message = target.message()
    body, headers = message.encode()
    pieces = [body[at : at + 64] for at in range(0, len(body), 64)]
    read(target, target.post(pieces, headers), message)
    return f"answered to {len(pieces)} chunks"


def _kept(target: Target) -> str:
    """A connection carries several requests."""
    with target.connect() as connection:
        for number in range(3):
            message = target.message().having(id=str(number))
            if answered(target, message, connection=connection).closes:
                raise NotOfferedError(f"the server closes the connection after answer {number + 1}")
    return "three answers on one connection"


def _kept_after_refusal(target: Target) -> str:
    """After a refusal the connection goes on, or its end is announced."""
    headers = {"Content-Type": "application/json"}
    with target.connect() as connection:
        answer = target.post(b"{", headers, connection=connection)
        if answer.refused("expected 4xx for malformed JSON").closes:
            return "the server announces that it closes the connection"
        answered(target, target.message(), connection=connection)
    return "a refusal and an answer on one connection"


def _at_once(target: Target) -> str:
    """Several clients at once get each their own answers."""
    messages = [target.message() for _ in range(CLIENTS)]
    expected = [reference(target, message) for message in messages]

    def client(number: int) -> None:
        with target.connect() as connection:
            for count in range(EACH):
                message = messages[number].having(id=f"{number}-{count}")
                inference = answered(target, message, target.pinned, connection)
                compared(inference, expected[number])
                if inference.closes:
                    connection.close()

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    return f"{CLIENTS * EACH} answers to {CLIENTS} clients, each its own"


_CODING: Final = (
    "The protocol says nothing of compression; Triton's client offers both. RFC 9110, 8.4 lets a "
    "server refuse a coding with 415: any 4xx counts as not offered."
)

CHECKS: Final = (
    Check("connection: gzip body", "RFC 9110, 8.4", _compressed("gzip", gzip.compress), _CODING),
    Check(
        "connection: deflate body", "RFC 9110, 8.4", _compressed("deflate", zlib.compress), _CODING
    ),
    Check("connection: compressed answer", "RFC 9110, 12.5.3", _compressed_answer),
    Check("connection: chunked body", "RFC 9112, 7.1", _chunked),
    Check("connection: kept", "RFC 9112, 9.3", _kept),
    Check("connection: kept after a refusal", "RFC 9112, 9.3", _kept_after_refusal),
    Check("connection: eight clients at once", "inference_rest.md, Inference", _at_once),
)
