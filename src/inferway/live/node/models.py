"""The models that a node has in memory, by task and variant.

A model's weights are there once, however many copies of the variant run: ONNX Runtime runs one
session from any number of threads. Pools borrow it (`LoadedModels.acquire`); as a pool closes what
it runs when it goes, each loan is closed by itself, and the weights go when the last one has come
back.

A zoo's files are on this machine already. Others come through the store, those of this machine too:
what is opened is then what was hashed, whatever happens to the original.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from inferway.deployment import runtime_of
from inferway.live.build import PASSING
from inferway.live.errors import DamagedError, LoadError, StoreError, WarmUpError
from inferway.live.headroom import Growths, Headroom, is_closed
from inferway.live.lent import Loan, Weights, on_loop
from inferway.live.local import LocalInstance
from inferway.live.store.allowed import shown
from inferway.live.store.store import Progress
from inferway.live.threads import run_in_thread
from inferway.protocol import Signature
from inferway.runtime import (
    ArtifactError,
    OnnxRuntime,
    RemoteError,
    Runtime,
    Served,
    inspect,
)
from inferway.runtime.growth import Growth
from inferway.site.view import RUN_ROWS

if TYPE_CHECKING:
    from inferway.deployment import Deployment, Model, Task, Variant
    from inferway.live.store.store import ModelStore

T = TypeVar("T")
Pair = tuple[str, str]  # task and variant
_Agreed = tuple[Signature, str]  # a task's signature, and the variant that was first to say it


class _File(NamedTuple):
    """A model's file on this machine: what it must hash to, and where it came from, for people.

    The store keeps those that are `stored`, under a name that tells nobody anything.
    """

    path: Path
    digest: str | None
    uri: str
    stored: bool

    def named(self, error: Exception) -> str:
        """Return what an error says, of the file by the name that people gave it."""
        return str(error).replace(str(self.path), self.uri)


class LoadedModels:
    """Models that are loaded; for one event loop.

    Parameters
    ----------
    deployment
        Names the models. Of a task with a `count` above 1, ``NAME-0`` and so on are the names.
    store
        Fetches files and keeps them.
    growths
        Says how much memory runs take; None where nobody does.
    headroom
        Of all runs; None bounds nothing.
    log
        Told what classes of the user's own print; None writes that to standard error.
    hardware
        The node's: it says which batches of a model are tried.

    Attributes
    ----------
    freed
        Called when weights that were to go are gone at last.
    """

    def __init__(
        self,
        deployment: Deployment,
        store: ModelStore,
        growths: Growths | None = None,
        headroom: Headroom | None = None,
        log: Any = None,
        hardware: str = "cpu",
    ) -> None:
        self._hardware = hardware
        self.headroom, self._tasks, self._log = headroom, deployment.named(), log
        self._store, self._growths = store, growths
        # Of files without a digest, what they were when they were first read.
        self._hashed: dict[Path | None, str] = {}
        # None where another server runs the variant: nothing of it is here.
        self._loaded: dict[Pair, Weights | None] = {}
        # Files that are here and stay, none of a remote variant; closing a stack lets one go.
        self._ready: dict[Pair, tuple[_File | None, ExitStack]] = {}
        self._agreed: dict[str, _Agreed] = {}
        self._growth: dict[Pair, tuple[Growth, str] | None] = {}
        self.freed: Callable[[], None] = lambda: None

    def __contains__(self, pair: object) -> bool:
        return pair in self._loaded

    def signature(self, task: str) -> Signature | None:
        """Say what a task takes and gives, as far as known: see `learn`."""
        agreed = self._agreed.get(task)
        return None if agreed is None else agreed[0]

    async def learn(self, task: str) -> Signature | None:
        """Find out what a task takes and gives; None where nothing here says it.

        While none of its variants has been loaded, the smallest of its model files on this machine
        says it.

        Raises
        ------
        LoadError
            If there is no such task.
        """
        if task not in self._agreed:
            files = [
                (_size_of(file), variant.name, file)
                for variant in self._task(task).variants.values()
                if variant.model is not None and (file := self._present(variant.model)) is not None
            ]
            for _, name, file in sorted(files):
                with suppress(LoadError):  # whoever loads it hears why
                    self._agreed.setdefault(task, (await _check(file), name))
                    break
        return self.signature(task)

    async def prepare(self, task: str, variant: str, progress: Progress | None = None) -> None:
        """Have a variant's file here and check it, so that little can go wrong with `load`.

        The file stays in the store until the variant is loaded, or `forget` is called. Of a remote
        variant, its server is asked.

        Raises
        ------
        LoadError
            When it could not be loaded; begins with its name.
        """
        pair = task, variant
        if self.is_ready(task, variant):
            return
        with _naming(pair):
            described = self._variant(task, variant)
            if described.model is None and described.runnable:
                if described.remote is not None:
                    await self._reach(task, described)
                self._ready[pair] = None, ExitStack()
                return
            file, stack = await self._fetched(described, progress)
            with stack:
                await self._good(described, file, _check(file, self._agreed.get(task)))
                self._ready[pair] = file, stack.pop_all()

    def is_ready(self, task: str, variant: str) -> bool:
        """Tell whether a variant is loaded, or prepared."""
        return (task, variant) in self._loaded or (task, variant) in self._ready

    def forget(self, task: str, variant: str) -> None:
        """Let go what `prepare` has prepared."""
        self._ready.pop((task, variant), (None, ExitStack()))[1].close()

    async def load(self, task: str, variant: str, progress: Progress | None = None) -> None:
        """Have a variant in memory, ready to run; one that is there already costs nothing.

        Canceled, it leaves nothing but a file, or its beginning, in the store. One call at a time.
        `progress` is called on the loop with the bytes that are there of those that are to come,
        where the file must be fetched first.

        Raises
        ------
        LoadError
            When it cannot be loaded; the message begins with its name.
        """
        pair = task, variant
        if pair in self._loaded:
            if (weights := self._loaded[pair]) is not None:
                weights.leaving = False
            return
        with _naming(pair):
            described = self._variant(task, variant)
            if described.remote is None:
                own = described.python is not None
                opened = self._made(pair) if own else self._opened(pair, described, progress)
                self._loaded[pair] = Weights(await opened, on_loop(lambda: self._idle(pair)))
                return
            if self._ready.pop(pair, None) is None:
                await self._reach(task, described)
            self._loaded[pair] = None

    def acquire(self, task: str, variant: str) -> Served:
        """Give a pool what runs a loaded variant; closing it gives it back.

        Any thread may run what stays. A remote variant's is made anew each time: there are no
        weights to share, and what it counts is the pool's.

        Raises
        ------
        LoadError
            If it is not loaded.
        """
        if (task, variant) not in self._loaded:
            raise LoadError(f"{task}/{variant} is not loaded, so that nothing can run it")
        weights = self._loaded[task, variant]
        if weights is not None:
            return Loan(weights)
        return runtime_of(self._variant(task, variant), self.signature(task))

    def growth(self, task: str, variant: str) -> tuple[Growth, str] | None:
        """Say what runs of a loaded variant take, and where that comes from; None if not known."""
        return self._growth.get((task, variant))

    def release(self, task: str, variant: str) -> bool:
        """Free a variant's memory, at once or when the last loan comes back; whether it is free."""
        pair = task, variant
        weights = self._loaded.get(pair)
        if weights is not None:
            weights.leaving = True
            if weights.loans:
                return False
            weights.runtime.close()
        self._loaded.pop(pair, None)
        return True

    def close(self) -> None:
        """Free everything; what is lent goes when it comes back."""
        for pair in tuple(self._ready):
            self.forget(*pair)
        for pair in tuple(self._loaded):
            self.release(*pair)

    def _present(self, model: Model) -> _File | None:
        """Find a file that can be read at once; None where it must be fetched first."""
        uri = shown(model.uri)
        if model.path is not None:
            return _File(model.path, model.digest, uri, False) if model.path.is_file() else None
        stored = (one.path for one in self._store.contents() if one.digest == model.digest)
        path = next(stored, None)
        return None if path is None else _File(path, model.digest, uri, True)

    async def _fetched(
        self, variant: Variant, progress: Progress | None
    ) -> tuple[_File, ExitStack]:
        model = variant.model
        if model is None:
            raise LoadError("it has no `model`, so that nothing can be loaded")
        path, digest = model.path, model.digest
        if model.uri.startswith("zoo://"):
            assert path is not None
            return _File(path, digest, model.uri, False), ExitStack()
        if digest is None:
            if path is None:
                raise LoadError(
                    f"{shown(model.uri)} has no digest; state the one that it must have"
                )
            if path not in self._hashed:
                try:
                    self._hashed[path] = await run_in_thread(lambda: _hash(path))
                except OSError as error:
                    raise LoadError(
                        f"{shown(model.uri)} cannot be read: {error.strerror or error}"
                    ) from None
            digest = self._hashed[path]
        uri = model.uri if path is None else path.absolute().as_uri()
        with ExitStack() as stack:
            stack.enter_context(self._store.use(digest))
            try:
                stored = await self._store.fetch(uri, digest, progress=progress)
            except (StoreError, ValueError) as error:
                if isinstance(error, DamagedError):
                    # Where nobody stated what it must be, it may be another one by now.
                    self._hashed.pop(path, None)
                raise LoadError(str(error)) from error
            return _File(stored, digest, shown(model.uri), True), stack.pop_all()

    async def _made(self, pair: Pair) -> Runtime:
        """Start a process with a class of the user's own."""
        task, name = pair
        self._ready.pop(pair, None)
        variant, signature = self._variant(task, name), await self.learn(task)
        assert variant.python is not None
        log = None if self._log is None else self._log.bind(task=task, variant=name)
        make = partial(variant.python.runtime, signature=signature, name=name, log=log)
        batch = variant.batch_on(self._hardware)
        sizes = (1,) if batch is None else batch.sizes
        runtime = await _open("/".join(pair), make, str, self._agreed.get(task), sizes)
        self._agreed.setdefault(task, (runtime.signature, name))
        return runtime

    async def _opened(self, pair: Pair, variant: Variant, progress: Progress | None) -> Runtime:
        task, name = pair
        file, stack = self._ready.pop(pair, (None, ExitStack()))
        if file is None:
            file, stack = await self._fetched(variant, progress)
        batch = variant.batch_on(self._hardware)
        sizes = (1,) if batch is None else batch.sizes
        # Once it is open, the file is not read again, and the store may give its room to others.
        with stack:
            stated = variant.providers
            make = partial(OnnxRuntime, file.path, digest=file.digest, providers=stated)
            work = _open(f"{task}/{name}", make, file.named, self._agreed.get(task), sizes)
            runtime = await self._good(variant, file, work)
            growths, path = self._growths, file.path
            if growths is not None and is_closed(runtime.signature):
                largest = max(sizes) if batch else RUN_ROWS
                try:
                    self._growth[pair] = await run_in_thread(
                        lambda: growths.of(variant, path, largest)
                    )
                except BaseException:
                    runtime.close()
                    raise
        self._agreed.setdefault(task, (runtime.signature, name))
        return runtime

    async def _good(self, variant: Variant, file: _File, work: Coroutine[Any, Any, T]) -> T:
        """Do what may find a file bad; then look at it, so that the next try may find a better one.

        One that changed in the store is thrown out; one that nobody stated the digest of is hashed
        anew at its source.
        """
        try:
            return await work
        except LoadError:
            if variant.model is not None:
                self._hashed.pop(variant.model.path, None)
            if file.stored and file.digest is not None:
                digest = ""
                with suppress(OSError):
                    digest = await run_in_thread(lambda: _hash(file.path))
                if digest != file.digest:
                    with suppress(OSError):
                        self._store.discard(file.digest)
            raise

    async def _reach(self, task: str, variant: Variant) -> None:
        """Ask another server for what it runs; one that is down may be back."""
        assert variant.remote is not None
        await self.learn(task)
        agreed = self._agreed.get(task)
        try:
            runtime = variant.remote.runtime(signature=self.signature(task))
        except ValueError as error:
            raise LoadError(str(error)) from error
        try:
            await runtime.describe()
        except RemoteError as error:
            if error.fault not in PASSING:
                raise LoadError(str(error)) from error
            if agreed is None:
                raise LoadError(
                    f"{error}, and nothing else says what the task takes and gives"
                ) from error
        else:
            _fit(runtime.signature, agreed)
            self._agreed.setdefault(task, (runtime.signature, variant.name))
        finally:
            runtime.close()

    def _idle(self, pair: Pair) -> None:
        """Free what was to go when its last loan came back."""
        weights = self._loaded.get(pair)
        if weights is not None and weights.leaving and self.release(*pair):
            self.freed()

    def _task(self, name: str) -> Task:
        if name not in self._tasks:
            raise LoadError(f"there is no task {name!r}; there are {', '.join(self._tasks)}")
        return self._tasks[name]

    def _variant(self, task: str, name: str) -> Variant:
        variants = self._task(task).variants
        if name not in variants:
            raise LoadError(f"the task {task!r} has no variant {name!r}")
        return variants[name]


@contextmanager
def _naming(pair: Pair) -> Iterator[None]:
    """Begin what is said of a failure with whose it is."""
    try:
        yield
    except LoadError as error:
        raise LoadError(f"{'/'.join(pair)}: {error}") from error


def _fit(signature: Signature, agreed: _Agreed | None) -> None:
    """Hold a signature against the task's; LoadError where they differ."""
    if agreed is not None and signature != agreed[0]:
        raise LoadError(f"its signature {signature} differs from {agreed[0]} of {agreed[1]}")


async def _check(file: _File, agreed: _Agreed | None = None) -> Signature:
    """Read a file without opening it: digest, format, signature; LoadError if one is wrong."""
    try:
        signature = await run_in_thread(lambda: inspect(file.path, digest=file.digest))
    except Exception as error:  # whatever a file makes a parser raise
        raise LoadError(file.named(error)) from error
    _fit(signature, agreed)
    return signature


async def _open(
    name: str,
    make: Callable[[], Runtime],
    named: Callable[[Exception], str],
    agreed: _Agreed | None,
    sizes: Sequence[int],
) -> Runtime:
    """Open a model in a thread and warm it up there; canceled, nothing of it is left.

    What errors say is `named` as people know the model. LoadError when it cannot be opened, is of
    another signature, or fails at zeros in one of the batch sizes.
    """
    stopped = threading.Event()
    opened: list[Runtime] = []

    def work() -> Runtime:
        runtime = make()
        try:
            _fit(runtime.signature, agreed)
            if not stopped.is_set():
                # What a pool does with it later; it has no thread before it is started.
                LocalInstance(name, runtime, sizes=sizes).warm_up()
        except BaseException:
            runtime.close()
            raise
        opened.append(runtime)
        return runtime

    try:
        return await run_in_thread(work, stopped.set)
    except asyncio.CancelledError:
        for runtime in opened:
            runtime.close()
        raise
    except LoadError:
        raise
    except ArtifactError as error:
        raise LoadError(named(error)) from error
    except WarmUpError as error:
        raise LoadError(str(error).removeprefix(f"{name} ")) from error
    except Exception as error:  # whatever a model makes a parser raise: it cannot serve
        said = " ".join(str(error).split()) or type(error).__name__
        raise LoadError(f"it cannot be opened: {named(ValueError(said))}") from error


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _size_of(file: _File) -> int:
    try:
        return file.path.stat().st_size
    except OSError:
        return 0
