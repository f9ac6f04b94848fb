"""The error of everything that drives servers."""

from __future__ import annotations

__all__ = ["DriveError"]


class DriveError(ValueError):
    """The server cannot be driven; the message is one sentence for the user."""
