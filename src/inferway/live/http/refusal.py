"""A request that cannot be served, and why."""

from __future__ import annotations


class RefusalError(ValueError):
    """Ends a request with an HTTP status and one sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
