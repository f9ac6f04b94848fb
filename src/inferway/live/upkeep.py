"""What a site does beside its requests, again and again while it serves."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from inferway.live.decisions import Written

if TYPE_CHECKING:
    from inferway.live.site import Site

FLUSH_S = 1.0
"""A process that dies loses what has been recorded for so long at most."""
REMEMBER_S = 60.0
"""How often the measured service times are kept."""


async def follow_rate(site: Site, window_s: float) -> None:
    """Estimate the arrival rate over each window, and have the policy plan for it."""
    seen, seen_s = 0, site.now()
    while True:
        await asyncio.sleep(window_s)
        arrived, now_s = site.arrived, site.now()
        rate_per_s = (arrived - seen) / (now_s - seen_s)
        seen, seen_s = arrived, now_s
        if rate_per_s <= 0.0:
            continue
        # Planned in another thread: linear programs take milliseconds, which the loop has not
        # to give. Adopted here, between two decisions, where a replay can put it too.
        with suppress(ValueError):  # the policy goes on with the plan that it has
            plan = await asyncio.to_thread(site.dispatcher.plan, rate_per_s)
            site.dispatcher.adopt(plan)


async def keep_times(site: Site) -> None:
    """Keep the measured service times."""
    while True:
        await asyncio.sleep(REMEMBER_S)
        await site.remember()


async def flush(recording: Written) -> None:
    """Bring what has been recorded to the disk."""
    while True:
        await asyncio.sleep(FLUSH_S)
        recording.flush()
