"""Who gives way to a newcomer of higher priority where there is no room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from inferway.live.forecast import Forecast
from inferway.live.request import Request

UNSAID = 1 << 15
"""How low a request stands that states no priority: below all that do."""


def rank(request: Request) -> int:
    """Where a request stands: 1 is the highest."""
    return request.priority or UNSAID


def at_servers(
    newcomer: Request,
    queues: Sequence[Sequence[Request]],
    begun: Callable[[int], int],
    class_of: Sequence[int],
    places: int,
    forecast: Forecast,
    left_s: float,
) -> Request | None:
    """Of the requests queued at full servers that may answer the newcomer, the one to give way.

    It is the lowest in priority, of these the last to have come, where the newcomer would be in
    time behind the others.

    Parameters
    ----------
    newcomer
        It states a priority.
    queues
        What each server holds.
    begun
        How many of these are in service, which nobody gives up; they stand first.
    class_of
        Class of each server.
    places
        At each server.
    forecast
        Of these servers.
    left_s
        Until the newcomer's deadline.

    Returns
    -------
    Request or None
        None where none is lower, or where it is not for want of room that the newcomer was refused.
    """
    victim, lowest = None, newcomer.priority
    mask = forecast.mask(newcomer)
    for server, (queue, k) in enumerate(zip(queues, class_of, strict=True)):
        if not mask >> k & 1:
            continue
        if len(queue) < places:
            return None
        behind_s = forecast.wait_s(server) + forecast.service_s(server, newcomer.rows)
        for queued in islice(queue, begun(server), None):
            stands = rank(queued)
            lower = stands > lowest or (
                stands == lowest and victim is not None and queued.received_s > victim.received_s
            )
            if lower and behind_s - forecast.service_s(server, queued.rows) <= left_s:
                victim, lowest = queued, stands
    return victim


def in_line(newcomer: Request, held: Iterable[Request]) -> Request | None:
    """Of the requests in a full central queue, the one to give way: the lowest, of these the last.

    Returns
    -------
    Request or None
        None where none is lower than the newcomer.
    """
    lowest = max(reversed([*held]), key=rank, default=newcomer)
    return lowest if 0 < newcomer.priority < rank(lowest) else None
