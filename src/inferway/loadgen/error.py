"""The error of everything that drives servers."""

from __future__ import annotations


class DriveError(ValueError):
    """The server cannot be driven; the message is one sentence for the user."""


class AddressError(DriveError):
    """Where a server is has not been said, or is no address."""
