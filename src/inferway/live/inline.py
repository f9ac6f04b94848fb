"""Runs on the event loop itself, of models that are too brief to hand over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from inferway.live.instance import Inline
from inferway.live.request import Job
from inferway.runtime import Runtime

BRIEF_S: Final = 50e-6
"""Runs below this are the loop's: to wake a thread and be woken by it takes as long."""
TURN_S: Final = 1e-3
"""After so much time in models the loop looks at its connections again."""
_OUTLIER_S: Final = 4 * BRIEF_S
"""A run that was interrupted by other processes counts as no more than this."""
_WEIGHT: Final = 1 / 16


class InlineRunner:
    """Runs brief requests on the event loop, all that came in one pass of it together.

    Together, because code that has just run is in the processor's caches: read eight requests, then
    run eight, then answer eight cost 54 us of CPU a request, each one from end to end 93 us, and
    handing each to a thread and back 99 us (`docs/benchmarks/http.md`).

    Parameters
    ----------
    loop
        That runs them.
    ended
        Told each request that has been run.
    collect
        Called after some have.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[Job], None],
        collect: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._ended, self._collect = ended, collect
        self._instances: dict[Inline, None] = {}

    def plan(self, instance: Inline) -> None:
        """Have what this instance keeps for the loop run soon."""
        if not self._instances:
            self._loop.call_soon(self._run)
        self._instances[instance] = None

    def _run(self) -> None:
        left_s = TURN_S
        while self._instances and left_s > 0.0:
            instance = next(iter(self._instances))
            request = instance.run_next()
            if request is None:
                del self._instances[instance]
                continue
            left_s -= request.service_s
            self._ended(request)
        if self._instances:
            self._loop.call_soon(self._run)
        self._collect()


class RunTime:
    """How long one row takes a runtime, and whether that is brief.

    Only runtimes that say so (`inferway.runtime.Steady`) can be brief, only in requests of one row,
    and only where the signature leaves no other axis open: then the time does not depend on the
    request.

    Parameters
    ----------
    runtime
        Whose runs are measured.
    """

    def __init__(self, runtime: Runtime) -> None:
        given: Any = runtime
        self.steady = bool(getattr(given, "steady", False)) and not any(
            -1 in tensor.shape[1:] or tensor.datatype == "BYTES"
            for tensor in runtime.signature.inputs
        )
        self.run_s = float("inf")

    def is_brief(self, rows: int) -> bool:
        """Whether a request of so many rows is the loop's."""
        return rows == 1 and self.run_s <= BRIEF_S and self.steady

    def begin(self, took_s: float) -> None:
        """Take a run of a warm-up into account: the least of them counts."""
        self.run_s = min(self.run_s, took_s)

    def observe_inline(self, took_s: float) -> None:
        """Take a run on the loop into account."""
        self.run_s += (min(took_s, _OUTLIER_S) - self.run_s) * _WEIGHT

    def observe_threaded(self, took_s: float) -> None:
        """Take a run in a thread into account, which can only be longer than one on the loop."""
        if took_s < self.run_s:
            self.observe_inline(took_s)
