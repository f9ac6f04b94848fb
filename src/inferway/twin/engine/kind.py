"""Which kind of engine runs a scenario."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal

from inferway.deployment.workloads import PhasedArrivals, PoissonArrivals
from inferway.dispatch.contract import policy_class
from inferway.twin.scenario import Scenario

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


Kind = Literal["markov", "ordered", "general"]
KINDS: tuple[Kind, ...] = ("markov", "ordered", "general")


def kinds_of(scenario: Scenario, *, records: bool = False) -> tuple[Kind, ...]:
    """The kinds that can run a scenario, and record requests if asked to, the fastest first."""
    policy = policy_class(scenario.policy, scenario.folder)
    pulls = hasattr(policy, "pull")
    steady = not scenario.failures and not scenario.outages
    distributions = {time.distribution for time in scenario.service}
    found: list[Kind] = ["general"]
    # A batch takes its own time, and the number that waits is no longer all there is to know.
    batched = any(scenario.batches)
    if distributions == {"deterministic"} and steady and not batched:
        found.insert(0, "ordered")
    if (
        distributions == {"exponential"}
        and steady
        and not pulls
        and not batched
        and not records
        and scenario.deadline_s is None
        and scenario.queue == "per-server"
        and scenario.scheduling is None
        and not scenario.measured_s  # it serves at the rates that the site shows
        and isinstance(scenario.arrivals, PoissonArrivals | PhasedArrivals)
        and "HOLD" not in names_read(policy)
        and not reads_times(policy)
    ):
        found.insert(0, "markov")
    return tuple(found)
