"""Handles: how compiled code passes a site's thirty arrays as one pointer.

A kernel that takes a NamedTuple of arrays takes each array as seven numbers and counts references
at every use: calls cost more than policies do, and compiling them takes minutes. A handle is a
pointer to the NamedTuple on the stack of the kernel that made it. Its fields are read as the
tuple's would be, a field that is a NamedTuple is a handle again, and nothing counts references:
whoever called the kernel holds the arrays.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.errors import TypingError
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    register_model,
    unbox,
)


class Handle(types.Type):  # type: ignore[misc]
    """The type of a handle to a NamedTuple of type `content`.

    It stands for the whole type in the name of every function that takes it, and so is short.
    """

    def __init__(self, content: Any) -> None:
        self.content = content
        digest = hashlib.sha256(str(content).encode()).hexdigest()[:16]
        super().__init__(name=f"{content.instance_class.__name__}[{digest}]")

    @staticmethod
    @cache
    def to(content: Any) -> Handle:
        """The one for a content."""
        return Handle(content)


@register_model(Handle)
class _HandleModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Handle) -> None:
        super().__init__(manager, kind, manager[kind.content].get_value_type().as_pointer())


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = Handle

    def generic_resolve(self, kind: Handle, name: str) -> Any:
        if name not in kind.content.fields:
            return None
        found = kind.content[kind.content.fields.index(name)]
        return Handle.to(found) if isinstance(found, types.BaseNamedTuple) else found


@lower_getattr_generic(Handle)
def _field(context: Any, builder: Any, kind: Handle, value: Any, name: str) -> Any:
    place = kind.content.fields.index(name)
    found = kind.content[place]
    pointer = cgutils.gep_inbounds(builder, value, 0, place)
    if isinstance(found, types.BaseNamedTuple):
        return pointer
    loaded = builder.load(pointer)
    if isinstance(found, types.Array):
        # Without an owner (its first two fields), an array has no references to count.
        for owner in (0, 1):
            null = cgutils.get_null_value(loaded.type.elements[owner])
            loaded = builder.insert_value(loaded, null, owner)
    else:  # who reads it gives its reference back
        context.nrt.incref(builder, found, loaded)
    return loaded


@intrinsic
def _handle(_context: Any, value: Any) -> Any:
    kind = value if isinstance(value, Handle) else Handle.to(value)

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        content = context.get_value_type(kind.content)
        place = cgutils.alloca_once(builder, content)
        if isinstance(value, Handle):
            size = context.get_constant(types.intp, context.get_abi_sizeof(content))
            cgutils.raw_memcpy(builder, place, args[0], size, 1)
        else:
            builder.store(args[0], place)
        return place

    return kind(value), code


# ``handle(named_tuple)``: a handle to it, valid until the kernel that asks for it returns.
# ``handle(handle)`` is one to a copy of what it leads to: where arrays lie, a kernel that goes on
# for long then knows without looking, for nobody else can have moved them.
handle: Callable[[Any], Any] = (lambda value: value) if numba.config.DISABLE_JIT else _handle


def made_of(kind: Any) -> type | None:
    """The class of the NamedTuple that a compiled value is, or that it is a handle to."""
    if isinstance(kind, Handle):
        kind = kind.content
    return kind.instance_class if isinstance(kind, types.BaseNamedTuple) else None


@intrinsic
def _at(_context: Any, address: Any, like: Any) -> Any:
    kind = like if isinstance(like, Handle) else Handle.to(like)

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(kind))

    return kind(types.int64, like), code


# ``at(address, like)``: a handle to what `pin` has laid out there, of the type of another one.
at: Callable[[Any, Any], Any] = (lambda address, like: address) if numba.config.DISABLE_JIT else _at


_WORD: Final = 8
# Of an array: owner and parent, which are none, elements, bytes of one, and where they are.
_ARRAY: Final = "QQqqQ"

# How `struct` writes them.
_NUMBERS: Final[dict[Any, str]] = {
    **dict(zip((types.int8, types.int16, types.int32, types.int64), "bhiq", strict=True)),
    **dict(zip((types.uint8, types.uint16, types.uint32, types.uint64), "BHIQ", strict=True)),
    types.float32: "f",
    types.float64: "d",
    types.boolean: "?",
}


class Pinned(NamedTuple):
    """A tuple as `inferway.site.compiled.call_of`'s functions take it, as long as this is kept."""

    handle: Any  # Its address; where nothing is compiled, the tuple itself
    kind: Any  # The type of its handle
    kept: Any = None  # What lies at the address, a `_Laid`

    def ending(self, last: Any) -> Pinned:
        """The same tuple for who takes another last field in it, and does not look at that.

        Fields before the last lie where they do whatever that is, so that it needs no memory of
        its own.
        """
        if self.kind is None:
            return Pinned(self.handle._replace(**{self.handle._fields[-1]: last}), None)
        return self._replace(kind=_ending(self.kind, last))


class _Laid(NamedTuple):
    """A tuple, the memory in which it is laid out, and how."""

    value: Any
    memory: Any
    plan: _Plan


def pin(value: Any, before: Pinned | None = None) -> Pinned:
    """Lay out a NamedTuple of numbers, arrays and tuples of these.

    What is written to its arrays is seen on both sides; its numbers are those of now. TypingError
    of Numba where compiled code has no type for one of its fields.

    Where a tuple of the same type was laid out `before`, whose place this one takes, the handle
    stays, and only parts that are others are written: TypingError where one has another type.
    """
    if numba.config.DISABLE_JIT:
        return Pinned(value, None)
    if before is not None:
        laid: _Laid = before.kept
        places = zip(laid.plan.leaves, _parts(laid.value), _parts(value), strict=True)
        news = [(place, part) for place, old, part in places if part is not old]
        for (_, leaf, _), part in news:
            if numba.typeof(part) != leaf:
                raise TypingError(f"{numba.typeof(part)} cannot take the place of {leaf}")
        _write(laid.memory, news)
        return before._replace(kept=laid._replace(value=value))
    try:
        traits = _traits(value)
        plan = _PLANS.get(traits)
        if plan is None:
            _PLANS[traits] = plan = _plan(numba.typeof(value))
    except ValueError as error:
        raise TypingError(str(error)) from error
    memory = np.zeros(plan.words, np.int64)
    _write(memory, zip(plan.leaves, _parts(value), strict=True))
    return Pinned(memory.ctypes.data, plan.kind, _Laid(value, memory, plan))


def _write(memory: Any, parts: Iterable[tuple[_Leaf, Any]]) -> None:
    written, address = memory.data, memory.ctypes.data
    for (offset, leaf, write), part in parts:
        if write is None:
            _store(part, address + offset)
        elif isinstance(leaf, types.Array):
            owned = np.asarray(part)
            place = owned.__array_interface__["data"][0]
            words = (0, 0, owned.size, owned.itemsize, place, *owned.shape, *owned.strides)
            write(written, offset, *words)
        else:
            write(written, offset, *(() if part is None else (part,)))


@cache
def _ending(kind: Handle, last: Any) -> Handle:
    fields = (*kind.content.types[:-1], numba.typeof(last))
    return Handle.to(types.BaseTuple.from_types(fields, kind.content.instance_class))


# Where a value stands that is no tuple, its type, and what writes it, None where only compiled code
# can.
_Leaf = tuple[int, Any, Callable[..., None] | None]


class _Plan(NamedTuple):
    """Layout of tuples of one type."""

    kind: Handle
    words: int
    leaves: tuple[_Leaf, ...]


# By `_traits`: to ask Numba for the type of thirty arrays takes longer than to lay them out.
_PLANS: Final[dict[Any, _Plan]] = {}
# Flags of an array that are part of its type: contiguous either way, aligned, writeable.
_OF_TYPE: Final = 0x1 | 0x2 | 0x100 | 0x400


def _traits(value: Any) -> Any:
    """Tell what decides of which type a value is, so that equal ones have one type."""
    kind = type(value)
    if kind is np.ndarray:
        return value.dtype, value.ndim, value.flags.num & _OF_TYPE
    if isinstance(value, tuple):
        return kind, *map(_traits, value)
    if kind in (float, bool, type(None)) or (kind is int and value.bit_length() < 64):
        return kind
    return numba.typeof(value)


def _plan(kind: Any) -> _Plan:
    layout = _layout(kind)
    leaves = tuple(
        (offset, leaf, struct.Struct(code).pack_into if (code := _code(leaf)) else None)
        for offset, leaf in layout.leaves
    )
    return _Plan(Handle.to(kind), layout.size // _WORD + 1, leaves)


class _Layout(NamedTuple):
    size: int
    alignment: int
    leaves: tuple[tuple[int, Any], ...]  # Where each value stands that is no tuple, and its type


@cache
def _layout(kind: Any) -> _Layout:
    """Where LLVM puts the parts of a tuple: each at the next multiple of its alignment."""
    if not isinstance(kind, types.BaseTuple):
        size, alignment = _size(kind)
        return _Layout(size, alignment, ((0, kind),))
    at, widest = 0, 1
    leaves: list[tuple[int, Any]] = []
    for part in kind:
        inner = _layout(part)
        at += -at % inner.alignment
        leaves += [(at + offset, leaf) for offset, leaf in inner.leaves]
        at, widest = at + inner.size, max(widest, inner.alignment)
    return _Layout(at + -at % widest, widest, tuple(leaves))


def _size(kind: Any) -> tuple[int, int]:
    code = _code(kind)
    if code:
        size = struct.calcsize(code)
        return size, min(size, _WORD)
    from numba.core.registry import cpu_target

    context = cpu_target.target_context
    context.refresh()
    return context.get_abi_sizeof(context.get_value_type(kind)), _WORD


def _code(kind: Any) -> str:
    """Format in which `struct` writes a value of this type; empty where only compiled code can."""
    if isinstance(kind, types.Array):
        return _ARRAY + 2 * kind.ndim * "q"
    if kind == types.none:
        return f"{_WORD}x"
    return _NUMBERS.get(kind, "")


def _parts(value: Any) -> Iterator[Any]:
    if not isinstance(value, tuple):
        yield value
        return
    for part in value:
        yield from _parts(part)


@intrinsic
def _stored(_context: Any, value: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        # What it refers to stays, as those do who use it.
        context.nrt.incref(builder, value, args[0])
        place = builder.inttoptr(args[1], args[0].type.as_pointer())
        builder.store(args[0], place)
        return context.get_dummy_value()

    return types.void(value, address), code


@numba.njit
def _store(value: Any, address: int) -> None:
    _stored(value, address)


@unbox(Handle)
def _unbox(kind: Any, address: Any, c: Any) -> Any:
    pointer = c.pyapi.long_as_voidptr(address)
    shown = c.builder.bitcast(pointer, c.context.get_value_type(kind))
    return NativeValue(shown, is_error=cgutils.is_not_null(c.builder, c.pyapi.err_occurred()))
