"""A deployment's own workload, sent to the server that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from inferway.loadgen.access import OPEN, Access, DriveError
from inferway.loadgen.message import inputs_of
from inferway.loadgen.metadata import signature
from inferway.loadgen.process import CONNECTIONS, GRACE_S, Stream, Told, replay, spoken
from inferway.loadgen.record import Record

if TYPE_CHECKING:
    from inferway.deployment import Deployment


URL: Final = "http://127.0.0.1:8000"
"""Where `inferway serve` listens unless told otherwise."""

DURATION_S: Final = 30.0


def run(
    deployment: Deployment,
    url: str = URL,
    *,
    duration_s: float = DURATION_S,
    seed: int | None = None,
    access: Access = OPEN,
    binary: bool = True,
    connections: int = CONNECTIONS,
    grace_s: float = GRACE_S,
    progress: Told | None = None,
) -> dict[str, Record]:
    """Send the workload of a deployment's file to a running server.

    Tasks of a zoo get images of its test set, with labels; others get random tensors of their
    signature, as the server tells it.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    url
        The server; nothing is sent anywhere else.
    duration_s
        How long to send, seconds.
    seed
        Of arrivals and inputs; the file's if not given.
    access, binary, connections, grace_s
        As in `replay`.
    progress
        Called with what is being done and the part of it that is done, 0..1.

    Returns
    -------
    records
        By task. After Ctrl-C they hold what was due until then and say `interrupted`.

    Raises
    ------
    DriveError
        When the file has no workload, nothing is due within the duration, or the server cannot be
        driven.
    """
    chosen = deployment.seed if seed is None else seed
    streams = [
        stream
        for index, name in enumerate(deployment.workload)
        if (stream := _stream(deployment, name, url, access, duration_s, (chosen, index)))
        is not None
    ]
    if not deployment.workload:
        raise DriveError(
            f"{deployment.path} has no `workload`: say there how requests arrive, for example "
            "workload: {TASK: {arrivals: {process: poisson, rate: 100/s}}}"
        )
    if not streams:
        raise DriveError(f"no request is due within {duration_s:g} s: drive for longer")

    records = replay(
        url,
        streams,
        access=access,
        binary=binary,
        connections=connections,
        grace_s=grace_s,
        progress=spoken(progress),
    )
    return {record.task: record for record in records}


def _stream(
    deployment: Deployment,
    name: str,
    url: str,
    access: Access,
    duration_s: float,
    seed: tuple[int, int],
) -> Stream | None:
    from inferway.dispatch.bounds import max_rate
    from inferway.site.fleet import fleet_of
    from inferway.workload.arrivals import times

    task = deployment.tasks[name]
    capacity = max_rate(fleet_of(deployment, name), task.accuracy_target)
    words = np.random.SeedSequence(seed).generate_state(3)
    times_s = times(
        deployment.workload[name].arrivals,
        horizon_s=duration_s,
        capacity_per_s=capacity,
        seed=int(words[0]),
    )
    if len(times_s) == 0:
        return None
    inputs = inputs_of(task, signature(url, name, access=access), int(words[1]))
    item = np.random.default_rng(int(words[2])).integers(0, len(inputs.images), len(times_s))
    used, item = np.unique(item, return_inverse=True)
    images, labels = inputs.only(used)
    return Stream(name, times_s, images, labels, item=item)
