"""A node's accuracy balances: kept while a task has no site, and over restarts.

A task's balance belongs to its site and moves with each request. Where the task's last variant and
offer go, so does its site, and what is owed, or ahead, waits here for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from inferway.live.site import Site


class Balance(NamedTuple):
    """A task's accuracy balance.

    Attributes
    ----------
    target
        The accuracy target that it is measured by, 0..1.
    balance
        The sum of what the answers' accuracies were above it; below 0, they were below.
    """

    target: float
    balance: float


class Balances:
    """The accuracy balances of a node's tasks.

    Parameters
    ----------
    sites
        Those that serve, by task; read when asked.
    targets
        Accuracy target by task; None, or no entry, where a task has none, and so no balance.
    """

    def __init__(self, sites: Mapping[str, Site], targets: Mapping[str, float | None]) -> None:
        self._sites = sites
        self._targets = {task: one for task, one in targets.items() if one is not None}
        self._left: dict[str, float] = {}

    @property
    def now(self) -> dict[str, Balance]:
        """By task, as of this moment; without those at 0."""
        found = {task: Balance(one, self._of(task)) for task, one in self._targets.items()}
        return {task: one for task, one in found.items() if one.balance}

    def take_up(self, saved: Mapping[str, Balance]) -> None:
        """Go on from saved balances, as far as the promise is still the same."""
        for task, (target, balance) in saved.items():
            if self._targets.get(task) == target:
                self._add(task, balance)

    def came(self, task: str) -> None:
        """A task that had no site, or another, has one now; it has what was left from here on."""
        self._add(task, self._left.pop(task, 0.0))

    def went(self, task: str, site: Site, leaving: asyncio.Task[None]) -> None:
        """A task has no site any more.

        Parameters
        ----------
        task
            Which one.
        site
            That was its last.
        leaving
            Ends when it has answered what it had. What it undoes until then counts as well.
        """
        if task in self._targets:
            owed = site.pool.dispatcher.balance
            self._left[task] = owed
            leaving.add_done_callback(partial(self._settle, task, site, owed))

    def _settle(self, task: str, site: Site, owed: float, leaving: asyncio.Task[None]) -> None:
        del leaving
        self._add(task, site.pool.dispatcher.balance - owed)

    def _of(self, task: str) -> float:
        site = self._sites.get(task)
        return self._left.get(task, 0.0) if site is None else site.pool.dispatcher.balance

    def _add(self, task: str, more: float) -> None:
        site = self._sites.get(task)
        if site is None:
            self._left[task] = self._left.get(task, 0.0) + more
        elif more:
            site.pool.dispatcher.site.balance[0] += more
