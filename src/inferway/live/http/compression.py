"""Compressed bodies: gzip and deflate, with a cap on what they unpack to."""

from __future__ import annotations

import gzip
import zlib
from typing import Final

from inferway.live.http.refusal import RefusalError

SMALLEST: Final = 1024
"""Responses below this many bytes are sent as they are: packing costs more than it saves."""

MEMBERS: Final = 16
"""A gzip body may have so many members: each costs a machine of its own, even an empty one."""

_PIECE: Final = 256 * 1024
_GZIP, _ZLIB, _RAW = 31, 15, -15


def decompress(body: bytes, encoding: bytes, limit: int) -> bytes:
    """Unpack a request's body.

    Parameters
    ----------
    body
        As it came.
    encoding
        Value of Content-Encoding.
    limit
        Largest size after unpacking, in bytes.

    Raises
    ------
    RefusalError
        415 for another encoding, 413 beyond the limit, 400 for damaged data.
    """
    match encoding.strip().lower():
        case b"" | b"identity":
            return body
        case b"gzip" | b"x-gzip":
            bits = _GZIP
        case b"deflate":
            # Meant is the zlib format (RFC 9110, 8.4.1.2), but some clients send bare deflate.
            zlib_head = len(body) >= 2 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
            bits = _ZLIB if zlib_head else _RAW
        case other:
            name = other.decode("latin-1")
            raise RefusalError(
                415, f"content encoding {name!r} is not offered; gzip and deflate are"
            )
    parts: list[bytes] = []
    left = limit
    rest = memoryview(body)
    for _ in range(MEMBERS):
        machine = zlib.decompressobj(bits)
        while rest and not machine.eof:
            # What is left over after a member is copied: a piece of the body, never all of it.
            piece, rest = rest[:_PIECE], rest[_PIECE:]
            try:
                part = machine.decompress(piece, left + 1)
            except zlib.error as error:
                raise RefusalError(400, f"the compressed body is damaged: {error}") from None
            if len(part) > left:
                raise RefusalError(413, f"the body unpacks to more than the limit of {limit} bytes")
            parts.append(part)
            left -= len(part)
        if not machine.eof:
            raise RefusalError(400, "the compressed body is truncated")
        rest = memoryview(body)[len(body) - len(rest) - len(machine.unused_data) :]
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        if bits != _GZIP:
            raise RefusalError(400, "the compressed body has bytes after its end")
    raise RefusalError(400, f"the compressed body has more than {MEMBERS} members")


def accepted(header: bytes) -> bytes | None:
    """Choose gzip, deflate or neither by an Accept-Encoding header."""
    found: dict[bytes, float] = {}
    for item in header.lower().split(b","):
        name, _, parameters = item.partition(b";")
        quality = 1.0
        key, _, value = parameters.strip().partition(b"=")
        if key.strip() == b"q":
            try:
                quality = float(value)
            except ValueError:
                quality = 0.0
        found[name.strip()] = quality
    best = max((b"gzip", b"deflate"), key=lambda name: found.get(name, 0.0))
    return best if found.get(best, 0.0) > 0.0 else None


def compress(body: bytes, encoding: bytes) -> bytes:
    """Pack a response's body, quickly rather than tightly."""
    if encoding == b"gzip":
        return gzip.compress(body, 1, mtime=0)
    return zlib.compress(body, 1)
