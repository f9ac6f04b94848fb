"""W3C Trace Context's tracestate: what tracing systems tell themselves along a trace.

Source: https://www.w3.org/TR/trace-context/ (version 00, 3.3). Keys that come twice stay as they
are: nothing is added here that could have made them so.
"""

from __future__ import annotations

import re
from typing import Final

MOST_MEMBERS: Final = 32
MOST_BYTES: Final = 512
"""What has to go on at least; members beyond go."""
LONG: Final = 128
"""Bytes of a member that goes before others do."""

_WORD: Final = rb"[a-z0-9_*/-]"
_KEY: Final = b"(?:[a-z]%b{0,255}|[a-z0-9]%b{0,240}@[a-z]%b{0,13})" % (_WORD, _WORD, _WORD)
_MEMBER: Final = re.compile(_KEY + rb"=[ -+\--<>-~]{0,255}[!-+\--<>-~]")


def carried(given: bytes) -> bytes:
    """Tell what of a tracestate goes on: all of it, as a rule.

    Parameters
    ----------
    given
        Value of the header; of several, joined by commas.

    Returns
    -------
    bytes
        Empty where it is malformed, has too many members or none. Of one that is too long, whole
        members are left out: long ones first, and from the end.
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
