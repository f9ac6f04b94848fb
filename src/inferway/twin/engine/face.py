"""What a replication sees of an engine, of whatever kind."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from inferway.scheduling import Controller
from inferway.site.view import Site
from inferway.twin.engine.kind import Kind
from inferway.twin.kernel.tally import Tally


class CrowdedError(RuntimeError):
    """More requests in the system than any stable site holds."""


class Engine(Protocol):
    """What a replication needs of an engine."""

    kind: Kind
    policy: Any
    tally: Tally
    cpu_s: float
    """CPU time spent in the compiled loop."""

    @property
    def site(self) -> Site:
        """The view that the policy sees."""

    def advance(self, arrivals: int, until_s: float = np.inf) -> int:
        """Run until so many more requests have arrived, or until a time; how many have arrived.

        Fewer than asked, before that time, where the workload has ended.
        """

    @property
    def controller(self) -> Controller | None:
        """What sets the routing; None where the policy decides alone."""

    def reroute(self) -> None:
        """Let the controller decide now."""

    def drain(self) -> None:
        """Run without further arrivals until the site is empty."""

    def count_anew(self) -> None:
        """Forget what was counted; requests that arrive from now on count."""

    @property
    def now_s(self) -> float:
        """The time."""

    @property
    def present(self) -> int:
        """Requests in the system."""

    @property
    def uncounted(self) -> int:
        """Those of them that do not count, since they arrived during the warm-up."""
