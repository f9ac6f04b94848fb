"""Compressed bodies: gzip and deflate, with a cap on what they unpack to."""

from __future__ import annotations

import zlib
from collections.abc import Generator
from typing import Final

from inferway.protocol import RefusalError

# Responses below this many bytes are sent as they are: packing costs more than it saves.
SMALLEST: Final = 1024
# A gzip body may have so many members: each costs a machine of its own, even an empty one.
MEMBERS: Final = 16
# A body may unpack to so many times its size, as measured values, JSON or raw, stay below 20; and
# to so many bytes in any case, for a mask or a tensor of zeros packs 1000 to 1.
RATIO: Final = 100
FREE: Final = 8 * 1024**2
# Bytes of the first step of unpacking, which most bodies end with, a tenth of a millisecond; and of
# each further one.
FIRST: Final = 64 * 1024
STEP: Final = 1024**2
_FED: Final = 64 * 1024
_PIECE: Final = 128 * 1024
_GZIP, _ZLIB, _RAW = 31, 15, -15


def unpacking(
    body: bytes, encoding: bytes, limit: int, beyond: str = ""
) -> Generator[int, None, bytes | bytearray]:
    """Unpack a request's body step by step, as its Content-Encoding says.

    After each step but the last it yields the bytes that the body has grown to. RefusalError: 415
    for another encoding, 413 beyond the limit (which says `beyond`) or the ratio, 400 for damaged
    data.
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
    allowed = max(FREE, RATIO * len(body))
    reason = f"the body unpacks to more than {RATIO} times its size; send it unpacked"
    if limit <= allowed:
        allowed = limit
        reason = beyond or f"the body unpacks to more than the limit of {limit} bytes"
    unpacked = bytearray()
    goal = FIRST
    rest = memoryview(body)
    for _ in range(MEMBERS):
        machine = zlib.decompressobj(bits)
        fed: bytes | memoryview = b""
        while not machine.eof:
            if not fed:
                # What is left over after a member is copied: a piece of the body, never all of it.
                fed, rest = rest[:_FED], rest[_FED:]
            try:
                part = machine.decompress(fed, min(_PIECE, allowed + 1 - len(unpacked)))
            except zlib.error as error:
                raise RefusalError(400, f"the compressed body is damaged: {error}") from None
            fed = machine.unconsumed_tail
            unpacked += part
            if len(unpacked) > allowed:
                raise RefusalError(413, reason)
            if not (part or fed or rest or machine.eof):
                raise RefusalError(400, "the compressed body is truncated")
            if len(unpacked) >= goal:
                goal = len(unpacked) + STEP
                yield len(unpacked)
        rest = memoryview(body)[len(body) - len(rest) - len(machine.unused_data) :]
        if not rest:
            return unpacked
        if bits != _GZIP:
            raise RefusalError(400, "the compressed body has bytes after its end")
    raise RefusalError(400, f"the compressed body has more than {MEMBERS} members")


def accepted(header: bytes) -> bytes | None:
    """Choose gzip, deflate or neither by an Accept-Encoding header."""
    qualities: dict[bytes, float] = {}
    for item in header.lower().split(b","):
        name, _, parameters = item.partition(b";")
        key, _, value = parameters.strip().partition(b"=")
        try:
            qualities[name.strip()] = float(value) if key.strip() == b"q" else 1.0
        except ValueError:
            qualities[name.strip()] = 0.0
    best = max((b"gzip", b"deflate"), key=lambda name: qualities.get(name, 0.0))
    return best if qualities.get(best, 0.0) > 0.0 else None


def packing(parts: list[bytes], encoding: bytes) -> Generator[int, None, list[bytes]]:
    """Pack a response's body step by step, quickly rather than tightly; yields zeros."""
    machine = zlib.compressobj(1, wbits=_GZIP if encoding == b"gzip" else _ZLIB)
    packed = []
    for part in parts:
        rest = memoryview(part)
        while rest:
            packed.append(machine.compress(rest[:STEP]))
            rest = rest[STEP:]
            yield 0
    return [*packed, machine.flush()]
