"""The models that a node has in memory, by task and variant.

A model's weights are there once, however many copies of the variant run: ONNX Runtime runs one
session from any number of threads. Sites borrow it (`Shelf.lend`); as a site closes what it runs
when it goes, each loan is closed by itself, and the weights go when the last one has come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from inferway.deployment.remote import runtime_of
from inferway.live.growths import Growths
from inferway.live.headroom import is_closed
from inferway.live.models import PASSING, LoadError
from inferway.live.node.loading import Agreed, File, Files, check, fit, opened
from inferway.live.store.store import Progress
from inferway.live.threads import run_in_thread
from inferway.protocol import Signature
from inferway.runtime import OnnxRuntime, RemoteError, RemoteRuntime, Runtime
from inferway.runtime.growth import Growth
from inferway.site.view import RUN_ROWS

if TYPE_CHECKING:
    from inferway.deployment import Deployment, Remote, Task, Variant
    from inferway.live.store.store import ModelStore

T = TypeVar("T")
Pair = tuple[str, str]
"""Task and variant."""


class Shelf:
    """What is loaded; for one event loop.

    Parameters
    ----------
    deployment
        Names the models. Of a task with a `count` above 1, ``NAME-0`` and so on are the names.
    store
        Fetches files and keeps them.
    growths
        Says what runs take; None where nobody does.
    """

    def __init__(
        self, deployment: Deployment, store: ModelStore, growths: Growths | None = None
    ) -> None:
        self._tasks = deployment.named()
        self._store = store
        self._files = Files(store)
        self._loaded: dict[Pair, _Weights | None] = {}
        """None where another server runs the variant: nothing of it is here."""
        self._ready: dict[Pair, _Ready] = {}
        self._agreed: dict[str, Agreed] = {}
        self._growths = growths
        self._growth: dict[Pair, tuple[Growth, str] | None] = {}
        self.freed: Callable[[], None] = _nothing
        """Called when weights that were to go are gone at last."""

    def __contains__(self, pair: object) -> bool:
        return pair in self._loaded

    def signature(self, task: str) -> Signature | None:
        """What a task takes and gives, as far as known: see `learn`."""
        known = self._agreed.get(task)
        return None if known is None else known.signature

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
            found = []
            for variant in self._task(task).variants.values():
                file = None if variant.model is None else self._files.here(variant.model)
                if file is not None:
                    found.append((_size_of(file), variant.name, file))
            for _, name, file in sorted(found):
                try:
                    said = await check(file)
                except LoadError:
                    continue  # whoever loads it hears why
                self._agreed.setdefault(task, Agreed(said, name))
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
        try:
            described = self._variant(task, variant)
            if _is_elsewhere(described):
                await self._reach(task, described)
                self._ready[pair] = _Ready(None, ExitStack())
                return
            ready = await self._fetched(described, progress)
            with ready.stack as held:
                await self._good(described, ready, check(ready.have, self._agreed.get(task)))
                self._ready[pair] = _Ready(ready.file, held.pop_all())
        except LoadError as error:
            raise _named(pair, error) from error

    def is_ready(self, task: str, variant: str) -> bool:
        """Whether a variant is loaded, or prepared."""
        return (task, variant) in self._loaded or (task, variant) in self._ready

    def forget(self, task: str, variant: str) -> None:
        """Let go what `prepare` has prepared."""
        ready = self._ready.pop((task, variant), None)
        if ready is not None:
            ready.stack.close()

    async def load(self, task: str, variant: str, progress: Progress | None = None) -> None:
        """Have a variant in memory, ready to run; one that is there already costs nothing.

        Canceled, it leaves nothing but a file, or its beginning, in the store. One call at a time.

        Parameters
        ----------
        task, variant
            What to load.
        progress
            Called on the loop with the bytes that are there of those that are to come, where the
            file must be fetched first.

        Raises
        ------
        LoadError
            When it cannot be loaded; the message begins with its name.
        """
        pair = task, variant
        weights = self._loaded.get(pair)
        if weights is not None:
            weights.leaving = False
        if pair in self._loaded:
            return
        try:
            described = self._variant(task, variant)
            if not _is_elsewhere(described):
                self._loaded[pair] = _Weights(await self._opened(pair, described, progress))
                return
            if self._ready.pop(pair, None) is None:
                await self._reach(task, described)
            self._loaded[pair] = None
        except LoadError as error:
            raise _named(pair, error) from error

    def lend(self, task: str, variant: str) -> Runtime:
        """Give a site what runs a loaded variant; the site closes it.

        Any thread may borrow what stays. A remote variant's is made anew each time: there are no
        weights to share, and what it counts is the site's.

        Raises
        ------
        LoadError
            If it is not loaded.
        """
        pair = task, variant
        if pair not in self._loaded:
            raise LoadError(f"{task}/{variant} is not loaded, so that nothing can run it")
        weights = self._loaded[pair]
        if weights is not None:
            return _Loan(weights, lambda: self._returned(pair, weights))
        remote = self._variant(task, variant).remote
        assert remote is not None
        return self._runtime_of(task, remote)

    def growth(self, task: str, variant: str) -> tuple[Growth, str] | None:
        """What runs of a loaded variant take, and where that comes from; None if not known."""
        return self._growth.get((task, variant))

    def unload(self, task: str, variant: str) -> bool:
        """Free a variant's memory, at once or when the last loan comes back; whether it is free."""
        pair = task, variant
        weights = self._loaded.get(pair)
        if weights is None:
            self._loaded.pop(pair, None)
            return True
        weights.leaving = True
        if weights.loans:
            return False
        del self._loaded[pair]
        weights.runtime.close()
        return True

    def close(self) -> None:
        """Free everything; what is lent goes when it comes back."""
        for pair in tuple(self._ready):
            self.forget(*pair)
        for pair in tuple(self._loaded):
            self.unload(*pair)

    async def _fetched(self, variant: Variant, progress: Progress | None) -> _Ready:
        model = variant.model
        if model is None:
            raise LoadError("it has no `model`, so that nothing can be loaded")
        digest = await self._files.digest_of(model)
        with ExitStack() as stack:
            if digest is not None:
                stack.enter_context(self._store.use(digest))
            file = await self._files.have(model, digest, progress)
            return _Ready(file, stack.pop_all())

    async def _opened(self, pair: Pair, variant: Variant, progress: Progress | None) -> OnnxRuntime:
        task, name = pair
        ready = self._ready.pop(pair, None) or await self._fetched(variant, progress)
        sizes = (1,) if variant.batch is None else variant.batch.sizes
        # Once it is open, the file is not read again, and the store may give its room to others.
        with ready.stack:
            work = opened(f"{task}/{name}", ready.have, self._agreed.get(task), sizes)
            runtime = await self._good(variant, ready, work)
            model, growths = variant.model, self._growths
            if growths is not None and model is not None and is_closed(runtime.signature):
                path, largest = ready.have.path, max(sizes) if variant.batch else RUN_ROWS
                try:
                    self._growth[pair] = await run_in_thread(
                        lambda: growths.of(model, path, largest)
                    )
                except BaseException:
                    runtime.close()
                    raise
        self._agreed.setdefault(task, Agreed(runtime.signature, name))
        return runtime

    async def _good(self, variant: Variant, ready: _Ready, work: Coroutine[Any, Any, T]) -> T:
        """Do what may find a file bad."""
        try:
            return await work
        except LoadError:
            assert variant.model is not None
            await self._files.doubt(variant.model, ready.have)
            raise

    async def _reach(self, task: str, variant: Variant) -> None:
        """Ask another server for what it runs; one that is down may be back."""
        assert variant.remote is not None
        await self.learn(task)
        agreed = self._agreed.get(task)
        try:
            runtime = self._runtime_of(task, variant.remote)
        except ValueError as error:
            raise LoadError(str(error)) from error
        try:
            await run_in_thread(runtime.learn)
        except RemoteError as error:
            if error.fault not in PASSING:
                raise LoadError(str(error)) from error
            if agreed is None:
                raise LoadError(
                    f"{error}, and nothing else says what the task takes and gives"
                ) from error
        else:
            fit(runtime.signature, agreed)
            self._agreed.setdefault(task, Agreed(runtime.signature, variant.name))
        finally:
            runtime.close()

    def _runtime_of(self, task: str, remote: Remote) -> RemoteRuntime:
        agreed = self._agreed.get(task)
        return runtime_of(remote, signature=None if agreed is None else agreed.signature)

    def _returned(self, pair: Pair, weights: _Weights) -> None:
        # Wherever it was closed, or forgotten.
        if weights.leaving and not weights.loans:
            with suppress(RuntimeError):  # the loop has ended
                weights.loop.call_soon_threadsafe(self._look, pair, weights)

    def _look(self, pair: Pair, weights: _Weights) -> None:
        if self._loaded.get(pair) is weights and weights.leaving and self.unload(*pair):
            self.freed()

    def _task(self, name: str) -> Task:
        found = self._tasks.get(name)
        if found is None:
            raise LoadError(f"there is no task {name!r}; there are {', '.join(self._tasks)}")
        return found

    def _variant(self, task: str, name: str) -> Variant:
        found = self._task(task).variants.get(name)
        if found is None:
            raise LoadError(f"the task {task!r} has no variant {name!r}")
        return found


class _Weights:
    """A loaded model, and whoever has borrowed it; for the loop on which it was made."""

    def __init__(self, runtime: OnnxRuntime) -> None:
        self.runtime = runtime
        self.loop = asyncio.get_running_loop()
        # Putting in and taking out are one step each, from any thread.
        self.loans: set[int] = set()
        self.leaving = False


class _Ready:
    """A file that is here and stays, none of a remote variant; closing the stack lets it go."""

    def __init__(self, file: File | None, stack: ExitStack) -> None:
        self.file, self.stack = file, stack

    @property
    def have(self) -> File:
        """The file, where there is one."""
        assert self.file is not None
        return self.file


class _Loan:
    """A loaded model in a site's hands: closed, or forgotten, it is given back.

    Parameters
    ----------
    weights
        What is lent.
    returned
        Called when it is back, in the thread that closes it.
    """

    steady = True

    def __init__(self, weights: _Weights, returned: Callable[[], None]) -> None:
        self.signature = weights.runtime.signature
        self.call = weights.runtime.call
        self._weights: _Weights | None = weights
        self._returned = returned
        weights.loans.add(id(self))

    def run(self, inputs: dict[str, NDArray[Any]], call: Any = None) -> dict[str, NDArray[Any]]:
        """Answer one batch; see `inferway.runtime.Runtime.run`."""
        weights = self._weights
        if weights is None:
            raise RuntimeError("the model was given back; borrow it again to run it")
        return weights.runtime.run(inputs, call)

    def close(self) -> None:
        """Give it back; calls that are under way still end."""
        weights, self._weights = self._weights, None
        if weights is not None:
            weights.loans.discard(id(self))
            self._returned()

    def __del__(self) -> None:
        # A site that was given up while it was made closes nothing.
        self.close()


def _is_elsewhere(variant: Variant) -> bool:
    return variant.model is None and variant.remote is not None


def _size_of(file: File) -> int:
    try:
        return file.path.stat().st_size
    except OSError:
        return 0


def _named(pair: Pair, error: LoadError) -> LoadError:
    return LoadError(f"{pair[0]}/{pair[1]}: {error}")


def _nothing() -> None:
    pass
