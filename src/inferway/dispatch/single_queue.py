"""Single queue (SQ): one queue for all servers, first come, first served ([Tan24], Sec. 5.1.7).

A request that finds idle servers goes to one of the most accurate class among them: "if there are
two idle model instances, ... the upcoming arrival will be served by the model instance of PNASNet".
That is `ties: heavy`. The share of heavy services that the paper's Table 2 prints for the normal
state, 52.65 %, does not follow from it; `ties: uniform` draws among all idle servers instead.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from inferway.site import HOLD, REJECT, Fleet, Request, Site, any_between, idle_in, uniform
from inferway.site.view import Ints


class SingleQueue(NamedTuple):
    """To an idle server, else to the queue of all."""

    order: Ints  # (K,) classes, most accurate first
    even: bool  # Whether all idle servers are alike

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        ties: Annotated[
            Literal["heavy", "uniform"],
            Field(
                description="Which of several idle instances: one of the most accurate variant, "
                "or any."
            ),
        ] = "heavy",
    ) -> SingleQueue:
        """By the fleet's accuracies.

        ValueError for another word than these.
        """
        if ties not in ("heavy", "uniform"):
            raise ValueError(f"ties are broken as heavy or uniform, not as {ties}")
        order = np.argsort(-fleet.accuracy, kind="stable").astype(np.int64)
        return cls(order, ties == "uniform")

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """An idle server that may take the request; HOLD where others may once they are idle."""
        if self.even:
            found = 0
            for server in range(site.queue.size):
                found += site.queue[server] == 0 and request.allowed[server]
            wanted = int(uniform(draw, 0) * found)
            for server in range(site.queue.size):
                if site.queue[server] == 0 and request.allowed[server]:
                    if wanted == 0:
                        return server
                    wanted -= 1
        else:
            for k in self.order:
                server = idle_in(site, request, k)
                if server >= 0:
                    return server
        return HOLD if any_between(site, request, 0, site.queue.size, 0.0) >= 0 else REJECT
