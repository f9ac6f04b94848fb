"""``inferway demo``: policies, or schedulers, on real models, here and now."""

from __future__ import annotations

import signal
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from inferway.cli import terminal
from inferway.cli.failure import REFUSED, CommandError


class Demo(StrEnum):
    """What is shown."""

    POLICIES = "policies"
    BURST = "burst"


def demo(
    what: Annotated[
        Demo, typer.Argument(help="Dispatch policies, or schedulers under bursts with a deadline.")
    ] = Demo.POLICIES,
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("out"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of arrivals and images.")] = 1,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="For burst: a policy trained for what it leaves in --out, as rl-po."),
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Serve real models here and compare policies on one bursty stream of real images."""
    from inferway import demo as demo_
    from inferway.demo import burst
    from inferway.demo.burst_result import BurstResult

    if checkpoint is not None and what is not Demo.BURST:
        raise CommandError("--checkpoint is for `inferway demo burst`", REFUSED)
    # Told to end, it takes its servers with it, as after Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    out.mkdir(parents=True, exist_ok=True)
    result: demo_.DemoResult | BurstResult
    with terminal.progress() as progress:
        if what is Demo.BURST:
            result = burst.run(out=out, seed=seed, checkpoint=checkpoint, progress=progress)
        else:
            result = demo_.run(out=out, seed=seed, progress=progress)
    if json:
        terminal.document(result.to_json())
    else:
        terminal.show(*result.to_text())


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
