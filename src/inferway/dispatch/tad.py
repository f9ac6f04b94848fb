"""TAD: track the accuracy difference ([Anonymous], Sec. 4)."""

from __future__ import annotations

from typing import NamedTuple

from inferway.site import Fleet, Request, Site, any_in, class_of_any, has_class, idle_in, uniform

# The balance is a sum of decimal fractions; a balance of zero may read -1e-17.
_SLACK = 1e-9


class Tad(NamedTuple):
    """The fastest idle server among the classes that keep the accuracy balance at 0 or above.

    The set of such classes is never empty in the paper. Here it may be, where requests are
    restricted to some classes; then the most accurate of those stands for it.
    """

    classes: int

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> Tad:
        """ValueError without a target."""
        if target is None:
            raise ValueError("policy tad tracks an accuracy target: give the task accuracy_target")
        return cls(len(fleet.rate))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """Idle first, fastest first; where none is idle, any server of a class drawn at random."""
        mask, best = 0, -1
        for k in range(self.classes):
            if not has_class(request.classes, k):
                continue
            if best < 0 or site.accuracy[k] > site.accuracy[best]:
                best = k
            if site.balance[0] + request.rows * (site.accuracy[k] - site.target[0]) >= -_SLACK:
                mask |= 1 << k
        if mask == 0 and best >= 0:
            mask = 1 << best
        for k in range(self.classes):
            if has_class(mask, k):
                server = idle_in(site, request, k)
                if server >= 0:
                    return server
        k = class_of_any(site, request, mask, uniform(draw, 0))
        return -1 if k < 0 else any_in(site, request, k, uniform(draw, 1))
