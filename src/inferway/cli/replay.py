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
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="From `serve --record DIR`.")],
    requests: Annotated[
        int, typer.Option(min=0, help="How many to replay of each task; 0: all.")
    ] = 10_000,
    json: terminal.Json = False,
) -> None:
    """Run recorded requests through the same policy and report every decision that differs."""
    from inferway.dispatch import replay as replaying

    found = {}
    try:
        with terminal.progress() as progress:
            for recording in replaying.recordings(folder):

                def done(count: int, name: str = recording.name) -> None:
                    progress(f"replaying {name}", min(1.0, count / requests) if requests else 0.5)

                one = replaying.replay(recording, requests=requests or None, progress=done)
                # A server that another file was applied to has several recordings of a task.
                found[recording.name if recording != folder else one.task] = one
    except ValueError as error:  # no recording, or one that cannot be read
        raise CommandError(str(error), REFUSED) from error
    if json:
        tasks = {task: one.to_json() for task, one in found.items()}
        terminal.document({"schema": 1, "tasks": tasks, "network": None})
    else:
        for task, one in found.items():
            terminal.show(*_lines(task, one))
    for task, one in found.items():
        for sentence in one.losses:
            terminal.complain(f"warning: {task}: {sentence}")
        if one.requests and not one.same_code:
            terminal.complain(
                f"warning: {task}: other code of policies and site than this made the recording; "
                + (
                    "the differences may be the code's"
                    if one.differences
                    else "this code decides the same"
                )
            )
    if any(one.differences for one in found.values()):
        raise typer.Exit(FAILED)


def _lines(task: str, one: Replay) -> list[str]:
    lines = [
        f"{task}: {one.requests} requests, {one.events} events, policy {one.policy}: "
        f"{len(one.differences) or 'no'} decision{'' if len(one.differences) == 1 else 's'} differ"
        f"{'s' if len(one.differences) == 1 else ''}"
    ]
    lines += [
        f"  request {each.request} at {each.time_s:.6f} s: {each.what} {each.recorded} then, "
        f"{each.replayed} now"
        for each in one.differences[:_SHOWN]
    ]
    if len(one.differences) > _SHOWN:
        lines.append(f"  and {len(one.differences) - _SHOWN} more; --json lists them all")
    return lines
