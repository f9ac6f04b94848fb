"""Bit masks of classes."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from inferway.site.compiled import INLINE


def lowest(mask: int) -> int:
    """Place of the lowest bit that is set in a mask other than 0."""
    return int(mask & -mask).bit_length() - 1


@intrinsic
def _lowest(_context: Any, mask: Any) -> Any:
    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], cgutils.true_bit)

    return types.int64(types.int64), code


@overload(lowest, strict=False, jit_options=INLINE)
def _compiled(mask: Any) -> Any:
    return lambda mask: _lowest(mask)
