"""The models that a node has on its disk, and how it gets others.

A model is known by its digest, wherever it came from: `ModelStore.fetch` brings it from a URI into
the store's folder, hashing it as it comes, and gives it its name only when it is whole and on the
disk for good. Whatever interrupts a fetch, a kill or a full disk included, the folder holds whole
models and beginnings of models, and the next fetch goes on where the last one stopped.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from inferway.live.store.allowed import Allowed, Source, shown
from inferway.live.store.cache import Cache, Stored
from inferway.live.store.download import download
from inferway.live.store.error import DamagedError, NoRoomError, StoreError
from inferway.live.store.partial import Partial
from inferway.live.store.shared import Progress, Shared
from inferway.live.store.transfer import Copy
from inferway.live.threads import run_in_thread
from inferway.runtime.artifact import MAX_BYTES

PATIENCE_S: Final = 30.0
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_TELL_BYTES: Final = 1 << 20


class ModelStore:
    """A node's models on its disk.

    For one event loop; all that takes time runs in threads beside it.

    Parameters
    ----------
    folder
        Made if it is missing; no other process may have it open.
    limit_bytes
        What all its files may take.
    allowed
        Where models may come from; by default any file, and any public host over HTTPS.
    now
        Wall clock, seconds: stamps files with their last use.
    tls
        Whom to trust; by default the system's authorities.
    max_bytes
        The largest model accepted.
    patience_s
        Seconds after which a server that sends (almost) nothing is given up.

    Raises
    ------
    StoreError
        When the folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limit_bytes: int,
        allowed: Allowed | None = None,
        now: Callable[[], float] = time.time,
        tls: ssl.SSLContext | None = None,
        max_bytes: int = MAX_BYTES,
        patience_s: float = PATIENCE_S,
    ) -> None:
        if limit_bytes <= 0:
            raise ValueError(f"a store needs a limit above 0 bytes, not {limit_bytes}")
        self._allowed = Allowed() if allowed is None else allowed
        self._tls, self._max_bytes, self._patience_s = tls, max_bytes, patience_s
        self._lock = _alone(folder)
        try:
            self._cache = Cache(folder, limit_bytes, now)
        except OSError as error:
            os.close(self._lock)
            raise StoreError(f"models cannot be kept in {folder}: {error.strerror}") from None
        self._checked: set[str] = set()
        """Files that have been hashed since this process began."""
        self._running: dict[str, Shared[Path]] = {}
        self._closed = False

    async def fetch(
        self,
        uri: str,
        digest: str,
        size_bytes: int | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Have a model in the store, fetching what is missing of it.

        Whoever fetches the same digest meanwhile shares the one transfer. Canceled, it leaves what
        came for the next fetch.

        Parameters
        ----------
        uri
            ``file:///PATH`` or ``https://HOST/PATH``. Messages leave out its query, which may hold
            keys.
        digest
            ``sha256:`` and 64 hexadecimal digits.
        size_bytes
            The file's exact length, where it is known: another one is refused at once.
        progress
            Called now and then while bytes come; see `Progress`.

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
            When the store's folder fails, or the store is closed.
        """
        digest = _canonical(digest)
        source = self._allowed.source(uri)
        while True:
            going = self._running.get(digest)
            if going is not None and going.ending:
                await asyncio.wait({going.task})
                continue
            if going is None:
                going = self._start(source, digest, size_bytes)
            try:
                return await going.outcome(progress)
            except StoreError:
                # Another source may have what that one had not.
                if going.source == uri:
                    raise
            except asyncio.CancelledError:
                caller = asyncio.current_task()
                if self._closed and caller is not None and not caller.cancelling():
                    raise StoreError("the store is closed") from None
                raise

    @contextmanager
    def use(self, digest: str) -> Iterator[Path]:
        """Keep a model from being evicted, whether it is there already or yet to be fetched."""
        digest = _canonical(digest)
        self._cache.hold(digest)
        try:
            yield self._cache.path(digest)
        finally:
            self._cache.let_go(digest)

    def contents(self) -> tuple[Stored, ...]:
        """All models that are there, the one that was used longest ago first."""
        return self._cache.contents()

    @property
    def used_bytes(self) -> int:
        """What all files take, with what is claimed for those on their way."""
        return self._cache.used_bytes

    def discard(self, digest: str) -> None:
        """Remove a model that turned out to be damaged; the next fetch brings it anew."""
        digest = _canonical(digest)
        self._checked.discard(digest)
        self._cache.discard(digest)

    async def close(self) -> None:
        """Stop all fetches; what has come stays. The folder is free for others then."""
        self._closed = True
        tasks = [going.task for going in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _start(self, source: Source, digest: str, size_bytes: int | None) -> Shared[Path]:
        if self._closed:
            raise StoreError("the store is closed")
        going = self._running[digest] = Shared(
            source.uri, lambda tell: self._have(source, digest, size_bytes, tell)
        )
        # Not at the end of the work itself: canceled soon enough, it never begins.
        going.task.add_done_callback(lambda _: self._running.pop(digest))
        return going

    async def _have(
        self, source: Source, digest: str, size_bytes: int | None, tell: Progress
    ) -> Path:
        path = self._cache.path(digest)
        if digest in self._cache:
            if digest in self._checked or await run_in_thread(lambda: _hash(path)) == digest:
                self._checked.add(digest)
                self._cache.touch(digest)
                return path
            self._cache.discard(digest)
        self._cache.begin(digest)
        try:
            return await self._bring(source, digest, size_bytes, tell)
        except OSError as error:
            raise StoreError(
                f"the store's folder {path.parent} fails: {error.strerror or error}"
            ) from None
        finally:
            self._cache.end(digest)

    async def _bring(
        self, source: Source, digest: str, size_bytes: int | None, tell: Progress
    ) -> Path:
        coming = _Coming(self._cache, digest, size_bytes, self._max_bytes, shown(source.uri), tell)
        while True:
            try:
                partial = await run_in_thread(coming.open)
                resumed = partial.received > 0
                if partial.digest != digest:
                    await self._transfer(source, partial)
                found = partial.digest
                if found == digest:
                    path = await run_in_thread(partial.finish)
                    self._checked.add(digest)
                    return path
                partial.discard()
            finally:
                coming.close()
            # The beginning may have been another file's, or damaged when the power failed.
            if not resumed:
                raise DamagedError(
                    f"{shown(source.uri)} is not the model: its digest is {found}, "
                    f"expected {digest}"
                )

    async def _transfer(self, source: Source, partial: Partial) -> None:
        if source.is_file:
            copy = Copy(source, partial)
            await run_in_thread(copy.run, copy.stop)
            return
        if self._tls is None:
            self._tls = await run_in_thread(ssl.create_default_context)
        await download(source, partial, self._allowed, self._tls, self._patience_s)


class _Coming:
    """One fetch's claims on the store, and what it tells of its progress."""

    def __init__(
        self,
        cache: Cache,
        digest: str,
        size_bytes: int | None,
        max_bytes: int,
        name: str,
        tell: Progress,
    ) -> None:
        self._cache, self._digest, self._name, self._tell = cache, digest, name, tell
        self._size_bytes, self._max_bytes = size_bytes, max_bytes
        self._loop = asyncio.get_running_loop()
        self._told = 0
        self._partial: Partial | None = None

    def open(self) -> Partial:
        """Take up what is there, and make room for the rest as far as known."""
        partial = self._partial = Partial(self._cache.path(self._digest), self.claim)
        if self._size_bytes is not None:
            partial.expect(self._size_bytes)
        return partial

    def close(self) -> None:
        """Close what was opened, even if nobody waited for it any more."""
        if self._partial is not None:
            self._partial.close()

    def claim(self, bytes_needed: int, total_bytes: int | None) -> None:
        """Make room, from any thread; the total is None while the source has not told it."""
        wanted = self._size_bytes
        if wanted is not None and (bytes_needed > wanted or total_bytes not in (None, wanted)):
            raise DamagedError(
                f"{self._name} has {total_bytes or bytes_needed:,} bytes or more, "
                f"expected {wanted:,}"
            )
        needed = max(bytes_needed, total_bytes or 0)
        if needed > self._max_bytes:
            raise NoRoomError(
                f"{self._name} is larger than the limit of {self._max_bytes:,} bytes for a model"
            )
        present = self._partial.received if self._partial is not None else 0
        self._cache.claim(self._digest, needed, present)
        if bytes_needed >= self._told + _TELL_BYTES or bytes_needed == total_bytes:
            self._told = bytes_needed
            self._loop.call_soon_threadsafe(self._tell, bytes_needed, total_bytes)


def _canonical(digest: str) -> str:
    if not _DIGEST.fullmatch(digest.lower()):
        raise ValueError(
            f"the digest {digest!r} is not 'sha256:' followed by 64 hexadecimal digits"
        )
    return digest.lower()


def _hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError:
        return ""


def _alone(folder: Path) -> int:
    """Hold the folder, as two processes would evict each other's files."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"models cannot be kept in {folder}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StoreError(
            f"another process keeps its models in {folder}: give each node a folder of its own"
        ) from None
    return lock
