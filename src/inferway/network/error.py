"""What is wrong with a network."""

from __future__ import annotations


class NetworkError(ValueError):
    """A network that cannot be used, with one sentence that says why and what would be right."""
