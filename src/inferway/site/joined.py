"""One account of the devices that several tasks share, with a view for each task.

The sites of the tasks stay what their policies see. What devices ask of servers and classes lies in
arrays of all tasks, of which each site has its part, so that whoever changes one changes both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numba
import numpy as np

from inferway.site.view import (
    AllTasks,
    Alone,
    Changes,
    Floats,
    Ints,
    JoinedDevices,
    JoinedLine,
    NoChanges,
    SharedDevices,
    Site,
)

_OF_SERVERS = ("queue", "started_s", "ends_s", "free_s", "healthy")
_OF_CLASSES = ("idle", "sizes")
# Of a site, the one number that all tasks have in common; and those of which each has its own.
_COMMON, _OF_TASKS = ("clock_s",), ("idle_classes", "held")
_DEVICES_OF_SERVERS = ("holds", "waits", "due_s", "after", "before", "work_s", "wide")
_DEVICES_OF_CLASSES = ("device", "taken", "lead_s", "resting")
_CHANGES_OF_SERVERS = ("done_s", "joins_s", "place", "rows")


def abreast(sites: Sequence[Site]) -> tuple[list[Site], Ints]:
    """Let sites without devices have one clock: the same sites, and (T,) what their queues hold.

    `joined` does that for sites that share devices.
    """
    held = np.concatenate([one.held for one in sites])
    clock_s = sites[0].clock_s
    found = [one._replace(clock_s=clock_s, held=held[t : t + 1]) for t, one in enumerate(sites)]
    return found, held


def joined(sites: Sequence[Site], due_after_s: Floats) -> list[Site]:
    """Let sites share their devices: the same sites, whose devices are one account.

    At the start an exclusive device holds the fastest of the variants of all tasks. What is
    foreseen there is foreseen from `JoinedLine.sites`, which whoever moves the sites fills with
    what `by_itself` makes of each, pinned, whenever its arrays are others.

    Parameters
    ----------
    sites
        One for each task, empty, all of one node with `SharedDevices`.
    due_after_s
        (T,) how long after it came a request of each is due, s.
    """
    servers = np.cumsum([0, *(len(one.queue) for one in sites)]).tolist()
    classes = np.cumsum([0, *(len(one.rate) for one in sites)]).tolist()
    devices: list[SharedDevices] = [one.devices for one in sites]
    whole = {
        name: np.concatenate([getattr(one, name) for one in sites])
        for name in (*_OF_SERVERS, *_OF_CLASSES, *_OF_TASKS)
    } | {name: getattr(sites[0], name) for name in _COMMON}
    account: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in devices])
        for name in (*_DEVICES_OF_SERVERS, *_DEVICES_OF_CLASSES)
    }
    tasks = AllTasks(
        task=np.repeat(np.arange(len(sites)), np.diff(classes)),
        place=np.concatenate([np.arange(len(one.rate)) for one in sites]),
    )
    changes = _changes(sites, account, np.array(servers[:-1]), due_after_s)
    if isinstance(changes, Changes):
        of = account["device"]
        holds = (of < 0) | ~changes.exclusive[of] | (changes.held[of] == np.arange(len(of)))
        whole["idle"] = np.where(holds, account["resting"], 0)
        whole["idle_classes"] = np.array(
            [
                sum(1 << place for place, idle in enumerate(whole["idle"][low:high]) if idle > 0)
                for low, high in pairwise(classes)
            ]
        )
    every = sites[0]._replace(
        **whole,
        first=np.concatenate(
            [
                *(one.first[:-1] + before for one, before in zip(sites, servers[:-1], strict=True)),
                servers[-1:],
            ]
        ).astype(np.int64),
        server_class=np.concatenate(
            [one.server_class + before for one, before in zip(sites, classes[:-1], strict=True)]
        ).astype(np.int32),
        devices=devices[0]._replace(
            **account,
            widest=np.max([one.widest for one in devices], axis=0),
            predicts=True,
            lazily=all(one.lazily for one in devices),
            changes=changes,
            joined=tasks,
        ),
    )

    def own(t: int) -> Site:
        """Give a task its parts."""
        server, k = slice(*servers[t : t + 2]), slice(*classes[t : t + 2])
        parts: dict[str, Any] = {name: account[name][server] for name in _DEVICES_OF_SERVERS}
        parts |= {name: account[name][k] for name in _DEVICES_OF_CLASSES}
        common = devices[t]._replace(
            slots=every.devices.slots,
            used=every.devices.used,
            shown=every.devices.shown,
            first=every.devices.first,
            last=every.devices.last,
            runs_end_s=every.devices.runs_end_s,
            free_s=every.devices.free_s,
            changes=_part(changes, server, k),
            prompt=all(one.prompt for one in devices),
            joined=JoinedDevices(every, servers[t], classes[t]),
            **parts,
        )
        return sites[t]._replace(
            **{name: whole[name][server] for name in _OF_SERVERS},
            **{name: whole[name][k] for name in _OF_CLASSES},
            **{name: whole[name][t : t + 1] for name in _OF_TASKS},
            **{name: whole[name] for name in _COMMON},
            devices=common,
        )

    return [own(t) for t in range(len(sites))]


def by_itself(site: Site) -> Site:
    """The same site, whose task has all devices for itself, none of which is exclusive."""
    devices = site.devices._replace(changes=NoChanges(), joined=Alone())
    return site._replace(devices=devices)


def _changes(
    sites: Sequence[Site], account: Mapping[str, Any], first: Ints, due_after_s: Floats
) -> Changes | NoChanges:
    """Join what exclusive devices hold; nothing where no task uses any."""
    every = [one.devices.changes for one in sites]
    device = account["device"]
    if isinstance(every[0], NoChanges) or not every[0].exclusive[device[device >= 0]].any():
        return NoChanges()
    # Of what each task would hold there, the fastest.
    before = np.cumsum([0, *(len(one.rate) for one in sites)]).tolist()
    rate = np.concatenate([one.rate for one in sites])
    held = [
        max(
            (
                k + int(one.held[d])
                for k, one in zip(before, every, strict=False)
                if one.held[d] >= 0
            ),
            key=rate.__getitem__,
            default=-1,
        )
        for d in range(len(every[0].exclusive))
    ]
    compiled = not numba.config.DISABLE_JIT
    servers = {
        name: np.concatenate([getattr(one, name) for one in every]) for name in _CHANGES_OF_SERVERS
    }
    return every[0]._replace(
        load_s=np.concatenate([one.load_s for one in every]),
        held=np.array(held),
        line=JoinedLine(
            sites=np.zeros(len(sites), np.int64) if compiled else [None] * len(sites),
            like=by_itself(sites[0]),
            first=first,
            due_after_s=due_after_s,
        ),
        **servers,
    )


def _part(changes: Changes | NoChanges, server: slice, k: slice) -> Changes | NoChanges:
    """One task's part of them."""
    if isinstance(changes, NoChanges):
        return changes
    parts: dict[str, Any] = {name: getattr(changes, name)[server] for name in _CHANGES_OF_SERVERS}
    return changes._replace(load_s=changes.load_s[k], **parts)
