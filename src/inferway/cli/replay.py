"""``inferway replay``: a recording through the same policy, every decision compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferway.cli import terminal
from inferway.cli.failure import FAILED, REFUSED, CommandError

if TYPE_CHECKING:
    from inferway.dispatch.replay import Replay

_SHOWN = 5
"""Differing decisions that people are shown."""


def replay(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="From --record of serve, node or up.")
    ],
    requests: Annotated[
        int, typer.Option(min=0, help="How many to replay of each recording; 0: all.")
    ] = 10_000,
    json: terminal.Json = False,
) -> None:
    """Run recorded requests through the same policy and report every decision that differs."""
    from inferway.dispatch import replay as replaying

    found = {}
    try:
        with terminal.progress() as progress:
            for recording in replaying.recordings(folder):
                name = str(recording.relative_to(folder))

                def done(count: int, name: str = name) -> None:
                    progress(f"replaying {name}", min(1.0, count / requests) if requests else 0.5)

                one = replaying.replay(recording, requests=requests or None, progress=done)
                # Of a task there are several where its fleet has changed.
                found[one.task if recording == folder else name] = one
    except ValueError as error:  # no recording, or one that cannot be read
        raise CommandError(str(error), REFUSED) from error
    if json:
        tasks = {task: one.to_json() for task, one in found.items()}
        terminal.document({"schema": 1, "tasks": tasks, "network": None})
    else:
        for task, several in _by_task(found).items():
            terminal.show(*_lines(task, several))
    for task, several in _by_task(found).items():
        for name, one in several.items():
            for sentence in one.losses:
                terminal.complain(f"warning: {name}: {sentence}")
        if any(one.requests and not one.same_code for one in several.values()):
            terminal.complain(
                f"warning: {task}: other code of policies and site than this made the recording; "
                + (
                    "the differences may be the code's"
                    if any(one.differences for one in several.values())
                    else "this code decides the same"
                )
            )
    if any(one.differences for one in found.values()):
        raise typer.Exit(FAILED)


def _by_task(found: dict[str, Replay]) -> dict[str, dict[str, Replay]]:
    """Put the recordings of a task together: at each node, where there are nodes."""
    tasks: dict[str, dict[str, Replay]] = {}
    for name, one in found.items():
        tasks.setdefault(str(Path(name).parent / one.task), {})[name] = one
    return tasks


def _lines(task: str, several: dict[str, Replay]) -> list[str]:
    if len(several) == 1:
        return [_line(task, *several.values()), *_differing(*several.values())]
    policies = ", ".join(dict.fromkeys(one.policy for one in several.values()))
    requests, events = (
        sum(getattr(one, name) for one in several.values()) for name in ("requests", "events")
    )
    count = sum(len(one.differences) for one in several.values())
    lines = [
        f"{task}: {requests} requests, {events} events in {len(several)} recordings, policy "
        f"{policies}: {_differ(count)}"
    ]
    for name, one in several.items():
        if one.differences:
            lines += [_line(name, one), *_differing(one)]
    return lines


def _line(name: str, one: Replay) -> str:
    return (
        f"{name}: {one.requests} requests, {one.events} events, policy {one.policy}: "
        f"{_differ(len(one.differences))}"
    )


def _differ(count: int) -> str:
    return "1 decision differs" if count == 1 else f"{count or 'no'} decisions differ"


def _differing(one: Replay) -> list[str]:
    lines = [
        f"  request {each.request} at {each.time_s:.6f} s: {each.what} {each.recorded} then, "
        f"{each.replayed} now"
        for each in one.differences[:_SHOWN]
    ]
    if len(one.differences) > _SHOWN:
        lines.append(f"  and {len(one.differences) - _SHOWN} more; --json lists them all")
    return lines
