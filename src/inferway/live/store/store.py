"""The models that a node has on its disk, and how it gets others.

A model is known by its digest, wherever it came from: `ModelStore.fetch` brings it from a URI into
the store's folder, hashing it as it comes, and gives it its name only when it is whole and on the
disk for good. Whatever interrupts a fetch, a kill or a full disk included, the folder holds whole
models and beginnings of models, and the next fetch goes on where the last one stopped.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from inferway.files import lock
from inferway.live.errors import DamagedError, NoRoomError, StoreError
from inferway.live.store.allowed import Allowed, ModelSource, shown
from inferway.live.store.download import ORIGIN, PARTIAL, Partial, beside, copy, download
from inferway.live.threads import run_in_thread
from inferway.runtime.artifact import MAX_BYTES, canonical

# Called on the event loop with the bytes that are there and, if known, how many there will be.
Progress = Callable[[int, int | None], None]

_NAME: Final = re.compile(r"[0-9a-f]{64}")
_TELL_BYTES: Final = 1 << 20


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
        self._lock = threading.RLock()
        self._uses: Counter[str] = Counter()
        self._coming: set[str] = set()
        # Bytes of files that are not whole, with what is claimed for them.
        self._begun: dict[str, int] = {}
        # Bytes of whole files, the one that was used longest ago first.
        self._whole: dict[str, int] = {}
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
            return sum(self._whole.values()) + sum(self._begun.values())

    def __contains__(self, digest: str) -> bool:
        with self._lock:
            return digest in self._whole

    def hold(self, digest: str, more: int = 1) -> None:
        """Count so many more uses, or fewer, and note that the file was used."""
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
            for held, ending in ((self._begun, PARTIAL), (self._whole, "")):
                with suppress(FileNotFoundError):
                    held[digest] = beside(self.path(digest), ending).stat().st_size
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
            if path.suffix == ORIGIN and not path.with_suffix(PARTIAL).exists():
                path.unlink()
            elif _NAME.fullmatch(path.stem) and path.is_file():
                status = path.stat()
                if path.suffix == PARTIAL:
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

    def _make_room(self, size_bytes: int, digest: str, growth_bytes: int) -> None:
        others = self.used_bytes - self._begun.get(digest, 0)
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
        for held, endings in ((self._begun, (PARTIAL, ORIGIN)), (self._whole, ("",))):
            for digest, size in held.items():
                needed = digest in self._coming or (held is self._whole and self._uses[digest])
                if size and not needed:
                    for ending in endings:
                        beside(self.path(digest), ending).unlink(missing_ok=True)
                    return held.pop(digest)
        return 0


class ModelStore(Cache):
    """A node's models on its disk.

    For one event loop; all that takes time runs in threads beside it.

    Parameters
    ----------
    folder
        Made if it is missing; no other process may have it open.
    limit_bytes
        Most that all its files may take.
    allowed
        Where models may come from; by default any file, and any public host over HTTPS.
    now
        Wall clock, seconds: stamps files with their last use.
    tls
        Authorities to trust; by default the system's.

    Raises
    ------
    StoreError
        When the folder cannot be used.
    ValueError
        For a limit that is not above 0.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limit_bytes: int,
        allowed: Allowed | None = None,
        now: Callable[[], float] = time.time,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if limit_bytes <= 0:
            raise ValueError(f"a store needs a limit above 0 bytes, not {limit_bytes}")
        self._allowed, self._tls = allowed or Allowed(), tls
        self._closing = ExitStack()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Two processes would evict each other's files.
            self._closing.callback(os.close, lock(folder))
            super().__init__(folder, limit_bytes, now)
        except BlockingIOError:
            raise StoreError(
                f"another process keeps its models in {folder}: give each node a folder of its own"
            ) from None
        except OSError as error:
            raise StoreError(f"models cannot be kept in {folder}: {error.strerror}") from None
        # Files that have been hashed since this process began.
        self._checked: set[str] = set()
        self._one_at_a_time = asyncio.Lock()

    async def fetch(self, uri: str, digest: str, progress: Progress | None = None) -> Path:
        """Have a model in the store, fetching what is missing of it, one model at a time.

        Canceled, it leaves what came for the next fetch.

        Parameters
        ----------
        uri
            ``file:///PATH`` or ``https://HOST/PATH``. Messages leave out its query, which may hold
            keys.
        digest
            ``sha256:`` and 64 hexadecimal digits.
        progress
            Called now and then while bytes come.

        Returns
        -------
        path
            The model's file. It stays while in `use`, which may begin before the fetch.

        Raises
        ------
        ValueError
            For a digest of another form.
        ForbiddenSourceError
            If models must not come from there.
        UnavailableError
            If the source does not answer, breaks off, or is too slow.
        DamagedError
            If it has another file.
        NoRoomError
            If the model is too large for what is left.
        StoreError
            When the store's folder fails.
        """
        digest = canonical(digest)
        source = self._allowed.source(uri)
        path = self.path(digest)
        async with self._one_at_a_time:
            if digest in self:
                if digest in self._checked or await run_in_thread(lambda: _hash(path)) == digest:
                    self._checked.add(digest)
                    self.hold(digest, 0)
                    return path
                self.discard(digest)
            self.begin(digest)
            try:
                while not await self._brought(source, digest, progress):
                    pass
            except OSError as error:
                raise StoreError(
                    f"the store's folder {path.parent} fails: {error.strerror or error}"
                ) from None
            finally:
                self.end(digest)
        self._checked.add(digest)
        return path

    @contextmanager
    def use(self, digest: str) -> Iterator[Path]:
        """Keep a model from being evicted, whether it is there already or yet to be fetched."""
        digest = canonical(digest)
        self.hold(digest)
        try:
            yield self.path(digest)
        finally:
            self.hold(digest, -1)

    def discard(self, digest: str) -> None:
        """Remove a model that turned out to be damaged; the next fetch brings it anew."""
        digest = canonical(digest)
        self._checked.discard(digest)
        super().discard(digest)

    def close(self) -> None:
        """Leave the folder to others; whoever fetches has been canceled before."""
        self._closing.close()

    async def _brought(self, source: ModelSource, digest: str, progress: Progress | None) -> bool:
        """Fetch what is missing of a model; False where what had been there was none of it."""
        name, loop, told = shown(source.uri), asyncio.get_running_loop(), 0

        def claim(bytes_needed: int, total_bytes: int | None) -> None:
            nonlocal told
            needed = max(bytes_needed, total_bytes or 0)
            if needed > MAX_BYTES:
                raise NoRoomError(
                    f"{name} is larger than the limit of {MAX_BYTES:,} bytes for a model"
                )
            self.claim(digest, needed, partial.received)
            if progress is None:
                return
            if bytes_needed >= told + _TELL_BYTES or bytes_needed == total_bytes:
                told = bytes_needed
                loop.call_soon_threadsafe(progress, bytes_needed, total_bytes)

        partial = Partial(self.path(digest), claim)
        try:
            await run_in_thread(partial.open)
            resumed = partial.received > 0
            if partial.digest != digest:
                if source.is_file:
                    await copy(source, partial)
                else:
                    if self._tls is None:
                        self._tls = await run_in_thread(ssl.create_default_context)
                    await download(source, partial, self._allowed, self._tls)
            if (fetched := partial.digest) == digest:
                await run_in_thread(partial.finish)
                return True
            partial.discard()
        finally:
            partial.close()
        # The beginning may have been another file's, or damaged when the power failed.
        if resumed:
            return False
        raise DamagedError(f"{name} is not the model: its digest is {fetched}, expected {digest}")


def _hash(path: Path) -> str:
    with suppress(OSError), path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    return ""
