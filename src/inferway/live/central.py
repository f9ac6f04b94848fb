"""The central queue: requests that no server has yet."""

from __future__ import annotations

from collections import deque

from inferway.live.request import Request
from inferway.site.view import Ints

HELD_LIMIT = 1024
"""Requests in a central queue that nothing else limits."""


class CentralQueue:
    """Requests in the order in which they came, and their number where policies see it.

    Parameters
    ----------
    count
        (1,) the view's `held`.
    room
        How many may wait.
    """

    def __init__(self, count: Ints, room: int = HELD_LIMIT) -> None:
        self.requests: deque[Request] = deque()
        self.room = room
        self._count = count

    @property
    def full(self) -> bool:
        """Whether a newcomer needs another's place."""
        return len(self.requests) >= self.room

    def add(self, request: Request) -> None:
        """Let a request wait behind all others."""
        self.requests.append(request)
        self._count[0] = len(self.requests)

    def take(self) -> Request:
        """Take the first out, to be decided on."""
        request = self.requests.popleft()
        self._count[0] = len(self.requests)
        return request

    def put_back(self, request: Request) -> None:
        """Let a request be the first again."""
        self.requests.appendleft(request)
        self._count[0] = len(self.requests)

    def remove(self, request: Request) -> None:
        """Let a request go, wherever it stands."""
        self.requests.remove(request)
        self._count[0] = len(self.requests)
