"""How one site takes over a task from another without losing a request.

The new one is loaded and warm before it gets a request; the old one gets none from then on,
answers what it has, and goes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from inferway.live.site import Site

_POLL_S = 0.01


def inherit(new: Site, old: Site) -> None:
    """Hand over what a site has counted.

    The balance too, where the promise is still the same, and what the policy has learned, where
    it is the same policy of the same classes.
    """
    new.stats.absorb(old.stats)
    old.stats = type(old.stats)(old.pool.variants)
    new.log.past = old.log
    old.log.past = None
    old.heir, old.left_balance = new, old.pool.dispatcher.balance
    if new.target == old.target:
        new.pool.dispatcher.site.balance[0] = old.left_balance
        _teach(new.pool.dispatcher, old.pool.dispatcher)
        if new.pool.scheduler is not None:
            new.pool.scheduler.again()  # what was taught holds the old routing


async def retire(old: Site) -> None:
    """Wait until the old site has answered everything, then stop it.

    Whoever has the task by then gets what it has counted since it was replaced.

    Parameters
    ----------
    old
        Nobody gives it requests any more.
    """
    old.flush()
    while old.in_flight:
        await asyncio.sleep(_POLL_S)
    heir, promised = old.heir, True
    while heir is not None:
        promised &= heir.target == old.target
        if heir.heir is None:
            break
        heir = heir.heir
    if heir is not None:
        heir.stats.absorb(old.stats)
        # Requests that left without an answer have been undone at the old site only.
        if promised:
            heir.pool.dispatcher.site.balance[0] += old.pool.dispatcher.balance - old.left_balance
    await old.stop()


def _teach(new: Any, old: Any) -> None:
    # A policy that does not learn has plans, which belong to its own fleet.
    policy = old.policy
    if not hasattr(policy, "learn") or policy._fields != new.policy._fields:
        return
    said = [(one.policy_name, one.options, one.fleet.variants) for one in (new, old)]
    mine, theirs = (np.stack((one.fleet.rate, one.fleet.accuracy)) for one in (new, old))
    if said[0] != said[1] or not np.array_equal(mine, theirs):
        return
    learned = [
        pair for pair in zip(new.policy, policy, strict=True) if isinstance(pair[0], np.ndarray)
    ]
    if all(mine.shape == theirs.shape for mine, theirs in learned):
        for mine, theirs in learned:
            mine[:] = theirs
