"""Targets over several tasks of what is served, and the memory that their dispatchers share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inferway.dispatch.joint import TargetState, empty_shared
from inferway.dispatch.priced import HEADROOM
from inferway.live.pool import Pool
from inferway.live.site import TaskSite


class SharedTargets:
    """Targets of a server, of which each pool has those that its task is one of.

    Where a deployment is applied, a target with the same tasks and the same goal goes on, as a
    task's own does: if none is another than before, in the very same memory, which the pools that
    go still write to.

    Attributes
    ----------
    states
        By name, where each stands.
    shared
        (T, 7) memory; see `inferway.dispatch.joint`.
    """

    def __init__(
        self, told: Sequence[Mapping[str, Any]], before: SharedTargets | None = None
    ) -> None:
        self.shared = empty_shared(told, HEADROOM)
        self.states = self._states(told)
        if before is None:
            return
        if list(map(_promised, self.states.values())) == [*map(_promised, before.states.values())]:
            self.shared = before.shared
            self.states = self._states(told)
            return
        for name, state in self.states.items():
            old = before.states.get(name)
            if old is not None and _promised(old) == _promised(state):
                state.row[:] = old.row

    def _states(self, told: Sequence[Mapping[str, Any]]) -> dict[str, TargetState]:
        rows = zip(told, self.shared, strict=True)
        return {str(one["name"]): TargetState(one, row) for one, row in rows}

    def join(self, pools: Iterable[Pool]) -> None:
        """Have pools that serve nothing yet keep these targets."""
        for pool in pools:
            if "targets" in pool.dispatcher.options:
                own = [one for one in self.states.values() if pool.task in one.tasks]
                pool.share_targets(self.shared, own)


def shared_targets(
    pools: Sequence[Pool],
    before: SharedTargets | None = None,
    others: Sequence[Mapping[str, Any]] = (),
) -> SharedTargets | None:
    """Find the targets that pools are to keep together, and have them do so; None without any.

    Where no pool is told of any, `others` are those that pools to come will be.
    """
    told = [one for pool in pools if (one := pool.dispatcher.options.get("targets"))]
    told += [others] if others else []
    if not told:
        return None
    found = SharedTargets(told[0], before)
    found.join(pools)
    return found


def targets_of(sites: Iterable[TaskSite]) -> list[TargetState]:
    """List the targets over several tasks that are served now."""
    return list({one.name: one for site in sites for one in site.pool.targets}.values())


def _promised(state: TargetState) -> tuple[object, ...]:
    return state.name, state.tasks, state.kind, state.goal
