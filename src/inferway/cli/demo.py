"""``inferway demo``: dispatch, scheduling or placement policies on real models, here and now."""

from __future__ import annotations

import signal
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from inferway.cli import terminal
from inferway.cli.failure import INTERRUPTED, REFUSED, CommandError
from inferway.cli.file import writable


class Demo(StrEnum):
    """What is shown."""

    POLICIES = "policies"
    BURST = "burst"
    NETWORK = "network"


def demo(
    what: Annotated[
        Demo,
        typer.Argument(
            help="Dispatch policies, schedulers under bursts with a deadline, or placement "
            "policies on a network of five nodes."
        ),
    ] = Demo.POLICIES,
    out: Annotated[Path, typer.Option(help="Folder for figures and files.")] = Path("out"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of arrivals and images.")] = 1,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="For burst: a policy trained for what it leaves in --out, as rl-po."),
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Serve real models here and compare policies on one stream of real images."""
    from inferway.studies.live import compare_placements, compare_policies, compare_schedulers

    if checkpoint is not None and what is not Demo.BURST:
        raise CommandError("--checkpoint is for `inferway demo burst`", REFUSED)
    writable(out)
    # Told to end, it takes its servers with it, as after Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    with terminal.progress() as progress:
        if what is Demo.BURST:
            result = compare_schedulers(
                out=out, seed=seed, checkpoint=checkpoint, progress=progress
            )
        elif what is Demo.NETWORK:
            result = compare_placements(out=out, seed=seed, progress=progress)
        else:
            result = compare_policies(out=out, seed=seed, progress=progress)
    if json:
        terminal.document(result.to_json())
    else:
        terminal.show(*result.to_text())
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
