"""One model on its way into this process: its file found or fetched, then opened and warmed up."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from inferway.live.errors import DamagedError, StoreError, WarmUpError
from inferway.live.local import LocalInstance
from inferway.live.models import LoadError
from inferway.live.store.allowed import shown
from inferway.live.store.store import Progress
from inferway.live.threads import run_in_thread
from inferway.protocol import Signature
from inferway.runtime import ArtifactError, OnnxRuntime, inspect

if TYPE_CHECKING:
    from inferway.deployment import Model
    from inferway.live.store.store import ModelStore


class File(NamedTuple):
    """A model's file on this machine.

    Attributes
    ----------
    path
        Where it is.
    digest
        What it must hash to.
    uri
        Where it came from, for people.
    stored
        Whether the store keeps it, under a name that tells nobody anything.
    """

    path: Path
    digest: str | None
    uri: str
    stored: bool

    def named(self, error: Exception) -> str:
        """What an error says, of the file by the name that people gave it."""
        return str(error).replace(str(self.path), self.uri)


class Agreed(NamedTuple):
    """A task's signature, and the variant that was first to say it."""

    signature: Signature
    variant: str


class Files:
    """Where models' files are, those that must be fetched first included.

    A zoo's are here already. Others come through the store, those of this machine too: what is
    opened is then what was hashed, whatever happens to the original.

    Parameters
    ----------
    store
        Fetches and keeps.
    """

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._hashed: dict[Path, str] = {}
        """Of files without a digest, what they were when they were first read."""

    def here(self, model: Model) -> File | None:
        """Find a file that can be read at once; None where it must be fetched first."""
        uri = shown(model.uri)
        if model.path is not None:
            return File(model.path, model.digest, uri, False) if model.path.is_file() else None
        for one in self._store.contents():
            if one.digest == model.digest:
                return File(one.path, model.digest, uri, True)
        return None

    async def digest_of(self, model: Model) -> str | None:
        """What to ask the store for; None for a zoo's model, which needs no store.

        Raises
        ------
        LoadError
            Where nothing says it and the file cannot be read.
        """
        path = model.path
        if model.uri.startswith("zoo://"):
            return None
        if model.digest is not None:
            return model.digest
        if path is None:
            raise LoadError(f"{shown(model.uri)} has no digest; state the one that it must have")
        known = self._hashed.get(path)
        if known is None:
            try:
                known = await run_in_thread(lambda: _hash(path))
            except OSError as error:
                raise LoadError(
                    f"{shown(model.uri)} cannot be read: {error.strerror or error}"
                ) from None
            self._hashed[path] = known
        return known

    async def have(self, model: Model, digest: str | None, progress: Progress | None) -> File:
        """Find or fetch a model's file.

        Parameters
        ----------
        model
            Which one.
        digest
            As `digest_of` tells.
        progress
            Called while bytes come.

        Raises
        ------
        LoadError
            When it cannot be had.
        """
        here = model.path
        if digest is None:
            assert here is not None  # a zoo's
            return File(here, model.digest, model.uri, False)
        uri = model.uri if here is None else here.absolute().as_uri()
        try:
            path = await self._store.fetch(uri, digest, progress=progress)
        except (StoreError, ValueError) as error:
            if isinstance(error, DamagedError) and here is not None and model.digest is None:
                # Nobody stated what it must be: it may be another one by now.
                self._hashed.pop(here, None)
            raise LoadError(str(error)) from error
        return File(path, digest, shown(model.uri), True)

    async def doubt(self, model: Model, file: File) -> None:
        """Look at a file that turned out to be bad, so that the next try may find a better one.

        One that changed in the store is thrown out; one that nobody stated the digest of is hashed
        anew at its source.
        """
        if model.path is not None and model.digest is None:
            self._hashed.pop(model.path, None)
        if not file.stored or file.digest is None:
            return
        try:
            found = await run_in_thread(lambda: _hash(file.path))
        except OSError:
            found = ""
        if found != file.digest:
            with suppress(OSError):
                self._store.discard(file.digest)


def fit(signature: Signature, agreed: Agreed | None) -> None:
    """Hold a signature against the task's.

    Raises
    ------
    LoadError
        Where they differ.
    """
    if agreed is not None and signature != agreed.signature:
        raise LoadError(
            f"its signature {signature} differs from {agreed.signature} of {agreed.variant}"
        )


async def check(file: File, agreed: Agreed | None = None) -> Signature:
    """Read a model's file without opening it: digest, format, signature.

    Raises
    ------
    LoadError
        Where one of them is wrong.
    """
    try:
        signature = await run_in_thread(lambda: inspect(file.path, digest=file.digest))
    except Exception as error:  # whatever a file makes a parser raise
        raise LoadError(file.named(error)) from error
    fit(signature, agreed)
    return signature


async def opened(
    name: str, file: File, agreed: Agreed | None, sizes: Sequence[int] = (1,)
) -> OnnxRuntime:
    """Open a model in a thread and warm it up there; canceled, nothing of it is left.

    Parameters
    ----------
    name
        For messages.
    file
        Of the model.
    agreed
        What it must take and give, if known.
    sizes
        Rows that it may be given together.

    Raises
    ------
    LoadError
        When it cannot be opened, is of another signature, or fails at zeros.
    """
    opening = _Opening(name, file, agreed, sizes)
    try:
        return await run_in_thread(opening.run, opening.stop)
    except asyncio.CancelledError:
        opening.close()
        raise
    except LoadError:
        raise
    except ArtifactError as error:
        raise LoadError(file.named(error)) from error
    except WarmUpError as error:
        raise LoadError(str(error).removeprefix(f"{name} ")) from error
    except Exception as error:  # whatever a model makes a parser raise: it cannot serve
        said = " ".join(str(error).split()) or type(error).__name__
        raise LoadError(f"it cannot be opened: {file.named(ValueError(said))}") from error


class _Opening:
    def __init__(self, name: str, file: File, agreed: Agreed | None, sizes: Sequence[int]) -> None:
        self._name, self._file, self._agreed, self._sizes = name, file, agreed, sizes
        self._stopped = False
        self._runtime: OnnxRuntime | None = None

    def run(self) -> OnnxRuntime:
        runtime = OnnxRuntime(self._file.path, digest=self._file.digest)
        try:
            fit(runtime.signature, self._agreed)
            if not self._stopped:
                # What a site does with it later; it has no thread before it is started.
                LocalInstance(self._name, runtime, sizes=self._sizes).warm_up()
        except BaseException:
            runtime.close()
            raise
        self._runtime = runtime
        return runtime

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        if self._runtime is not None:
            self._runtime.close()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
