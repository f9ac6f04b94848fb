"""Compilation with a disk cache that notices every change of the code that it holds.

Numba's own cache stamps a function with its file alone. A policy is inlined into the entry that
calls it, so an edited policy would go on running from the cache of an unedited entry; and a word
changed in a comment compiles a file anew. Here each compiled entry is a file named by the hash of
all that it may contain: the code of its module and of its arguments' classes with all that they
import (`inferway.site.sources`), the types, the compiler and the processor.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numba.core import event, types
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature

from inferway.site import sources
from inferway.site.cache import cache_root, prune, read, write
from inferway.site.handle import Handle
from inferway.site.parts import EntryCompiler, Kernel

F = TypeVar("F", bound=Callable[..., Any])

_STARTED_S = time.time()
MARK = 12
"""Digits of the hash of its code with which a module's name ends, where a policy file is one."""


def jit(function: F) -> F:
    """Compile a kernel that other kernels call; it is cached with them."""
    return function if numba.config.DISABLE_JIT else cast("F", Kernel(function))


def entry(function: F) -> F:
    """Compile a function that Python calls, with a cache keyed by its code.

    Its arguments' types choose the policy. Without a disk cache where no folder can be written.
    """
    if numba.config.DISABLE_JIT:
        return function
    compiled = numba.njit(nogil=True, pipeline_class=EntryCompiler)(function)
    # What `cache=True` does, with another cache.
    compiled._cache = _CodeCache(function)
    return compiled


def call_of(function: Callable[..., Any], *kinds: Any) -> Callable[..., Any]:
    """The compiled form of an `entry` for arguments of these types of Numba.

    A call looks at no types any more: its arguments have to be of these.
    """
    if numba.config.DISABLE_JIT:
        return function
    found: Callable[..., Any] = function.compile(kinds)  # type: ignore[attr-defined]
    return found


def fingerprint(module: str, *classes: type) -> str:
    """Hash of the code of a module, of classes and of all that they import, 16 digits."""
    names = {module, *(found.__module__ for found in classes)}
    return sources.digest_of(names, cache_root())[:16]


class Compilation(NamedTuple):
    """One function that was not in the cache."""

    function: str
    modules: tuple[str, ...]
    """Modules of its arguments' classes: a policy's, for one."""
    seconds: float


@contextmanager
def watched(
    begun: Callable[[], None] = lambda: None,
    done: Callable[[Compilation], None] = lambda compilation: None,
) -> Iterator[None]:
    """Tell when an entry begins to be compiled and when it is, in whatever thread."""
    listener = _Listener(begun, done)
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)


class _Listener(event.Listener):  # type: ignore[misc]
    """Of entries only: what they contain is compiled with them."""

    def __init__(self, begun: Callable[[], None], done: Callable[[Compilation], None]) -> None:
        self._begun, self._done = begun, done
        self._since_s: dict[Any, float] = {}

    def on_start(self, event: Any) -> None:
        """Note the time."""
        compiled, args = event.data["dispatcher"], event.data["args"]
        if isinstance(compiled._cache, _CodeCache):
            self._since_s[compiled, args] = time.perf_counter()
            self._begun()

    def on_end(self, event: Any) -> None:
        """Tell what was compiled."""
        compiled, args = event.data["dispatcher"], event.data["args"]
        since_s = self._since_s.pop((compiled, args), None)
        if since_s is not None:
            homes = {home for kind in args for home in _homes(kind) if home}
            name = f"{compiled.py_func.__module__}.{compiled.py_func.__name__}"
            took_s = time.perf_counter() - since_s
            self._done(Compilation(name, tuple(sorted(homes)), took_s))


class _CodeCache(_Cache):  # type: ignore[misc]
    """The compiled forms of one function, a file each."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._keys: dict[Any, Path | None] = {}

    @property
    def cache_path(self) -> str:
        """The folder."""
        return str(cache_root())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled form for these types, or None."""
        target_context.refresh()
        file = self._keys[sig] = self._file(sig, target_context.codegen())
        content = None if file is None else read(file)
        if content is None:
            return None
        try:
            parts = pickle.loads(content)
        except Exception:  # a class that is gone, or made of something else
            return None
        return CompileResult._rebuild(target_context, *parts)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled form. One that cannot be kept is compiled again by the next process."""
        file = self._keys.get(sig)
        if file is None or data.lifted or data.library.has_dynamic_globals:
            return
        content = dumps(data._reduce())
        with suppress(OSError):
            write(file, content)
            prune(file.parent)

    def enable(self) -> None:
        """Nothing: it always is."""

    def disable(self) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing: what is out of date has another name."""

    def _file(self, signature: Any, codegen: Any) -> Path | None:
        """Where the compiled form is kept; None where its code is not known for certain."""
        root = cache_root()
        args, returned = normalize_signature(signature)
        homes = [home for kind in args for home in _homes(kind)]
        if root is None or None in homes:
            return None
        modules = {self._function.__module__, *filter(None, homes)}
        code = _digest(frozenset(modules), root)
        if code is None:
            return None
        digest = hashlib.sha256(code.encode())
        cells = tuple(cell.cell_contents for cell in self._function.__closure__ or ())
        for part in (
            self._function.__qualname__,
            sorted(modules),
            str(args),
            str(returned),
            hashlib.sha256(dumps(cells)).hexdigest() if cells else "",
            _compiler(),
            codegen.magic_tuple(),
        ):
            digest.update(repr(part).encode() + b"\0")
        name = self._function.__name__.strip("_")
        return root / f"{name}-{digest.hexdigest()[:40]}.nbc"


def _compiler() -> tuple[object, ...]:
    """What makes the same code another machine's."""
    import llvmlite

    config = numba.config
    return (
        importlib.util.MAGIC_NUMBER,
        sys.version_info[:2],
        numba.__version__,
        llvmlite.__version__,
        np.__version__,
        [str(getattr(config, name, None)) for name in ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE")],
        [str(getattr(config, name, None)) for name in ("BOUNDSCHECK", "ENABLE_AVX", "DEBUGINFO")],
    )


def _homes(kind: Any) -> Iterator[str | None]:
    """Modules of the classes that a type is made of; None for a function, whose code is unknown."""
    if isinstance(kind, types.Dispatcher | types.Function):
        yield None
    elif isinstance(kind, Handle):
        yield from _homes(kind.content)
    elif isinstance(kind, types.BaseTuple):  # type: ignore[attr-defined]
        if isinstance(kind, types.BaseNamedTuple):  # type: ignore[attr-defined]
            yield kind.instance_class.__module__
        for part in kind:
            yield from _homes(part)


@cache
def _digest(modules: frozenset[str], root: Path) -> str | None:
    """Hash of these modules' code, or None where this process may have loaded what it was before.

    What is imported when a module is has been loaded by now: later edits change nothing here.
    """
    found = sources.reachable(modules, root)
    if not modules <= found.keys():  # typed into a console
        return None
    for module, source in found.items():
        if module.endswith(source.digest[:MARK]):  # named by its code
            continue
        file = getattr(sys.modules.get(module), "__file__", None)
        if file and Path(file).stat().st_mtime > _STARTED_S:
            return None
    return sources.digest_of(modules, root)
