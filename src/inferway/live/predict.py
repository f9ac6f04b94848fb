"""A site's predictions of its servers: waits and service times, as policies predict them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from inferway.live.request import InferRequest
from inferway.site.view import SIZES


class Forecast:
    """Reads a site's view for those who tell clients of the future.

    Parameters
    ----------
    view
        `inferway.site.view.Site` of the dispatcher.
    class_of
        Class of each server.
    accuracy
        Of each class, 0..1.
    now
        The clock that the view is kept by.
    """

    def __init__(
        self,
        view: Any,
        class_of: Sequence[int],
        accuracy: Sequence[float],
        now: Callable[[], float],
    ) -> None:
        self._class_of, self._accuracy, self._now = class_of, accuracy, now
        self._queue, self._ends_s, self._free_s = view.queue, view.ends_s, view.free_s
        self._row_s, self._healthy = view.row_s, view.healthy
        self._most_rows = view.most_rows

    def mask(self, request: InferRequest) -> int:
        """Bit mask of the classes that may answer, by pin and accuracy floor."""
        mask = 0
        for k, accuracy in enumerate(self._accuracy):
            if request.classes >> k & 1 and accuracy >= request.floor:
                mask |= 1 << k
        return mask

    def wait_s(self, server: int) -> float:
        """Time until the server has emptied its queue (`inferway.site.selection`)."""
        if not self._queue.item(server):
            return 0.0
        ends_s: float = self._ends_s.item(server)
        free_s: float = self._free_s.item(server)
        return max(0.0, ends_s - self._now()) + (free_s - ends_s)

    def service_s(self, server: int, rows: int) -> float:
        """Service time of a request of so many rows at the server, all its runs."""
        most: int = self._most_rows.item(server)
        full, rest = divmod(rows, most) if rows > most else (0, rows)
        return full * self._run_s(server, most) + (self._run_s(server, rest) if rest else 0.0)

    def _run_s(self, server: int, rows: int) -> float:
        row_s: float = self._row_s.item(server, min(SIZES - 1, (rows - 1).bit_length()))
        return rows * row_s

    def earliest_s(self, classes: int, rows: int) -> float:
        """Time until the first server of these classes has answered a newcomer."""
        return min(
            (self.wait_s(server) + self.service_s(server, rows) for server in self._of(classes)),
            default=math.inf,
        )

    def idle_s(self, classes: int) -> float:
        """Time until the first server of these classes is idle."""
        return min(map(self.wait_s, self._of(classes)), default=math.inf)

    def falls_open(self, request: InferRequest, left_s: float, least: int) -> bool:
        """Tell whether waiting for a server makes sense.

        Parameters
        ----------
        request
            The one that would wait.
        left_s
            Until its deadline.
        least
            Only servers that hold at least so many requests are looked at.

        Returns
        -------
        bool
            True where one of the servers that may answer would be in time, once it is free.
        """
        return any(
            self._queue.item(server) >= least and self.service_s(server, request.rows) <= left_s
            for server in self._of(self.mask(request))
        )

    def _of(self, classes: int) -> Iterator[int]:
        return (
            server
            for server, k in enumerate(self._class_of)
            if classes >> k & 1 and self._healthy.item(server)
        )
