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
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from inferway.live.errors import DamagedError, NoRoomError, StoreError
from inferway.live.store.allowed import Allowed, ModelSource, shown
from inferway.live.store.cache import Cache, Partial, lock_folder
from inferway.live.store.download import copy, download
from inferway.live.threads import run_in_thread
from inferway.runtime.artifact import MAX_BYTES

Progress = Callable[[int, int | None], None]
"""Called on the event loop with the bytes that are there and, if known, how many there will be."""

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
    ) -> None:
        if limit_bytes <= 0:
            raise ValueError(f"a store needs a limit above 0 bytes, not {limit_bytes}")
        self._allowed = Allowed() if allowed is None else allowed
        self._tls = tls
        self._closing = ExitStack()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Two processes would evict each other's files.
            self._closing.callback(os.close, lock_folder(folder))
            self._cache = Cache(folder, limit_bytes, now)
        except BlockingIOError:
            raise StoreError(
                f"another process keeps its models in {folder}: give each node a folder of its own"
            ) from None
        except OSError as error:
            raise StoreError(f"models cannot be kept in {folder}: {error.strerror}") from None
        self.contents = self._cache.contents
        """All models that are there, the one that was used longest ago first."""
        self._checked: set[str] = set()
        """Files that have been hashed since this process began."""
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
        digest = _canonical(digest)
        source = self._allowed.source(uri)
        path = self._cache.path(digest)
        async with self._one_at_a_time:
            if digest in self._cache:
                if digest in self._checked or await run_in_thread(lambda: _hash(path)) == digest:
                    self._checked.add(digest)
                    self._cache.touch(digest)
                    return path
                self._cache.discard(digest)
            self._cache.begin(digest)
            try:
                while not await self._brought(source, digest, progress):
                    pass
            except OSError as error:
                raise StoreError(
                    f"the store's folder {path.parent} fails: {error.strerror or error}"
                ) from None
            finally:
                self._cache.end(digest)
        self._checked.add(digest)
        return path

    @contextmanager
    def use(self, digest: str) -> Iterator[Path]:
        """Keep a model from being evicted, whether it is there already or yet to be fetched."""
        digest = _canonical(digest)
        self._cache.hold(digest)
        try:
            yield self._cache.path(digest)
        finally:
            self._cache.hold(digest, -1)

    @property
    def used_bytes(self) -> int:
        """Bytes of all files, with what is claimed for those on their way."""
        return self._cache.used_bytes

    def discard(self, digest: str) -> None:
        """Remove a model that turned out to be damaged; the next fetch brings it anew."""
        digest = _canonical(digest)
        self._checked.discard(digest)
        self._cache.discard(digest)

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
            self._cache.claim(digest, needed, partial.received)
            if progress is None:
                return
            if bytes_needed >= told + _TELL_BYTES or bytes_needed == total_bytes:
                told = bytes_needed
                loop.call_soon_threadsafe(progress, bytes_needed, total_bytes)

        partial = Partial(self._cache.path(digest), claim)
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
