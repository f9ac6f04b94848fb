"""What stops the demo."""

from __future__ import annotations


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why."""
