"""Work that would hold up the event loop, step by step in a thread beside it; and such work: bodies
that are packed or unpacked, as gzip or deflate, with a cap on what they unpack to.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, cast

from inferway.protocol import RefusalError

T = TypeVar("T")

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
FIRST, STEP = 64 * 1024, 1024**2
_FED, _PIECE = 64 * 1024, 128 * 1024
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
    unpacked, goal, rest = bytearray(), FIRST, memoryview(body)
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


class Beside:
    """The thread of a listener.

    It is one: all that is beside takes one core at most, and steps of several works take turns.
    Between two steps a work is on the loop, where it can be canceled.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._executor = ThreadPoolExecutor(1, "beside")
        self._closed = False

    async def result(
        self, work: Generator[int, None, T], between: Callable[[int], None] = lambda _: None
    ) -> T:
        """Have a work done that yields after each step, and return what comes of it.

        On the loop, `between` is told what was yielded, and may end the work by raising. Where this
        is canceled, the work ends with its step.
        """

        def step() -> tuple[bool, Any]:
            try:
                return False, next(work)
            except StopIteration as end:
                return True, end.value

        while not self._closed:
            loop = asyncio.get_running_loop()
            ended, value = await loop.run_in_executor(self._executor, step)
            if ended:
                return cast("T", value)
            between(value)
        raise asyncio.CancelledError

    def begin(self, course: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin what waits for a work; the task may be canceled."""
        task = asyncio.get_running_loop().create_task(course)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """Begin nothing more."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
