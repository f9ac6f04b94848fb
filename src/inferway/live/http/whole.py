"""Requests between nodes that have come whole, in the form in which nodes write them.

One match takes the place of a callback for each header. Whatever is not exactly of this form (other
headers, another order, a body in pieces, several requests at once) is left to the parser, so that
nothing is read here that the parser would have read otherwise.
"""

from __future__ import annotations

import re
from typing import Final

NODE: Final = b"inferway-node"
VARIANT: Final = b"inferway-variant"
PATH: Final = b"inferway-path"
DEADLINE: Final = b"inferway-deadline-ms"
PREDICTED: Final = b"inferway-predicted-ms"
"""Hop headers of a request, in lower case."""

_WORD: Final = rb"([!-~]+)"
_TEXT: Final = rb"([!-~](?:[ -~]*[!-~])?)"
_HEAD: Final = re.compile(
    rb"POST (/[!-~]*) HTTP/1\.1\r\n"
    rb"Host: (?:[!$&-.0-9;=A-Z_a-z~%]*|\[[0-9A-Za-z:.%]+\])(?::[0-9]*)?\r\n"
    rb"Inferway-Node: " + _WORD + rb"\r\nInferway-Variant: " + _WORD + rb"\r\n"
    rb"Inferway-Path: " + _WORD + rb"\r\n(?:Inferway-Deadline-Ms: " + _WORD + rb"\r\n)?"
    rb"(?:Inferway-Predicted-Ms: " + _WORD + rb"\r\n)?"
    rb"((?:X-Request-Id: " + _WORD + rb"\r\n)?(?:traceparent: " + _WORD + rb"\r\n"
    rb"(?:tracestate: " + _TEXT + rb"\r\n)?)?"
    rb"(?:Content-Type: " + _TEXT + rb"\r\n)?(?:Content-Encoding: " + _WORD + rb"\r\n)?"
    rb"(?:Inference-Header-Content-Length: " + _WORD + rb"\r\n)?"
    rb"(?:Accept-Encoding: " + _TEXT + rb"\r\n)?)"
    rb"Content-Length: ([0-9]{1,15})\r\n\r\n"
)


def whole(data: bytes) -> re.Match[bytes] | None:
    """Match a request that `data` holds, and nothing else.

    Its groups are the target, the five hop headers (the last two may be missing), the lines that go
    on as they came, their seven values, and the body's length; its end is where the body begins.
    """
    found = _HEAD.match(data)
    if found is None or len(data) - found.end() != int(found[15]):
        return None
    return found
