"""``inferway demo``: four policies on real models, here and now."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from inferway.cli import terminal


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("out"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of arrivals and images.")] = 1,
    json: terminal.Json = False,
) -> None:
    """Serve real models here and compare four policies on one bursty stream of real images."""
    from inferway import demo as demo_

    # Told to end, it takes its servers with it, as after Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    out.mkdir(parents=True, exist_ok=True)
    with terminal.progress() as progress:
        result = demo_.run(out=out, seed=seed, progress=progress)
    if json:
        terminal.document(result.to_json())
    else:
        terminal.show(*result.to_text())


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
