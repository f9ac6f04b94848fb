"""What a node's own copies can do for its neighbors."""

from __future__ import annotations

from collections.abc import Callable, Container

from inferway.dispatch.batching import least_s, most_per_s, rule_of
from inferway.dispatch.offers import Own
from inferway.live.node.accounts import Accounts
from inferway.live.node.position import Position
from inferway.live.node.sites import Sites


class Supply:
    """Measures how much of its copies' time a node's own clients take.

    Parameters
    ----------
    sites
        Where the copies run.
    accounts
        What was served for clients of the node.
    position
        The node's: its tasks, and whether it is a repository.
    now
        The clock, s.
    """

    def __init__(
        self, sites: Sites, accounts: Accounts, position: Position, *, now: Callable[[], float]
    ) -> None:
        self._sites, self._accounts = sites, accounts
        self._position, self._now = position, now
        self._taken_per_s: dict[tuple[str, str], float] = {}
        self._seen_s, self._seen = now(), accounts.for_clients.copy()

    def look(self) -> None:
        """Take in what was served since the last look: half of the rate that counts is of then."""
        now_s, counted = self._now(), self._accounts.for_clients.copy()
        passed_s = now_s - self._seen_s
        if passed_s <= 0.0:
            return
        for key in counted:
            rate = (counted[key] - self._seen[key]) / passed_s
            self._taken_per_s[key] = 0.5 * self._taken_per_s.get(key, rate) + 0.5 * rate
        self._seen_s, self._seen = now_s, counted

    def own(self, *, but: Container[tuple[str, str]] = ()) -> list[Own]:
        """List what runs here, as it is offered, but for some (task, variant).

        A request's service time is that of the smallest run, alone where the file's `batch` does
        not say more; what can be spared is counted in the batches that pay most.
        """
        found = []
        for (task, variant), copies in self._sites.running.items():
            site = self._sites.by_task.get(task)
            if (task, variant) in but or site is None or variant not in site.pool.variants:
                continue
            k = site.pool.variants.index(variant)
            pool = site.pool
            view = pool.dispatcher.site
            rule = rule_of(self._position.tasks[task].variants[variant].batch)
            healthy = min(copies, sum(pool.health.healthy[pool.first[k] : pool.first[k + 1]]))
            taken_per_s = self._taken_per_s.get((task, variant), 0.0)
            found.append(
                Own(
                    task,
                    variant,
                    pool.accuracy[k],
                    least_s(view, k, rule),
                    max(0.0, healthy * most_per_s(view, k, rule) - taken_per_s),
                    self._position.repository,
                    healthy * rule.largest if rule.largest > 1 else 0,
                )
            )
        return found
