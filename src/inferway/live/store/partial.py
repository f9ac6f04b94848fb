"""A model file that is still coming: its first bytes, on the disk from the moment they came."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from inferway.live.store.error import NoRoomError, StoreError
from inferway.unreadable import UNREADABLE

PARTIAL: Final = ".part"
ORIGIN: Final = ".origin"
"""Beside a partial file: which file of which server it is the beginning of."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_BLOCK: Final = 1 << 20


class Partial:
    """The beginning of one model file; what is there already is taken up and hashed.

    Not for the event loop: it reads and writes. What a kill leaves is a shorter beginning; what a
    power failure leaves may be damaged in the middle, which the digest tells in the end.

    Parameters
    ----------
    file
        The whole file's path to be.
    claim
        Called before bytes are written, with how many there will be then, and how many in the end
        (None while that is unknown); raises where there is no room.
    """

    def __init__(self, file: Path, claim: Callable[[int, int | None], None]) -> None:
        self._file, self._claim = file, claim
        self.path = file.with_name(file.name + PARTIAL)
        self._origin = file.with_name(file.name + ORIGIN)
        self._hash = hashlib.sha256()
        self.received = 0
        """Bytes that are there."""
        self._total: int | None = None
        self._out: io.FileIO = self.path.open("ab", buffering=0)
        try:
            with self.path.open("rb", buffering=0) as written:
                while block := written.read(_BLOCK):
                    self._hash.update(block)
                    self.received += len(block)
        except BaseException:
            self._out.close()
            raise

    @property
    def digest(self) -> str:
        """Of what is there, as ``sha256:`` and 64 hexadecimal digits."""
        return f"sha256:{self._hash.hexdigest()}"

    def validator(self, uri: str) -> str | None:
        """Tell the entity tag under which a server gave the bytes that are there, if it did."""
        try:
            origin = json.loads(self._origin.read_bytes())
            # The URI may hold keys, so that only its hash is kept.
            return str(origin["etag"]) if origin["uri"] == _hashed(uri) else None
        except (OSError, *UNREADABLE, KeyError, TypeError):
            return None

    def restart(self, uri: str = "", etag: str | None = None) -> None:
        """Forget what is there: all bytes come anew, from a server that gives them this tag."""
        self._out.truncate(0)
        self._hash, self.received = hashlib.sha256(), 0
        self._origin.unlink(missing_ok=True)
        if etag is not None:
            try:
                self._origin.write_text(json.dumps({"uri": _hashed(uri), "etag": etag}))
            except OSError:
                self._origin.unlink(missing_ok=True)

    def expect(self, total_bytes: int) -> None:
        """Note how many bytes there will be, and make room for them.

        Raises
        ------
        NoRoomError, DamagedError
            If there is none, or it should be another number.
        """
        self._total = total_bytes
        self._claim(self.received, total_bytes)

    def append(self, data: bytes) -> None:
        """Add the next bytes.

        Raises
        ------
        NoRoomError
            When the store or the disk is full; what is there is removed then, as a full disk
            keeps everything else on this machine from writing, and the node's own state too.
        DamagedError
            If these are more than there should be.
        StoreError
            When the disk fails.
        """
        try:
            self._claim(self.received + len(data), self._total)
        except NoRoomError:
            self.discard()
            raise
        view = memoryview(data)
        try:
            while view:
                count = self._out.write(view)
                self._hash.update(view[:count])
                self.received += count
                view = view[count:]
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
        folder = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return self._file

    def discard(self) -> None:
        """Remove it."""
        self._out.close()
        for path in (self.path, self._origin):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave what is there for another time."""
        self._out.close()
        if self.received == 0:
            with suppress(OSError):
                self.discard()


def _hashed(uri: str) -> str:
    return hashlib.sha256(uri.encode()).hexdigest()
