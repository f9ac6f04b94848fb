"""Which parts of a view a policy reads, found in its code.

Names are collected from the policy's functions and from all that these call. Reading a name too
many costs speed and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

TIMES = frozenset(
    {"started_s", "ends_s", "free_s", "arrived_s", "expected_s", "head", "wait_s", "service_s"}
)
"""Fields of the view and of events that only a full upkeep fills."""


def names_read(policy: type) -> frozenset[str]:
    """Every global and attribute that the policy's functions may use."""
    found: set[str] = set()
    seen: set[int] = set()
    for method in ("choose", "learn", "pull"):
        function = getattr(policy, method, None)
        if function is not None:
            _collect(function, found, seen)
    return frozenset(found)


def reads_times(policy: type) -> bool:
    """Whether the policy needs more of the view than lengths and who is idle."""
    return not TIMES.isdisjoint(names_read(policy))


def _collect(function: Any, found: set[str], seen: set[int]) -> None:
    plain = getattr(function, "py_func", function)
    if not isinstance(plain, FunctionType) or id(plain) in seen:
        return
    seen.add(id(plain))
    for code in _codes(plain.__code__):
        found.update(code.co_names)
        for name in code.co_names:
            value = plain.__globals__.get(name)
            if isinstance(value, ModuleType):
                for attribute in code.co_names:
                    _collect(getattr(value, attribute, None), found, seen)
            else:
                _collect(value, found, seen)
    for cell in plain.__closure__ or ():
        _collect(cell.cell_contents, found, seen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
