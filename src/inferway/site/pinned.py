"""Named tuples of arrays in memory as compiled code reads them: Python hands over one address.

An entry that takes a NamedTuple of thirty arrays unpacks each at every call, which takes longer
than what policies do, and the code for it longer to compile than they. Here the tuple is laid out
once, by Python, in the form that a handle points to (`inferway.site.handle`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import numba
import numpy as np
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import NativeValue, intrinsic, unbox

from inferway.site.handle import Handle

_WORD: Final = 8
_ARRAY: Final = "QQqqQ"
"""Of an array: owner and parent, which are none, elements, bytes of one, and where they are."""

_NUMBERS: Final[dict[Any, str]] = {
    **dict(zip((types.int8, types.int16, types.int32, types.int64), "bhiq", strict=True)),
    **dict(zip((types.uint8, types.uint16, types.uint32, types.uint64), "BHIQ", strict=True)),
    types.float32: "f",
    types.float64: "d",
    types.boolean: "?",
}
"""How `struct` writes them."""


class Pinned(NamedTuple):
    """A tuple as `inferway.site.compiled.call_of`'s functions take it, as long as this is kept."""

    handle: Any
    """Its address; where nothing is compiled, the tuple itself."""
    kind: Any
    """The type of its handle."""
    kept: tuple[object, ...] = ()
    """What lies at the address, and the arrays that it refers to."""


def pin(value: Any) -> Pinned:
    """Lay out a NamedTuple of numbers, arrays and tuples of these.

    What is written to its arrays is seen on both sides; its numbers are those of now. TypingError
    of Numba where compiled code has no type for one of its fields.
    """
    if numba.config.DISABLE_JIT:
        return Pinned(value, None)
    kind = _kind_of(value)
    layout = _layout(kind)
    memory = np.zeros(layout.size // _WORD + 1, np.int64)
    kept: list[object] = [value, memory]
    for (offset, leaf), part in zip(layout.leaves, _parts(value), strict=True):
        if isinstance(leaf, types.Array):
            owned = np.asarray(part)
            place = owned.__array_interface__["data"][0]
            words = (0, 0, owned.size, owned.itemsize, place, *owned.shape, *owned.strides)
            struct.pack_into(_code(leaf), memory.data, offset, *words)
        elif _code(leaf):
            struct.pack_into(_code(leaf), memory.data, offset, *(() if part is None else (part,)))
        else:
            _store(part, memory.ctypes.data + offset)
    return Pinned(memory.ctypes.data, Handle.to(kind), tuple(kept))


def _kind_of(value: Any) -> Any:
    try:
        return numba.typeof(value)
    except ValueError as error:
        raise TypingError(str(error)) from error


class _Layout(NamedTuple):
    size: int
    alignment: int
    leaves: tuple[tuple[int, Any], ...]
    """Where each value stands that is no tuple, and its type."""


@cache
def _layout(kind: Any) -> _Layout:
    """Where LLVM puts the parts of a tuple: each at the next multiple of its alignment."""
    if not isinstance(kind, types.BaseTuple):  # type: ignore[attr-defined]
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
    size = context.get_abi_sizeof(context.get_value_type(kind))
    return size, _WORD


def _code(kind: Any) -> str:
    """How `struct` writes a value of this type; empty where only compiled code can."""
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
