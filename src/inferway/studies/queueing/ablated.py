"""TAD-OP without some of its routing tuples, to see what they are for ([Anonymous], Sec. 5.2).

A policy for studies only, loaded as a user's policy is, from its file.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.dispatch.tad_op import TadOp, scan
from inferway.site import (
    ALL_CLASSES,
    Fleet,
    Request,
    Site,
    any_in,
    class_of_any,
    idle_classes,
    idle_in,
    uniform,
)
from inferway.site.view import Ints

_SLACK = 1e-9

NAME = f"{Path(__file__).resolve()}:Ablated"  # as a scenario names the policy


class Ablated(NamedTuple):
    """TAD-OP's tuples, fewer of them, and no table: they are scanned for each request."""

    needs_idle: Ints
    needs_busy: Ints
    ahead: NDArray[np.int8]
    behind: NDArray[np.int8]
    classes: int

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        without: str = "shuffles",
    ) -> Ablated:
        """TAD-OP's tuples in order of cost, less some.

        Parameters
        ----------
        without
            ``shuffles``: pairs with a negative entry; ``singletons``; or ``both``.

        Raises
        ------
        ValueError
            For any other word, or without a target.
        """
        whole = TadOp.build(fleet, target=target, rate_per_s=rate_per_s)
        shuffle = whole.needs_busy != 0
        single = ~shuffle & (whole.needs_idle & (whole.needs_idle - 1) == 0)
        dropped = {"shuffles": shuffle, "singletons": single, "both": shuffle | single}
        if without not in dropped:
            raise ValueError(f"without is {without!r}: expected one of {', '.join(dropped)}")
        kept = ~dropped[without]
        return cls(
            whole.needs_idle[kept],
            whole.needs_busy[kept],
            whole.ahead[kept],
            whole.behind[kept],
            whole.classes,
        )

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """As TAD-OP does, by the tuples that are left."""
        idle = idle_classes(site, request)
        if idle == 0:
            k = class_of_any(site, request, ALL_CLASSES, uniform(draw, 0))
            return -1 if k < 0 else any_in(site, request, k, uniform(draw, 1))
        # Compiled for whatever has the fields.
        k = scan(self, idle, site.busy_classes[0], site.balance[0] > _SLACK)  # type: ignore[arg-type]
        return idle_in(site, request, k)
