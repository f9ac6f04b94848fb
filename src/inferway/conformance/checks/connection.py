"""HTTP itself: compression, connections kept, several clients at once."""

from __future__ import annotations

import gzip
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from inferway.conformance.answer import answered, read, reference, same
from inferway.conformance.errors import NotOfferedError, ViolationError
from inferway.conformance.message import Message
from inferway.conformance.outcome import Check
from inferway.conformance.target import Target

CLIENTS: Final = 8
EACH: Final = 4
"""Requests of each client."""


def zipped(target: Target) -> str:
    """A body packed with gzip is understood, or refused."""
    return _packed(target, "gzip")


def deflated(target: Target) -> str:
    """A body packed with deflate is understood, or refused."""
    return _packed(target, "deflate")


def packed_answer(target: Target) -> str:
    """Who accepts gzip and deflate gets an answer that unpacks."""
    message = target.message()
    body, headers = message.encode()
    answer = target.post(body, headers | {"Accept-Encoding": "gzip, deflate"})
    read(target, answer, message)
    coding = answer.headers.get("content-encoding")
    return f"answered in {coding}" if coding else "answered without compression, which is allowed"


def chunked(target: Target) -> str:
    """A body may come in chunks."""
    message = target.message()
    body, headers = message.encode()
    pieces = [body[at : at + 64] for at in range(0, len(body), 64)]
    read(target, target.post(pieces, headers), message)
    return f"answered to {len(pieces)} chunks"


def kept(target: Target) -> str:
    """A connection carries several requests."""
    with target.wire() as wire:
        for number in range(3):
            message = target.message().having(id=str(number))
            if answered(target, message, wire=wire).answer.closes:
                raise NotOfferedError(f"the server closes the connection after answer {number + 1}")
    return "three answers on one connection"


def kept_after_refusal(target: Target) -> str:
    """After a refusal the connection goes on, or its end is announced."""
    with target.wire() as wire:
        answer = target.post(b"{", {"Content-Type": "application/json"}, wire=wire)
        if not 400 <= answer.status < 500:
            raise ViolationError(f"{answer}; expected 4xx for malformed JSON")
        if answer.closes:
            return "the server announces that it closes the connection"
        answered(target, target.message(), wire=wire)
    return "a refusal and an answer on one connection"


def at_once(target: Target) -> str:
    """Several clients at once get each their own answers."""
    messages = [target.message() for _ in range(CLIENTS)]
    expected = [reference(target, message) for message in messages]

    def client(number: int) -> None:
        with target.wire() as wire:
            for count in range(EACH):
                message = messages[number].having(id=f"{number}-{count}")
                found = answered(target, message, base=target.pinned, wire=wire)
                if (own := expected[number]) is not None:
                    same(found, own)
                if found.answer.closes:
                    wire.close()

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    return f"{CLIENTS * EACH} answers to {CLIENTS} clients, each its own"


def _packed(target: Target, coding: str) -> str:
    message: Message = target.message()
    body, headers = message.encode()
    pressed = gzip.compress(body, mtime=0) if coding == "gzip" else zlib.compress(body)
    answer = target.post(pressed, headers | {"Content-Encoding": coding})
    if 400 <= answer.status < 500:
        raise NotOfferedError(f"refused with {answer.status}")
    read(target, answer, message)
    return f"{len(pressed)} bytes for {len(body)} were understood"


_CODING: Final = (
    "The protocol says nothing of compression; Triton's client offers both. RFC 9110, 8.4 lets a "
    "server refuse a coding with 415: any 4xx counts as not offered."
)

CHECKS: Final = (
    Check("connection: gzip body", "RFC 9110, 8.4", zipped, _CODING),
    Check("connection: deflate body", "RFC 9110, 8.4", deflated, _CODING),
    Check("connection: compressed answer", "RFC 9110, 12.5.3", packed_answer),
    Check("connection: chunked body", "RFC 9112, 7.1", chunked),
    Check("connection: kept", "RFC 9112, 9.3", kept),
    Check("connection: kept after a refusal", "RFC 9112, 9.3", kept_after_refusal),
    Check("connection: eight clients at once", "inference_rest.md, Inference", at_once),
)
