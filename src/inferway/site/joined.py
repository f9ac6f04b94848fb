"""One account of the devices that several tasks share, with a view for each task.

The sites of the tasks stay what their policies see. What devices ask of servers and classes lies in
arrays of all tasks, of which each site has its part, so that whoever changes one changes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferway.site.view import AllTasks, Ints, JoinedDevices, NoChanges, SharedDevices, Site

_OF_SERVERS = ("queue", "started_s", "ends_s", "free_s", "healthy")
_OF_CLASSES = ("idle", "sizes")
# Of a site, the one number that all tasks have in common; and those of which each has its own.
_COMMON, _OF_TASKS = ("clock_s",), ("idle_classes", "held")
_DEVICES_OF_SERVERS = ("holds", "waits", "due_s", "after", "before", "work_s", "wide")
_DEVICES_OF_CLASSES = ("device", "taken", "lead_s", "resting")


def abreast(sites: Sequence[Site]) -> tuple[list[Site], Ints]:
    """Let sites without devices have one clock: the same sites, and (T,) what their queues hold.

    `joined` does that for sites that share devices.
    """
    held = np.concatenate([one.held for one in sites])
    clock_s = sites[0].clock_s
    found = [one._replace(clock_s=clock_s, held=held[t : t + 1]) for t, one in enumerate(sites)]
    return found, held


def joined(sites: Sequence[Site]) -> list[Site]:
    """Let sites share their devices: the same sites, whose devices are one account.

    Parameters
    ----------
    sites
        One for each task, empty, all of one node with `SharedDevices`; none of them uses one that
        is exclusive.
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
            changes=NoChanges(),
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
            changes=NoChanges(),
            prompt=all(one.prompt for one in devices),
            joined=JoinedDevices(every, servers[t]),
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
