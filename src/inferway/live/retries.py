"""Retries as a share of requests."""

from __future__ import annotations


class RetryBudget:
    """Retries as a share of requests, so that they never become the load themselves.

    Parameters
    ----------
    share
        Of requests, that may be retried.
    first
        Retries that may go before any request has paid for them, and that can be saved up.
    """

    def __init__(self, share: float = 0.2, first: float = 10.0) -> None:
        self._share, self._most = share, first
        self._left = first
        self.spent = self.refused = 0
        """Retries that went, and those that did not."""

    def earn(self) -> None:
        """Count a request."""
        self._left = min(self._most, self._left + self._share)

    def spend(self) -> bool:
        """Whether a request may be retried."""
        # Shares like 0.2 do not add up to 1 exactly.
        if self._left < 1.0 - 1e-9:
            self.refused += 1
            return False
        self._left -= 1.0
        self.spent += 1
        return True
