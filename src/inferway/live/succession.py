"""How one site takes over a task from another without losing a request.

The new one is loaded and warm before it gets a request; the old one gets none from then on,
answers what it has, and goes.
"""

from __future__ import annotations

import asyncio

from inferway.live.site import Site

_POLL_S = 0.01


def inherit(new: Site, old: Site) -> None:
    """Hand over what a site has counted; the balance too, where the promise is still the same."""
    new.counters.absorb(old.counters)
    old.counters = type(old.counters)(old.variants)
    new.memory.past = old.memory
    old.memory.past = None
    if new.target == old.target:
        new.dispatcher.site.balance[0] = old.dispatcher.balance


async def retire(old: Site, new: Site | None) -> None:
    """Wait until the old site has answered everything, then stop it.

    Parameters
    ----------
    old
        Nobody gives it requests any more.
    new
        Has inherited from it; None where the task is served no more.
    """
    before = old.dispatcher.balance
    while old.in_flight:
        await asyncio.sleep(_POLL_S)
    if new is not None:
        new.counters.absorb(old.counters)
        # Requests that left without an answer have been undone at the old site only. A recorded
        # balance moves by recorded events alone: a replay must find the same.
        if new.target == old.target and not new.recorded:
            new.dispatcher.site.balance[0] += old.dispatcher.balance - before
    await old.stop()
