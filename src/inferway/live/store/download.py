"""Bytes of a model on their way into a partial file: from a file, or from a server by HTTPS.

Both run in a thread, where waiting, decrypting, hashing and writing keep nobody from being served.
The standard library's HTTP client is enough for one GET, and gives a place to decide which address
it connects to; no proxy settings are read.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import http.client
import io
import json
import os
import re
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from inferway.files import sync_folder, write_whole
from inferway.live.errors import NoRoomError, StoreError, UnavailableError
from inferway.live.store.allowed import Address, Allowed, ModelSource, shown
from inferway.live.threads import run_detached, run_in_thread
from inferway.unreadable import UNREADABLE

# Redirections that are followed.
HOPS: Final = 5
# Requests for the rest, one right after the other, while each brings something.
TRIES: Final = 5
# How long any single event of a connection is waited for.
PATIENCE_S: Final = 30.0
# Bytes that have to come in that time, the first time with all that precedes them.
LEAST_BYTES: Final = 64 * 1024

_BLOCK: Final = 1 << 18
# Endings of a file that is not whole, and beside it: which file of which server it begins.
PARTIAL: Final = ".part"
ORIGIN: Final = ".origin"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class Partial:
    """The beginning of one model file; `open` takes up and hashes what is there already.

    Not for the event loop: it reads and writes. What a kill leaves is a shorter beginning; what a
    power failure leaves may be damaged in the middle, which the digest tells in the end.

    `claim` is called before bytes are written, with how many there will be then, and how many in
    the end (None while that is unknown); it raises NoRoomError where there is no room.
    """

    def __init__(self, file: Path, claim: Callable[[int, int | None], None]) -> None:
        self._file, self._claim = file, claim
        self.path, self._origin = beside(file, PARTIAL), beside(file, ORIGIN)
        self._hash, self.received = hashlib.sha256(), 0
        self._total: int | None = None
        self._out: io.FileIO

    def open(self) -> Partial:
        """Take up what is there."""
        self._out = self.path.open("ab", buffering=0)
        with self.path.open("rb", buffering=0) as written:
            while block := written.read(_BLOCK):
                self._hash.update(block)
                self.received += len(block)
        return self

    @property
    def digest(self) -> str:
        """Of what is there, as ``sha256:`` and 64 hexadecimal digits."""
        return f"sha256:{self._hash.hexdigest()}"

    def validator(self, uri: str) -> str | None:
        """Tell the entity tag under which a server gave the bytes that are there, if it did."""
        with suppress(OSError, *UNREADABLE, KeyError, TypeError):
            origin = json.loads(self._origin.read_bytes())
            # The URI may hold keys, so that only its hash is kept.
            return str(origin["etag"]) if origin["uri"] == _hash_of(uri) else None
        return None

    def restart(self, uri: str = "", etag: str | None = None) -> None:
        """Forget what is there: all bytes come anew, from a server that gives them this tag."""
        self._out.truncate(0)
        self._hash, self.received = hashlib.sha256(), 0
        self._origin.unlink(missing_ok=True)
        if etag is not None:
            with suppress(OSError):
                write_whole(self._origin, json.dumps({"uri": _hash_of(uri), "etag": etag}))

    def expect(self, total_bytes: int) -> None:
        """Note how many bytes there will be, and make room; NoRoomError if there is none."""
        self._total = total_bytes
        self._claim(self.received, total_bytes)

    def append(self, data: bytes) -> None:
        """Add the next bytes; StoreError when the disk fails.

        NoRoomError when the store or the disk is full. What is there is removed then, as a full
        disk keeps everything else on this machine from writing, and the node's own state too.
        """
        view = memoryview(data)
        try:
            self._claim(self.received + len(data), self._total)
            while view:
                count = self._out.write(view)
                self._hash.update(view[:count])
                self.received += count
                view = view[count:]
        except NoRoomError:
            self.discard()
            raise
        except OSError as error:
            if error.errno not in _FULL:
                raise StoreError(f"{self.path} cannot be written: {error.strerror}") from None
            self.discard()
            raise NoRoomError(
                f"the disk of {self._file.parent} is full: {error.strerror} "
                f"after {self.received:,} bytes of a model"
            ) from None

    def finish(self) -> Path:
        """Make it the whole file, at once and for good; the caller has compared the digest."""
        os.fsync(self._out.fileno())
        self._out.close()
        self.path.replace(self._file)
        self._origin.unlink(missing_ok=True)
        sync_folder(self._file.parent)
        return self._file

    def discard(self) -> None:
        """Remove it."""
        self._out.close()
        for path in (self.path, self._origin):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave what is there for another time."""
        if not hasattr(self, "_out"):
            return  # it could not be opened
        self._out.close()
        if self.received == 0:
            with suppress(OSError):
                self.discard()


def beside(file: Path, ending: str) -> Path:
    """Name the file beside another, by another ending."""
    return file.with_name(file.name + ending)


def _hash_of(uri: str) -> str:
    return hashlib.sha256(uri.encode()).hexdigest()


class _CutError(UnavailableError):
    """The connection broke; where it had brought something, the rest is asked for again."""

    def __init__(self, sentence: str, again: bool) -> None:
        super().__init__(sentence)
        self.again = again


async def copy(source: ModelSource, partial: Partial) -> None:
    """Take what is missing of a file of this machine; StoreError if it does not come."""
    stopped = threading.Event()

    def work() -> None:
        if not stat.S_ISREG(Path(source.target).stat().st_mode):
            raise UnavailableError(f"{shown(source.uri)} is no ordinary file")
        with Path(source.target).open("rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes < partial.received:
                partial.restart()
            partial.expect(size_bytes)
            file.seek(partial.received)
            while not stopped.is_set() and (block := file.read(_BLOCK)):
                partial.append(block)

    try:
        await run_in_thread(work, stopped.set)
    except OSError as error:
        raise UnavailableError(f"{shown(source.uri)} cannot be read: {error.strerror}") from None


async def download(
    source: ModelSource, partial: Partial, allowed: Allowed, context: ssl.SSLContext
) -> None:
    """Take a model, or the rest of it, from a server.

    Every name is resolved once per request, and only what it resolved to is connected to. If the
    model does not come, the error is a StoreError, and what has come stays in `partial`.
    """
    place, hops, tries = source, 0, 1
    while hops <= HOPS:
        get = _Get(place, allowed.addresses(place, await _resolved(place)), partial, context)
        try:
            location = await _watched(get, source.uri)
        except _CutError as cut:
            if not cut.again or tries == TRIES:
                raise
            place, hops, tries = source, 0, tries + 1
            continue
        if location is None:
            return
        place, hops = allowed.redirected(place, location), hops + 1
    raise UnavailableError(f"{shown(source.uri)} redirects more than {HOPS} times")


async def _resolved(source: ModelSource) -> list[Any]:
    try:
        # The loop's own look-up would be waited for when the process ends.
        async with asyncio.timeout(PATIENCE_S):
            return await run_detached(
                socket.getaddrinfo, source.host, source.port, type=socket.SOCK_STREAM
            )
    except TimeoutError:
        reason = f"no answer for {PATIENCE_S:g} s"
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    raise UnavailableError(f"the host {source.host} cannot be found: {reason}")


async def _watched(get: _Get, origin: str) -> str | None:
    """Run a request in a thread; a server that sends too little is given up."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle
    seen = 0

    def look() -> None:
        nonlocal seen, timer
        if get.brought - seen < LEAST_BYTES:
            get.stop(f"in {PATIENCE_S:g} s, {get.brought - seen:,} bytes have come, too few")
        seen = get.brought
        timer = loop.call_later(PATIENCE_S, look)

    timer = loop.call_later(PATIENCE_S, look)
    try:
        return await run_in_thread(lambda: get.run(origin), get.stop)
    finally:
        timer.cancel()


class _Get(http.client.HTTPSConnection):
    """One request for a model, or for the rest of it.

    It connects to given addresses only, one after the other until one answers; the certificate must
    be the host's all the same.
    """

    def __init__(
        self,
        source: ModelSource,
        addresses: Sequence[Address],
        partial: Partial,
        context: ssl.SSLContext,
    ) -> None:
        super().__init__(source.host, source.port, timeout=PATIENCE_S, context=context)
        self._source, self._name = source, shown(source.uri)
        self._addresses, self._partial, self._tls = addresses, partial, context
        self._open: socket.socket | None = None
        self._stopped: str | None = None
        self.brought = 0  # Bytes of the model

    def connect(self) -> None:
        failure: OSError = ConnectionError("there is no address to connect to")
        for family, where in self._addresses:
            plain = socket.socket(family, socket.SOCK_STREAM)
            try:
                self._use(plain)
                plain.settimeout(PATIENCE_S)
                plain.connect(where)
                break
            except OSError as error:
                plain.close()
                failure = error
        else:
            raise failure
        try:
            self.sock = self._tls.wrap_socket(
                plain, server_hostname=self.host, do_handshake_on_connect=False
            )
        except BaseException:
            plain.close()
            raise
        self._use(self.sock)
        self.sock.do_handshake()

    def stop(self, reason: str = "it is no longer wanted") -> None:
        """Wake whoever waits for this connection; from any thread."""
        self._stopped = self._stopped or reason
        if self._open is not None:
            with suppress(OSError):
                # TLS's own shutdown would let the other thread read on, without TLS.
                socket.socket.shutdown(self._open, socket.SHUT_RDWR)

    def run(self, origin: str) -> str | None:
        """Ask, and take what comes; StoreError if it does not come, or not wholly.

        The bytes' entity tag is remembered under `origin`, the URI before any redirection. Returns
        where the server says that the model is; None when the answer has been taken.
        """
        # A compressed body could be anything once it is not.
        headers = {"Accept-Encoding": "identity", "User-Agent": "inferway"}
        if self._partial.received:
            headers["Range"] = f"bytes={self._partial.received}-"
            # Without a tag the digest alone tells whether both parts are of one file.
            if (tag := self._partial.validator(origin)) is not None:
                headers["If-Range"] = tag
        try:
            self.request("GET", self._source.target, headers=headers)
            # Closing the connection leaves an answer open that was to end with it.
            with self.getresponse() as response:
                return self._take(response, origin)
        except ssl.SSLCertVerificationError as error:
            self._raise(f"the certificate of {self._source.host} is refused", error.verify_message)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self._raise(f"{self._name} does not come", reason)
        finally:
            self.close()

    def _take(self, response: http.client.HTTPResponse, origin: str) -> str | None:
        partial = self._partial
        if response.status in _REDIRECTS:
            location = response.getheader("Location")
            if not location:
                raise UnavailableError(f"{self._name} redirects without saying where to")
            return location
        if response.getheader("Content-Encoding", "identity").lower() != "identity":
            raise UnavailableError(
                f"{self._name} answers with a compressed body, which was not asked for"
            )
        total = self._begin(response, origin)
        if total is not None:
            partial.expect(total)
        while self._stopped is None and (block := response.read1(_BLOCK)):
            partial.append(block)
            self.brought += len(block)
        if self._stopped is not None or (total is not None and partial.received < total):
            self._raise(f"{self._name} breaks off", f"{partial.received:,} bytes are there")
        return None

    def _begin(self, response: http.client.HTTPResponse, origin: str) -> int | None:
        """Decide where the answer's bytes belong; returns how many there will be, if known."""
        partial = self._partial
        if response.status == 206 and partial.received:
            match = _RANGE.fullmatch(response.getheader("Content-Range", ""))
            if match is not None and int(match[1]) == partial.received:
                return None if match[2] == "*" else int(match[2])
        if response.status in (206, 416) and partial.received:
            # What is there is no beginning of what the server has now.
            partial.restart()
            raise _CutError(f"{self._name} has no such rest of a model", again=True)
        if response.status != 200:
            said = f"{self._name} answers {response.status} {response.reason}"
            raise UnavailableError(said.rstrip())
        tag = response.getheader("ETag")
        # A weak tag promises less than equal bytes (RFC 9110, 13.1.5).
        strong = tag is not None and tag.startswith('"') and tag.isprintable()
        partial.restart(origin, tag if strong else None)
        return response.length

    def _raise(self, what: str, reason: str) -> NoReturn:
        if self._stopped is not None:
            raise UnavailableError(f"{what}: {self._stopped}") from None
        raise _CutError(f"{what}: {reason}", again=self.brought > 0) from None

    def _use(self, opened: socket.socket) -> None:
        self._open = opened
        if self._stopped is not None:
            raise ConnectionAbortedError(self._stopped)
