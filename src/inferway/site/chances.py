"""Chances: how a server is asked again that was slow once, and was left out ever since.

Who is predicted to be late is not asked, and who is not asked is not measured again. So what was
measured is believed for a while only, in four rules:

- A first run is believed whole, shorter or longer than the profile: a machine that is slower is
  known at once. Where that was more than four times the profile, one of the first `FEW` in less
  than a quarter of it is believed whole as well: cold caches and a busy moment make first runs
  the slowest, and ordinary noise does not do that.
- Of each `PAUSE` requests with a deadline, one is a chance: of one idle server that has run nothing
  for `REST` such requests, is late for this one by what it was measured at, and in time by what
  was predicted before, all measurements are forgotten. A server that was late from the beginning
  never has one.
- Until a run is measured there, it takes one request at a time, or one batch where it forms some;
  that run is believed whole, as a first one. After each chance it rests twice as long. Once
  `BELIEVED` runs are measured, it does as at first.
- The policy `deadline` gives its own memory of a class a chance by the same numbers, where its
  memory alone makes the class late.

What that costs: at most one request of `PAUSE` is put at risk by the site, and one more by
`deadline`, whatever the number of servers, where a request that is held in a central queue counts
each time that it is decided on; of N requests, a server that stays slow takes at most
log2(1 + N / `REST`), one by one. Rests are counted in requests and not in times of a run, since
only so the part that is risked is bounded where requests are few; that servers are idle costs
nothing then. That measurements are forgotten, and not only passed over once, keeps all who predict
of one mind: policies, rates, offers to neighbors and placement.
"""

from __future__ import annotations

from typing import Final

from inferway.site.compiled import jit, seldom
from inferway.site.selection import has_class, initial_service, predicted_service, predicted_wait
from inferway.site.view import Site

PAUSE: Final = 32
REST: Final = 16
FEW: Final = 5
BELIEVED: Final = 10
TRIED: Final = 1 << 62  # In place of when the next chance comes: this one is not over
_DOUBLINGS: Final = 40


@jit
def next_chance(site: Site, chances: int) -> int:
    """Which request with a deadline is the next chance of who has had so many in vain."""
    return site.asked[0] + (REST << min(chances, _DOUBLINGS))


@seldom
def overlooked(site: Site, classes: int, deadline_s: float, rows: int) -> int:
    """A server of these classes whose measurements alone make it late, and that is due; else -1."""
    for server in range(site.queue.size):
        if site.asked[0] < site.again[server] or site.queue[server] > 0 or not site.open[server]:
            continue
        left_s = deadline_s - site.clock_s[0] - predicted_wait(site, server)
        if (
            has_class(classes, site.server_class[server])
            and predicted_service(site, server, rows) > left_s
            and initial_service(site, server, rows) <= left_s
        ):
            return server
    return -1
