"""Why a network's nodes cannot be run on this machine."""

from __future__ import annotations


class UpError(Exception):
    """Nodes that do not run, with one sentence that says why."""
