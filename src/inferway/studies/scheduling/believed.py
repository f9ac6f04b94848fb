"""The policy `deadline` with set beliefs about service times: what a wrong one costs.

A dispatch policy as a user's file has them (`./believed.py:Believed`).
"""

from __future__ import annotations

from inferway.dispatch.deadline import Deadline
from inferway.site import Event, Site


class Believed(Deadline):
    """`deadline` that keeps believing its margin times the fleet's mean service times."""

    __slots__ = ()

    def learn(self, site: Site, event: Event) -> None:
        """Nothing."""
