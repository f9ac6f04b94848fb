"""``inferway replay``: a recording through the same policy, every decision compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferway.cli import terminal
from inferway.cli.failure import FAILED, failing
from inferway.cli.options import says

if TYPE_CHECKING:
    from inferway.dispatch.replay import Replay

_SHOWN = 5
"""Differing decisions that people are shown."""


def replay(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="From --record of serve, node or up.")
    ],
    requests: Annotated[int, says("How many to replay of each recording; 0: all.", min=0)] = 10_000,
    json: terminal.Json = False,
) -> None:
    """Run recorded requests through the same policy and report every decision that differs."""
    from inferway.dispatch import replay as replaying

    found: dict[str, Replay] = {}
    # The recordings of a task together: at each node, where there are nodes.
    tasks: dict[str, dict[str, Replay]] = {}
    # ValueError where there is no recording, or one that cannot be read.
    with failing(ValueError), terminal.progress() as progress:
        for recording in replaying.recordings(folder):
            name = str(recording.relative_to(folder))

            def done(count: int, name: str = name) -> None:
                progress(f"replaying {name}", min(1.0, count / requests) if requests else 0.5)

            one = replaying.replay(recording, requests=requests or None, progress=done)
            # Of a task there are several where its fleet has changed.
            name = one.task if recording == folder else name
            found[name] = one
            tasks.setdefault(str(Path(name).parent / one.task), {})[name] = one
    documents = {task: one.to_json() for task, one in found.items()}
    terminal.present(
        json,
        lambda: {"schema": 1, "tasks": documents, "network": None},
        lambda: (line for task, several in tasks.items() for line in _lines(task, several)),
    )
    for task, several in tasks.items():
        for name, one in several.items():
            for sentence in one.losses:
                terminal.complain(f"warning: {name}: {sentence}")
        if any(one.requests and not one.same_code for one in several.values()):
            differ = any(one.differences for one in several.values())
            terminal.complain(
                f"warning: {task}: other code of policies and site than this made the recording; "
                + ("the differences may be the code's" if differ else "this code decides the same")
            )
    if any(one.differences for one in found.values()):
        raise typer.Exit(FAILED)


def _lines(task: str, several: dict[str, Replay]) -> Iterator[str]:
    policies = ", ".join(dict.fromkeys(one.policy for one in several.values()))
    requests, events = (
        sum(getattr(one, name) for one in several.values()) for name in ("requests", "events")
    )
    count = sum(len(one.differences) for one in several.values())
    where = "" if len(several) == 1 else f" in {len(several)} recordings"
    differ = "1 decision differs" if count == 1 else f"{count or 'no'} decisions differ"
    yield f"{task}: {requests} requests, {events} events{where}, policy {policies}: {differ}"
    for name, one in several.items():
        if where and one.differences:
            yield from _lines(name, {name: one})
        elif not where:
            for each in one.differences[:_SHOWN]:
                yield (
                    f"  request {each.request} at {each.time_s:.6f} s: {each.what} "
                    f"{each.recorded} then, {each.replayed} now"
                )
            if len(one.differences) > _SHOWN:
                yield f"  and {len(one.differences) - _SHOWN} more; --json lists them all"
