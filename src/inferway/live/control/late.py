"""A control plane with the file's round-trip times, where nodes share a machine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from inferway.live.control.control import ControlPlane


class LatePlane(ControlPlane):
    """Sends each letter half a round trip later.

    Parameters
    ----------
    links_s
        Round-trip time to each neighbor, s.
    args, kwargs
        As of `ControlPlane`.
    """

    def __init__(self, *args: Any, links_s: Mapping[str, float], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._links_s = links_s

    def send(self, neighbor: str, kind: str, data: bytes) -> bool:
        """As `ControlPlane.send`; whether it is lost shows later."""
        if neighbor not in self._links_s:
            raise ValueError(f"{neighbor} is no neighbor of {self.node}")
        # Timers of one delay fire in the order in which they were set.
        loop = asyncio.get_running_loop()
        loop.call_later(self._links_s[neighbor] / 2, super().send, neighbor, kind, data)
        return neighbor in self.alive
