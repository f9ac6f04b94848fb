"""The model files of a node on its disk: whole ones, beginnings, and which go for others' room."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from inferway.live.errors import NoRoomError, StoreError
from inferway.unreadable import UNREADABLE

_NAME: Final = re.compile(r"[0-9a-f]{64}")
_PARTIAL: Final = ".part"
_ORIGIN: Final = ".origin"
"""Beside a partial file: which file of which server it is the beginning of."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_BLOCK: Final = 1 << 20


class Stored(NamedTuple):
    """One whole model file."""

    digest: str  # ``sha256:`` and 64 hexadecimal digits
    path: Path
    size_bytes: int
    uses: int  # How often it is in use now


class Cache:
    """A folder of files named by what they hash to, never above a limit.

    Safe to call from several threads. When room is needed, beginnings of files go first, then
    files in the order of their last use; never what is in use or on its way. The order outlives
    the process in the files' times, which only ever grow: a clock that jumps cannot turn it.

    The folder exists, and nobody else writes there. The limit is for all files together, beginnings
    included; `now` is the wall clock, in seconds.
    """

    def __init__(self, folder: Path, limit_bytes: int, now: Callable[[], float]) -> None:
        self._folder, self._limit, self._now = folder, limit_bytes, now
        self._lock = threading.Lock()
        self._uses: Counter[str] = Counter()
        self._coming: set[str] = set()
        self._begun: dict[str, int] = {}
        """Bytes of files that are not whole, with what is claimed for them."""
        self._whole: dict[str, int] = {}
        """Bytes of whole files, the one that was used longest ago first."""
        self._last_ns = 0
        self._scan()
        with suppress(NoRoomError):  # the limit may be less than at the last start
            self._make_room(0, "", 0)

    def path(self, digest: str) -> Path:
        """Name the place where a file is, or would be."""
        return self._folder / digest.removeprefix("sha256:")

    def contents(self) -> tuple[Stored, ...]:
        """All whole files, the one that was used longest ago first."""
        with self._lock:
            return tuple(
                Stored(digest, self.path(digest), size, self._uses[digest])
                for digest, size in self._whole.items()
            )

    @property
    def used_bytes(self) -> int:
        """Bytes of all files, with what is claimed for those on their way."""
        with self._lock:
            return self._used()

    def __contains__(self, digest: str) -> bool:
        with self._lock:
            return digest in self._whole

    def hold(self, digest: str, more: int = 1) -> None:
        """Count one more use, or one less."""
        with self._lock:
            self._uses[digest] += more
            self._uses = +self._uses  # without those that nobody uses
            self._touch(digest)

    def begin(self, digest: str) -> None:
        """Note that a file is on its way."""
        with self._lock:
            self._coming.add(digest)

    def claim(self, digest: str, size_bytes: int, present_bytes: int) -> None:
        """Make room for a file on its way, of which some bytes are on the disk already.

        NoRoomError if what is in use leaves too little, or the disk has too little.
        """
        with self._lock:
            if size_bytes <= self._begun.get(digest, -1):
                return
            self._make_room(size_bytes, digest, size_bytes - present_bytes)
            self._begun[digest] = size_bytes

    def end(self, digest: str) -> None:
        """Note what has become of a file on its way."""
        with self._lock:
            self._coming.discard(digest)
            self._begun.pop(digest, None)
            path = self.path(digest)
            with suppress(FileNotFoundError):
                self._begun[digest] = _beside(path, _PARTIAL).stat().st_size
            with suppress(FileNotFoundError):
                self._whole[digest] = path.stat().st_size
                self._touch(digest)

    def touch(self, digest: str) -> None:
        """Note that a file was used."""
        with self._lock:
            self._touch(digest)

    def discard(self, digest: str) -> None:
        """Remove a whole file; the next fetch brings it anew."""
        with self._lock:
            self._whole.pop(digest, None)
            self.path(digest).unlink(missing_ok=True)

    def _scan(self) -> None:
        whole = []
        for path in self._folder.iterdir():
            digest = f"sha256:{path.stem}"
            if path.suffix == _ORIGIN and not path.with_suffix(_PARTIAL).exists():
                path.unlink()
            elif _NAME.fullmatch(path.stem) and path.is_file():
                status = path.stat()
                if path.suffix == _PARTIAL:
                    self._begun[digest] = status.st_size
                elif not path.suffix:
                    whole.append((status.st_mtime_ns, digest, status.st_size))
        for used_ns, digest, size in sorted(whole):
            self._whole[digest] = size
            self._last_ns = used_ns

    def _touch(self, digest: str) -> None:
        size = self._whole.pop(digest, None)
        if size is None:
            return
        self._whole[digest] = size
        self._last_ns = max(int(self._now() * 1e9), self._last_ns + 1)
        with suppress(OSError):  # someone removed it; whoever reads it will say so
            os.utime(self.path(digest), ns=(self._last_ns, self._last_ns))

    def _used(self) -> int:
        return sum(self._whole.values()) + sum(self._begun.values())

    def _make_room(self, size_bytes: int, digest: str, growth_bytes: int) -> None:
        others = self._used() - self._begun.get(digest, 0)
        while others + size_bytes > self._limit:
            freed = self._evict() if size_bytes <= self._limit else 0
            if not freed:
                raise NoRoomError(
                    f"a model of {size_bytes:,} bytes does not fit: the store {self._folder} may "
                    f"take {self._limit:,} bytes, and {others:,} of them are in use"
                )
            others -= freed
        while growth_bytes > (free := shutil.disk_usage(self._folder).free):
            if not self._evict():
                raise NoRoomError(
                    f"a model's {growth_bytes:,} bytes do not fit: "
                    f"the disk of {self._folder} has {free:,} bytes left"
                )

    def _evict(self) -> int:
        """Remove what is missed least, and tell its bytes; 0 if all is needed."""
        for held, endings in ((self._begun, (_PARTIAL, _ORIGIN)), (self._whole, ("",))):
            for digest, size in held.items():
                needed = digest in self._coming or (held is self._whole and self._uses[digest])
                if size and not needed:
                    for ending in endings:
                        _beside(self.path(digest), ending).unlink(missing_ok=True)
                    return held.pop(digest)
        return 0


class Partial:
    """The beginning of one model file; `open` takes up and hashes what is there already.

    Not for the event loop: it reads and writes. What a kill leaves is a shorter beginning; what a
    power failure leaves may be damaged in the middle, which the digest tells in the end.

    `claim` is called before bytes are written, with how many there will be then, and how many in
    the end (None while that is unknown); it raises NoRoomError where there is no room.
    """

    def __init__(self, file: Path, claim: Callable[[int, int | None], None]) -> None:
        self._file, self._claim = file, claim
        self.path, self._origin = _beside(file, _PARTIAL), _beside(file, _ORIGIN)
        self._hash = hashlib.sha256()
        self.received = 0
        """Bytes that are there."""
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
        try:
            origin = json.loads(self._origin.read_bytes())
            # The URI may hold keys, so that only its hash is kept.
            return str(origin["etag"]) if origin["uri"] == _hash_of(uri) else None
        except (OSError, *UNREADABLE, KeyError, TypeError):
            return None

    def restart(self, uri: str = "", etag: str | None = None) -> None:
        """Forget what is there: all bytes come anew, from a server that gives them this tag."""
        self._out.truncate(0)
        self._hash, self.received = hashlib.sha256(), 0
        self._origin.unlink(missing_ok=True)
        if etag is not None:
            try:
                self._origin.write_text(json.dumps({"uri": _hash_of(uri), "etag": etag}))
            except OSError:
                self._origin.unlink(missing_ok=True)

    def expect(self, total_bytes: int) -> None:
        """Note how many bytes there will be, and make room; NoRoomError if there is none."""
        self._total = total_bytes
        self._claim(self.received, total_bytes)

    def append(self, data: bytes) -> None:
        """Add the next bytes; StoreError when the disk fails.

        NoRoomError when the store or the disk is full. What is there is removed then, as a full
        disk keeps everything else on this machine from writing, and the node's own state too.
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


def sync_folder(folder: Path) -> None:
    """Have the disk keep what a folder holds, for good; OSError as the disk says."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_folder(folder: Path, *, wait: bool = False) -> int:
    """Hold a folder until the descriptor that is returned is closed, or the process ends.

    Where another process holds it, wait for that or raise BlockingIOError; any other OSError if
    nothing can be written there.
    """
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(lock)
        raise
    return lock


def _beside(file: Path, ending: str) -> Path:
    return file.with_name(file.name + ending)


def _hash_of(uri: str) -> str:
    return hashlib.sha256(uri.encode()).hexdigest()
