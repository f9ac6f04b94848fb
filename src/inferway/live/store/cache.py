"""The model files of a node on its disk, and which go when others need the room."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from inferway.live.store.error import NoRoomError
from inferway.live.store.partial import ORIGIN, PARTIAL

_NAME: Final = re.compile(r"[0-9a-f]{64}")


class Stored(NamedTuple):
    """One whole model file.

    Attributes
    ----------
    digest
        ``sha256:`` and 64 hexadecimal digits.
    path
        Where it is.
    size_bytes
        Its length.
    uses
        How often it is in use now.
    """

    digest: str
    path: Path
    size_bytes: int
    uses: int


class Cache:
    """A folder of files named by what they hash to, never above a limit.

    Safe to call from several threads. When room is needed, beginnings of files go first, then
    files in the order of their last use; never what is in use or on its way. The order outlives
    the process in the files' times, which only ever grow: a clock that jumps cannot turn it.

    Parameters
    ----------
    folder
        Exists; written by nobody else.
    limit_bytes
        For all files together, beginnings included.
    now
        Wall clock, seconds.
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
        """Where a file is, or would be."""
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
        """What all files take, with what is claimed for those on their way."""
        with self._lock:
            return self._used()

    def __contains__(self, digest: str) -> bool:
        with self._lock:
            return digest in self._whole

    def hold(self, digest: str) -> None:
        """Count one more use."""
        with self._lock:
            self._uses[digest] += 1
            self._touch(digest)

    def let_go(self, digest: str) -> None:
        """Count one use less."""
        with self._lock:
            self._uses[digest] -= 1
            if not self._uses[digest]:
                del self._uses[digest]
            self._touch(digest)

    def begin(self, digest: str) -> None:
        """Note that a file is on its way."""
        with self._lock:
            self._coming.add(digest)

    def claim(self, digest: str, size_bytes: int, present_bytes: int) -> None:
        """Make room for a file on its way.

        Parameters
        ----------
        digest
            Of the file.
        size_bytes
            How many bytes it has, as far as known.
        present_bytes
            How many of them are on the disk already.

        Raises
        ------
        NoRoomError
            If what is in use leaves too little, or the disk has too little.
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
                self._begun[digest] = _partial(path).stat().st_size
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
        found = []
        for path in self._folder.iterdir():
            name = path.name.removesuffix(PARTIAL)
            if path.name.endswith(ORIGIN) and not _partial(path.with_suffix("")).exists():
                path.unlink()
            if not _NAME.fullmatch(name) or not path.is_file():
                continue
            status = path.stat()
            if path.name.endswith(PARTIAL):
                self._begun[f"sha256:{name}"] = status.st_size
            else:
                found.append((status.st_mtime_ns, f"sha256:{name}", status.st_size))
        for used_ns, digest, size in sorted(found):
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
        while growth_bytes > (free := _free(self._folder)):
            if not self._evict():
                raise NoRoomError(
                    f"a model's {growth_bytes:,} bytes do not fit: "
                    f"the disk of {self._folder} has {free:,} bytes left"
                )

    def _evict(self) -> int:
        """Remove what is missed least, and tell its bytes; 0 if all is needed."""
        for digest, size in self._begun.items():
            if digest not in self._coming and size:
                for path in (_partial(self.path(digest)), _origin(self.path(digest))):
                    path.unlink(missing_ok=True)
                return self._begun.pop(digest)
        for digest, size in self._whole.items():
            if not self._uses[digest] and digest not in self._coming and size:
                self.path(digest).unlink(missing_ok=True)
                return self._whole.pop(digest)
        return 0


def _partial(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


def _origin(path: Path) -> Path:
    return path.with_name(path.name + ORIGIN)


def _free(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize
