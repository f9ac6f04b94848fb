"""Names of a request: X-Request-Id, and W3C Trace Context's traceparent and tracestate.

Source: https://www.w3.org/TR/trace-context/ (version 00; tracestate: 3.3). Keys of a tracestate
that come twice stay as they are: nothing is added here that could have made them so.
"""

from __future__ import annotations

import os
import re
from itertools import count
from typing import Final

MOST_MEMBERS: Final = 32
MOST_BYTES: Final = 512
"""What has to go on at least; members beyond go."""
LONG: Final = 128
"""Bytes of a member that goes before others do."""

_WORD: Final = rb"[a-z0-9_*/-]"
_KEY: Final = b"(?:[a-z]%b{0,255}|[a-z0-9]%b{0,240}@[a-z]%b{0,13})" % (_WORD, _WORD, _WORD)
_MEMBER: Final = re.compile(_KEY + rb"=[ -+\--<>-~]{0,255}[!-+\--<>-~]")

_TRACEPARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
_ID: Final = re.compile(rb"[!-~]{1,128}")

# Unique without asking the system for random bytes each time: a random beginning per process.
_TRACE: Final = os.urandom(8).hex().encode()
_PROCESS: Final = os.urandom(4).hex().encode()
_next = count(1).__next__


class TraceContext:
    """Names of one request.

    Parameters
    ----------
    given
        The client's X-Request-Id, or None. What has spaces, control characters or more than 128
        characters is not taken over: it would end up in headers and logs.
    parent
        The client's traceparent, or None; ignored where it is malformed.
    state
        The client's tracestate, or None; ignored where it is malformed, or where `parent` is.

    Attributes
    ----------
    id
        The client's, or a new one.
    trace, span
        Hexadecimal trace id, the client's or a new one; and our own span's id.
    parent
        Hexadecimal id of the client's span, empty without one.
    flags
        Hexadecimal trace flags, ``00`` without a client's.
    state
        What goes on of the client's tracestate; empty without one.
    """

    __slots__ = ("flags", "id", "parent", "span", "state", "trace")

    def __init__(
        self, given: bytes | None, parent: bytes | None, state: bytes | None = None
    ) -> None:
        number = b"%016x" % _next()
        self.id = _PROCESS + b"-" + number
        self.span = _PROCESS + number[8:]
        # Samplers take a share of the traces by the last half of their ids, read as a number: from
        # the end to the front a counter is spread evenly over all numbers.
        self.trace = _TRACE + number[::-1]
        self.parent, self.flags, self.state = b"", b"00", b""
        if given is not None and _ID.fullmatch(given):
            self.id = given
        if parent is not None and (match := _TRACEPARENT.fullmatch(parent)):
            self.trace, self.parent, self.flags = match.groups()
            if state is not None:
                self.state = carried(state)

    def headers(self) -> bytes:
        """Lines for the response: our span is the parent of what the client does with it."""
        return b"X-Request-Id: %s\r\ntraceparent: 00-%s-%s-%s\r\n" % (
            self.id,
            self.trace,
            self.span,
            self.flags,
        )

    def onward(self, span: bytes = b"", flags: bytes = b"") -> bytes:
        """Lines for a node that the request is forwarded to.

        They name the span that the forward is, hexadecimal. Where there is none the client's goes
        on, so that what follows hangs on a span that somebody has made.
        """
        lines = b"X-Request-Id: %s\r\ntraceparent: 00-%s-%s-%s\r\n" % (
            self.id,
            self.trace,
            span or self.parent or self.span,
            flags or self.flags,
        )
        return lines + b"tracestate: %s\r\n" % self.state if self.state else lines


def carried(given: bytes) -> bytes:
    """Tell what of a tracestate goes on: all of it, as a rule.

    Several headers are given joined by commas. Nothing goes on of one that is malformed, has too
    many members or none; of one that is too long, all but whole members, long ones first and from
    the end.
    """
    if given.count(b",") >= MOST_MEMBERS:
        return b""
    members = [member for one in given.split(b",") if (member := one.strip(b" \t"))]
    if not all(map(_MEMBER.fullmatch, members)):
        return b""
    if len(given) <= MOST_BYTES:
        return given if members else b""
    size = sum(map(len, members)) + len(members) - 1
    for least in (LONG, 0):
        for place in reversed(range(len(members))):
            if size > MOST_BYTES and len(members[place]) > least:
                size -= len(members.pop(place)) + 1
    return b",".join(members)


def members_of(state: bytes) -> dict[str, str]:
    """Take apart what `carried` has let through; of a key that comes twice, the first counts."""
    found: dict[str, str] = {}
    for one in state.decode("ascii").split(","):
        key, _, value = one.strip(" \t").partition("=")
        if key:
            found.setdefault(key, value)
    return found
