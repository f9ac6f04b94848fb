"""Handles: how compiled code passes a site's thirty arrays as one pointer.

A kernel that takes a NamedTuple of arrays takes each array as seven numbers and counts references
at every use: calls cost more than policies do, and compiling them takes minutes. A handle is a
pointer to the NamedTuple on the stack of the kernel that made it. Its fields are read as the
tuple's would be, a field that is a NamedTuple is a handle again, and nothing counts references:
whoever called the kernel holds the arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, register_model


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


handle: Callable[[Any], Any] = (lambda value: value) if numba.config.DISABLE_JIT else _handle
"""``handle(named_tuple)``: a handle to it, valid until the kernel that asks for it returns.

``handle(handle)`` is one to a copy of what it leads to: where arrays lie, a kernel that goes on for
long then knows without looking, for nobody else can have moved them."""


def made_of(kind: Any) -> type | None:
    """The class of the NamedTuple that a compiled value is, or that it is a handle to."""
    if isinstance(kind, Handle):
        kind = kind.content
    return kind.instance_class if isinstance(kind, types.BaseNamedTuple) else None
