"""Compilation with a disk cache that notices every change of the code that it holds.

Numba's own cache stamps a function with its file alone. A policy is inlined into the entry that
calls it, so an edited policy would go on running from the cache of an unedited entry; and a word
changed in a comment compiles a file anew. Here each compiled entry is a file named by the hash of
all that it may contain: the code of its module and of its arguments' classes with all that they
import (`inferway.site.cache`), the types, the compiler and the processor.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numba.core import event, types
from numba.core.caching import _Cache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult, Flags, _LowerResult
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.lowering import Lower
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature
from numba.core.typed_passes import BaseNativeLowering, NativeLowering
from numba.core.types.misc import unliteral
from numba.core.typing import make_concrete_template
from numba.extending import overload

from inferway.site.cache import cache_root, digest_of, prune, reachable, read, write
from inferway.site.handle import Handle, made_of


# A part's own code; what it calls is only remembered, to be linked where the whole is.
class _PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    seldom = False

    def finalize(self) -> None:
        self._finalized = True

    def own_module(self) -> Any:
        module = self._final_module
        for function in module.functions:
            if not function.is_declaration and function.linkage.name == "external":
                function.linkage = "linkonce_odr"
                if self.seldom:
                    function.add_function_attribute("noinline")
        return module

    def _get_module_for_linking(self) -> Any:
        """The part with all that it calls, for a caller that knows of no parts."""
        whole = self.own_module().clone()
        for _, module in _linked(self):
            whole.link_in(module, preserve=True)
        return whole


class _EntryLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of an entry with that of all its parts."""

    def finalize(self) -> None:
        self._codegen._check_llvm_bugs()
        self._raise_if_finalized()
        inner: set[str] = set()
        defined_by: dict[str, Any] = {}
        for library, module in _linked(self):
            self._reload_init.update(library._reload_init)
            defined = [one.name for one in module.functions if not one.is_declaration]
            if isinstance(library, _PartLibrary):
                inner.update(defined)
            defined_by |= dict.fromkeys(defined, module)
            self._final_module.link_in(module, preserve=True)
        # Linking leaves out what has no caller yet; one may have come with a later module.
        while lacking := _lacking(self._final_module) & defined_by.keys():
            self._final_module.link_in(defined_by.pop(min(lacking)), preserve=True)
        # A part that no caller is left of, since what it decided was known, was not linked.
        for one in self._final_module.functions:
            if one.name in inner and not one.is_declaration:
                one.linkage = "internal"
        self._optimize_final_module()
        self._final_module.verify()
        self._finalize_final_module()


def _lacking(module: Any) -> set[str]:
    """Names of functions that a module calls and does not have."""
    return {one.name for one in module.functions if one.is_declaration}


def _linked(library: Any) -> Iterator[tuple[Any, Any]]:
    """All that has to be linked with a library, each once, and what is linked of it."""
    seen, open_ = {library}, [library]
    while open_:
        one = open_.pop()
        is_part = isinstance(one, _PartLibrary)
        if one is not library:
            yield one, one.own_module() if is_part else one._get_module_for_linking()
        if one is library or is_part:
            fresh = [other for other in one._linking_libraries if other not in seen]
            seen.update(fresh)
            open_ += fresh


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(BaseNativeLowering):  # type: ignore[misc]
    """Makes what other compiled code can link, and no machine code."""

    _name = "inferway_part_lowering"
    lowering_class = Lower

    def run_pass(self, state: Any) -> bool:
        library = _new_library(_PartLibrary, state)
        library.seldom = state.func_id.func in _SELDOM
        super().run_pass(state)
        lowered = state["cr"]
        library.finalize()
        # Callers look it up by what Python would call: some builtin function, each another one.
        call: Any = [].append
        state.targetctx.insert_user_function(call, lowered.fndesc, [library])
        state.reload_init.extend(library._reload_init)
        state["cr"] = _LowerResult(lowered.fndesc, lowered.call_helper, cfunc=call, env=lowered.env)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _EntryLowering(BaseNativeLowering):  # type: ignore[misc]
    """Makes machine code of a function and of all its parts."""

    _name = "inferway_entry_lowering"
    lowering_class = Lower

    def run_pass(self, state: Any) -> bool:
        from numba.core.environment import lookup_environment

        library = _new_library(_EntryLibrary, state)
        super().run_pass(state)
        for variable in library._final_module.global_variables:
            named = variable.name.startswith("_ZN08NumbaEnv")
            environment = lookup_environment(variable.name) if named else None
            if environment is not None:
                library.codegen.set_env(variable.name, environment)
        return True


def _new_library(kind: Any, state: Any) -> Any:
    state.library = kind(state.targetctx.codegen(), state.func_id.func_qualname)
    state.library.enable_object_caching()
    return state.library


class _Settings(Flags):  # type: ignore[misc]
    """Settings of the compiler that are alike where what they mean for a callee is."""

    __slots__ = ["_known"]

    def __init__(self, copy_from: Any = None) -> None:
        super().__init__(copy_from)
        self._known: tuple[Any, ...] | None = None

    def _key(self) -> tuple[Any, ...]:
        if self._known is None:
            told = self.nrt, self.error_model, self.boundscheck, self.debuginfo
            self._known = (hash(told), told, self.fastmath)
        return self._known

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Settings) and self._key() == other._key()

    def __hash__(self) -> int:
        return int(self._key()[0])


class EntryCompiler(Compiler):  # type: ignore[misc]
    """Compiles what Python calls: leaves out what C would call."""

    lowering: Any = _EntryLowering
    left_out: tuple[str, ...] = ("no_cfunc_wrapper",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.state.flags = _Settings(self.state.flags)
        for option in self.left_out:
            setattr(self.state.flags, option, True)

    def define_pipelines(self) -> list[PassManager]:
        """The usual passes but for the last."""
        (usual,) = super().define_pipelines()
        passes = PassManager("inferway")
        for step, description in usual.passes:
            passes.add_pass(self.lowering if step is NativeLowering else step, description)
        passes.finalize()
        return [passes]


class PartCompiler(EntryCompiler):
    """Compiles what only compiled code calls: leaves out all wrappers, and machine code."""

    lowering = _PartLowering
    left_out = ("no_cfunc_wrapper", "no_cpython_wrapper", "no_compile")


# Options of what is put in its callers' place: called, a function counts references of every
# array that the site holds.
_IN_PLACE = {"forceinline": True}
INLINE = {**_IN_PLACE, "pipeline_class": PartCompiler}


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """A function that is a part where compiled code calls it, and an entry where Python does."""

    def __init__(
        self, py_func: Callable[..., Any], targetoptions: Any = None, **options: Any
    ) -> None:
        chosen = {"nopython": True, **(targetoptions or {})}
        super().__init__(py_func, targetoptions=chosen, pipeline_class=EntryCompiler, **options)

    @cached_property
    def _part(self) -> _Part:
        """The part, which nobody asks for where the entries that call it are in the cache."""
        chosen = self.targetoptions
        return _Part(self.py_func, targetoptions=chosen, pipeline_class=PartCompiler)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """The part's signature."""
        signature, args, kws = self._part.signature(args, kws)
        template = make_concrete_template(
            f"CallTemplate({self.py_func.__name__})", self.py_func.__name__, [signature]
        )
        return template, signature.pysig, args, kws

    def get_overload(self, sig: Any) -> Any:
        """Find what stands for the part."""
        return self._part.get_overload(sig)


class _Part(CPUDispatcher):  # type: ignore[misc]
    def signature(self, args: Any, kws: Any) -> Any:
        pysig, args = self._compiler.fold_argument_types(args, kws)
        general = tuple(map(_general, args))
        if general not in self.overloads:
            self.compile(general)
        return self.overloads[general].signature.replace(pysig=pysig), args, {}

    def add_overload(self, cres: Any) -> None:
        self.overloads[tuple(cres.signature.args)] = cres


def _general(kind: Any) -> Any:
    """A type for all the like: one form of a function does for every number in a place."""
    kind = unliteral(kind)
    return types.int64 if kind in (types.int8, types.int16, types.int32) else kind


# Of each function that `either` has made: the named tuple, and the function for it and for others.
BRANCHES: dict[Callable[..., Any], tuple[type, Any, Any]] = {}


def either(kind: type, function: Any, other: Any) -> Callable[..., Any]:
    """Make a function that is one of two, by whether its first argument is such a named tuple.

    Compiled code has only the one that its types choose.
    """

    def chosen(first: Any, *rest: Any) -> Any:
        return (function if isinstance(first, kind) else other)(first, *rest)

    BRANCHES[chosen] = kind, function, other

    @overload(chosen, strict=False, jit_options=INLINE)
    def _by_type(first: Any, *rest: Any) -> Any:
        one = function if made_of(first) is kind else other
        return getattr(one, "py_func", one)

    return chosen


F = TypeVar("F", bound=Callable[..., Any])

_STARTED_S = time.time()
# Digits of the hash of its code with which a module's name ends, where a policy file is one.
MARK = 12


def jit(function: F) -> F:
    """Compile a kernel that other kernels call; it is cached with them."""
    return function if numba.config.DISABLE_JIT else cast("F", Kernel(function))


# Functions that are called wherever compiled code names them, never put in their callers' place.
_SELDOM: set[Callable[..., Any]] = set()


def seldom(function: F) -> F:
    """Compile a kernel, as `jit` does, of which there is one for all callers.

    For what is long and off the usual way: a copy in each caller would be compiled each time.
    """
    if numba.config.DISABLE_JIT:
        return function
    _SELDOM.add(function)
    # What a policy calls would be put in its place, as the policy is in its caller's.
    return cast("F", Kernel(function, {"forceinline": False}))


def often(function: F) -> F:
    """Compile a kernel, as `jit` does, that is always put in its callers' place.

    For what is short and done at most events, where a call would take as long as the rest.
    """
    return function if numba.config.DISABLE_JIT else cast("F", Kernel(function, _IN_PLACE))


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
    compiled: Any = function
    # To look it up by `compile` takes locks and timers, a hundred times as long.
    known = compiled.overloads.get(kinds)
    made: Callable[..., Any] = compiled.compile(kinds) if known is None else known.entry_point
    return made


def address_of(function: Callable[..., Any], *kinds: Any) -> Any:
    """Where the compiled form of an `entry` lies that `call_of` gives, for `call_at`.

    Where nothing is compiled it is the function itself.
    """
    made = call_of(function, *kinds)
    if numba.config.DISABLE_JIT:
        return made
    compiled: Any = function
    found = compiled.overloads[kinds]
    return found.library.get_pointer_to_function(found.fndesc.llvm_func_name)


def fingerprint(module: str, *classes: type) -> str:
    """Hash of the code of a module, of classes and of all that they import, 16 digits."""
    return digest_of({module, *(one.__module__ for one in classes)}, cache_root())[:16]


class Compilation(NamedTuple):
    """One function that was not in the cache."""

    function: str
    modules: tuple[str, ...]  # Modules of its arguments' classes: a policy's, for one
    seconds: float


@contextmanager
def watched(
    begun: Callable[[], None] = lambda: None,
    done: Callable[[Compilation], None] = lambda compilation: None,
) -> Iterator[None]:
    """Tell when an entry begins to be compiled and when it is, in whatever thread."""
    with event.install_listener("numba:compile", _Listener(begun, done)):
        yield


class _Listener(event.Listener):  # type: ignore[misc]
    """Of entries only: what they contain is compiled with them."""

    def __init__(self, begun: Callable[[], None], done: Callable[[Compilation], None]) -> None:
        self._begun, self._done = begun, done
        self._since_s: dict[Any, float] = {}

    def on_start(self, event: Any) -> None:
        compiled, args = event.data["dispatcher"], event.data["args"]
        if isinstance(compiled._cache, _CodeCache):
            self._since_s[compiled, args] = time.perf_counter()
            self._begun()

    def on_end(self, event: Any) -> None:
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
        return str(cache_root())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        file = self._keys[sig] = self._file(sig, target_context.codegen())
        content = None if file is None else read(file)
        if content is not None:
            with suppress(Exception):  # a class that is gone, or made of something else
                return CompileResult._rebuild(target_context, *pickle.loads(content))
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled form. One that cannot be kept is compiled again by the next process."""
        file = self._keys.get(sig)
        if file is not None and not data.lifted and not data.library.has_dynamic_globals:
            content = dumps(data._reduce())
            with suppress(OSError):
                write(file, content)
                prune(file.parent)

    def _nothing(self) -> None:
        """It is always on, and what is out of date has another name."""

    enable = disable = flush = _nothing

    def _file(self, signature: Any, codegen: Any) -> Path | None:
        """File of the compiled form; None where its code is not known for certain."""
        root, function = cache_root(), self._function
        args, returned = normalize_signature(signature)
        homes = [home for kind in args for home in _homes(kind)]
        if root is None or None in homes:
            return None
        modules = {function.__module__, *filter(None, homes)}
        code = _digest(frozenset(modules), root)
        if code is None:
            return None
        cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
        captured = hashlib.sha256(dumps(cells)).hexdigest() if cells else ""
        signed = function.__qualname__, sorted(modules), str(args), str(returned), captured
        whole = repr((code, signed, _compiler(), codegen.magic_tuple()))
        digest = hashlib.sha256(whole.encode()).hexdigest()
        return root / f"{function.__name__.strip('_')}-{digest[:40]}.nbc"


def _compiler() -> tuple[object, ...]:
    """Properties that make the same code another machine's."""
    import llvmlite

    options = "OPT LOOP_VECTORIZE SLP_VECTORIZE BOUNDSCHECK ENABLE_AVX DEBUGINFO"
    return (
        importlib.util.MAGIC_NUMBER,
        sys.version_info[:2],
        *(one.__version__ for one in (numba, llvmlite, np)),
        *(str(getattr(numba.config, name, None)) for name in options.split()),
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
    found = reachable(modules, root)
    if not modules <= found.keys():  # typed into a console
        return None
    for module, source in found.items():
        if module.endswith(source.digest[:MARK]):  # named by its code
            continue
        file = getattr(sys.modules.get(module), "__file__", None)
        if file and Path(file).stat().st_mtime > _STARTED_S:
            return None
    return digest_of(modules, root)
