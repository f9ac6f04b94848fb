"""Numbers that are never below 0, as those of servers and classes are: places in arrays.

An index below 0 counts from the end. So compiled code looks at the sign of each, at four
instructions for each array, unless it knows better.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from inferway.site.compiled import INLINE, jit


def natural(number: int) -> int:
    """The number, of which compiled code knows from now on that it is not below 0.

    Nothing checks that.
    """
    return number


@intrinsic
def _known(_context: Any, number: Any) -> Any:
    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(1)])
        assume = builder.module.declare_intrinsic("llvm.assume", fnty=kind)
        builder.call(assume, [builder.icmp_signed(">=", args[0], args[0].type(0))])
        return args[0]

    return types.int64(types.int64), code


@overload(natural, strict=False, jit_options=INLINE)
def _compiled(number: Any) -> Any:
    return lambda number: _known(number)


@jit
def class_of(site: Any, server: int) -> int:
    """Number of the class of a server."""
    return natural(site.server_class[server])
