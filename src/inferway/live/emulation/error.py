"""Why a network cannot be emulated."""

from __future__ import annotations


class EmulationError(Exception):
    """A network that cannot be emulated or changed, with one sentence that says why."""
