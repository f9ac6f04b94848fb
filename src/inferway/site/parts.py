"""Parts of compiled code: kernels that only other kernels call, compiled as far as linking needs.

Numba makes machine code of every function, a wrapper with which Python calls it and another for C,
and optimizes it with all that it calls, so that what stands deep is optimized again at each level.
A part stays what the compiler's front end makes of it. Only what Python calls, an entry, takes all
of its parts in, is optimized as a whole, once, and becomes machine code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags, _LowerResult
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.lowering import Lower
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import BaseNativeLowering, NativeLowering
from numba.core.types.misc import unliteral
from numba.core.typing import make_concrete_template


class _PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """A part's own code; what it calls is only remembered."""

    def finalize(self) -> None:
        """Leave the code as it is."""
        self._finalized = True

    def own_module(self) -> Any:
        """The part alone, to be linked where all that it calls is linked, too."""
        module = self._final_module
        for function in module.functions:
            if not function.is_declaration and function.linkage.name == "external":
                function.linkage = "linkonce_odr"
        return module

    def _get_module_for_linking(self) -> Any:
        """The part with all that it calls, for a caller that knows of no parts."""
        whole = self.own_module().clone()
        for library in _closure(self):
            if library is not self:
                whole.link_in(_linkable(library), preserve=True)
        return whole


class _EntryLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of an entry with that of all its parts."""

    def finalize(self) -> None:
        """Link each part once, and optimize the whole."""
        self._codegen._check_llvm_bugs()
        self._raise_if_finalized()
        inner: list[str] = []
        for library in _closure(self):
            if library is not self:
                self._reload_init.update(library._reload_init)
                module = _linkable(library)
                if isinstance(library, _PartLibrary):
                    inner += (one.name for one in module.functions if not one.is_declaration)
                self._final_module.link_in(module, preserve=True)
        for name in inner:
            self._final_module.get_function(name).linkage = "internal"
        self._optimize_final_module()
        self._final_module.verify()
        self._finalize_final_module()


def _closure(library: Any) -> Iterator[Any]:
    """A library and all that have to be linked with it, each once."""
    seen, open_ = {library}, [library]
    while open_:
        one = open_.pop()
        yield one
        if one is library or isinstance(one, _PartLibrary):
            for other in one._linking_libraries:
                if other not in seen:
                    seen.add(other)
                    open_.append(other)


def _linkable(library: Any) -> Any:
    if isinstance(library, _PartLibrary):
        return library.own_module()
    return library._get_module_for_linking()


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(BaseNativeLowering):  # type: ignore[misc]
    """Makes what other compiled code can link, and no machine code."""

    _name = "inferway_part_lowering"
    lowering_class = Lower

    def run_pass(self, state: Any) -> bool:
        """Lower the function, and let others find it."""
        library = _new_library(_PartLibrary, state)
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
        """Lower the function, and give the parts the environments that they refer to."""
        from numba.core.environment import lookup_environment

        library = _new_library(_EntryLibrary, state)
        super().run_pass(state)
        for variable in library._final_module.global_variables:
            environment = None
            if variable.name.startswith("_ZN08NumbaEnv"):
                environment = lookup_environment(variable.name)
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
    """Compiles what Python calls."""

    lowering: Any = _EntryLowering

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.state.flags = _Settings(self.state.flags)
        self.settle(self.state.flags)

    def define_pipelines(self) -> list[PassManager]:
        """The usual passes but for the last."""
        (usual,) = super().define_pipelines()
        passes = PassManager("inferway")
        for step, description in usual.passes:
            passes.add_pass(self.lowering if step is NativeLowering else step, description)
        passes.finalize()
        return [passes]

    def settle(self, flags: Flags) -> None:
        """Leave out what C would call."""
        flags.no_cfunc_wrapper = True


class PartCompiler(EntryCompiler):
    """Compiles what only compiled code calls."""

    lowering = _PartLowering

    def settle(self, flags: Flags) -> None:
        """Leave out what Python and C would call, and machine code."""
        flags.no_cfunc_wrapper = flags.no_cpython_wrapper = flags.no_compile = True


INLINE = {"forceinline": True, "pipeline_class": PartCompiler}
"""Options of what is put in its callers' place: called, a function counts references of every
array that the site holds."""


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """A function that is a part where compiled code calls it, and an entry where Python does."""

    def __init__(
        self, py_func: Callable[..., Any], targetoptions: Any = None, **options: Any
    ) -> None:
        chosen = {"nopython": True, **(targetoptions or {})}
        super().__init__(py_func, targetoptions=chosen, pipeline_class=EntryCompiler, **options)
        self._part = _Part(py_func, targetoptions=chosen, pipeline_class=PartCompiler)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """The part's signature."""
        signature, args, kws = self._part.signature(args, kws)
        template = make_concrete_template(
            f"CallTemplate({self.py_func.__name__})", self.py_func.__name__, [signature]
        )
        return template, signature.pysig, args, kws

    def get_overload(self, sig: Any) -> Any:
        """What stands for the part."""
        return self._part.get_overload(sig)


class _Part(CPUDispatcher):  # type: ignore[misc]
    """Compiled forms of a function for other compiled code."""

    def signature(self, args: Any, kws: Any) -> Any:
        """Compile for such arguments, where that has not been; the signature."""
        pysig, args = self._compiler.fold_argument_types(args, kws)
        general = tuple(map(_general, args))
        if general not in self.overloads:
            self.compile(general)
        return self.overloads[general].signature.replace(pysig=pysig), args, {}

    def add_overload(self, cres: Any) -> None:
        """Remember it; Python cannot call it."""
        self.overloads[tuple(cres.signature.args)] = cres


def _general(kind: Any) -> Any:
    """A type for all the like: one form of a function does for every number in a place."""
    kind = unliteral(kind)
    return types.int64 if kind in (types.int8, types.int16, types.int32) else kind
