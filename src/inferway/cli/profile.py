"""``profile``: what the variants of a file are worth, by labeled data and this machine."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer

import inferway
from inferway.cli import options, terminal
from inferway.cli.terminal import FAILED, INTERRUPTED, failing, says

# From one Ctrl-C to another that is meant.
_PATIENCE_S: Final = 2.0


def profile(
    file: options.File,
    data: Annotated[
        Path,
        says("Labeled data: .npz, .csv or .parquet.", metavar="TEST", show_default=False),
    ],
    task: Annotated[str | None, says("Which, where the file has several.")] = None,
    score: Annotated[
        str,
        says(
            "class, top-5, f1, exact-match or ./FILE.py:FUNCTION of outputs and labels.",
            metavar="NAME",
        ),
    ] = "class",
    output: Annotated[
        str | None, says("Which output holds the answer, where that is not clear.", metavar="NAME")
    ] = None,
    group: Annotated[
        str | None,
        says("Array or column that says which rows are alike.", metavar="COLUMN"),
    ] = None,
    write: Annotated[
        bool, says("Keep it in FILE.profile.json, which FILE then goes by.", "--write")
    ] = False,
    again: Annotated[
        bool, says("Measure anew what FILE.profile.json holds already.", "--again")
    ] = False,
    hardware: Annotated[
        str | None,
        says(
            "Which one the times are of; the file's if it names one in all, else cpu.",
            metavar="NAME",
        ),
    ] = None,
    seed: Annotated[int, says("Of the split of the data, and of resampling.", min=0)] = 1,
    rounds: Annotated[int, says("Measurements of each service time.", min=1)] = 5,
    out: Annotated[Path | None, options.folder("Draw reliability and service times.")] = None,
    json: terminal.Json = False,
) -> None:
    """Measure each variant: accuracy, service times, memory, and what its confidence is worth.

    Half of the data are for accuracies, half for the confidence. Ctrl-C keeps what is done with
    --write, and the same command goes on from there.
    """
    from inferway.deployment.profile import profile_path
    from inferway.experiments.profiled import write_figures
    from inferway.profiling import DataError
    from inferway.profiling.measuring import ProfilingError

    path = options.existing(file)
    options.writable(out)
    try:
        with (
            failing(DataError),
            failing(ProfilingError, code=FAILED),
            terminal.progress() as told,
            _prompt(),
        ):
            profiled = inferway.profile(
                path,
                data,
                task=task,
                score=score,
                output=output,
                group=group,
                seed=seed,
                rounds=rounds,
                write=write,
                again=again,
                hardware=hardware,
                progress=told,
            )
    except KeyboardInterrupt:
        kept = "nothing was kept without --write"
        if write:
            kept = "no variant was measured yet"
            if profile_path(path).exists():
                kept = f"what was measured is kept in {profile_path(path)}, and the same command "
                kept += "goes on"
        terminal.complain(f"interrupted; {kept}")
        raise typer.Exit(INTERRUPTED) from None
    files, failure = options.saved(out, lambda: write_figures(profiled, out or Path()))
    names = list(map(str, files))
    terminal.present(
        json,
        lambda: {**profiled.to_json(), **({"figures": names} if names else {})},
        lambda: [*profiled.tables(), *names],
    )
    if profiled.path is not None and not json:
        print(f"written to {profiled.path}")
    if failure is not None:
        raise failure


@contextmanager
def _prompt() -> Iterator[None]:
    """Have Ctrl-C end the calls of the user's classes, which may take long, and nobody wait.

    Impatience does not disturb that: another Ctrl-C counts after a while alone, and ends this
    process at once, whatever it does.
    """
    from inferway.runtime import kill_workers

    interrupted_s = math.inf

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted_s
        now_s = time.monotonic()
        if interrupted_s == math.inf:
            interrupted_s = now_s
            # Beside what was interrupted, which may hold what this takes.
            threading.Thread(target=kill_workers, daemon=True).start()
            raise KeyboardInterrupt
        if now_s > interrupted_s + _PATIENCE_S:
            os._exit(INTERRUPTED)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # somebody else has a use for it
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if interrupted_s == math.inf:
            signal.signal(signal.SIGINT, before)
