"""The two outputs of every command: words for people, or one JSON document."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document instead of words.", show_default=False),
]
"""The option that every command has."""


def document(content: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Print one JSON document on standard output; what is not a number in JSON becomes null."""
    sys.stdout.write(json.dumps(_plain(content), indent=indent, allow_nan=False) + "\n")
    sys.stdout.flush()


def show(*what: RenderableType) -> None:
    """Print tables and lines for people on standard output."""
    from rich.console import Console

    console = Console(highlight=False)
    for one in what:
        console.print(one)


def present(
    as_json: bool,
    content: Callable[[], Mapping[str, Any]],
    words: Callable[[], Iterable[RenderableType]],
) -> None:
    """Print what a command found: as one JSON document, or as tables and lines for people."""
    if as_json:
        document(content())
    else:
        show(*words())


@contextmanager
def unheard() -> Iterator[None]:
    """Print what a command goes on without, where nobody reads it or the disk is full."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        # What is left in the stream would fail again when the process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextmanager
def progress() -> Iterator[Callable[[str, float], None]]:
    """Show how far something is, on standard error and only if that is a terminal.

    Yields
    ------
    callable
        To be called with what is being done and the part of it that is done, 0..1.
    """
    if not _watched():
        yield lambda doing, done: None
        return
    from rich.progress import BarColumn, TimeElapsedColumn

    with _bar(BarColumn(), TimeElapsedColumn()) as update:
        yield lambda doing, done: update(description=doing, completed=done)


@contextmanager
def counted(
    what: str, total: int | None, scale: float = 1.0
) -> Iterator[Callable[[str, int], None] | None]:
    """Show how many are done, their rate and the time left, where `progress` would be shown.

    Yields
    ------
    callable
        To be called with what was done and how many more are; None where nothing is shown.
    """
    if not _watched():
        yield None
        return
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            unit = " M/s" if scale > 1.0 else "/s"
            return Text("" if task.speed is None else f"{task.speed / scale:.1f}{unit}")

    of = "" if total is None else " of {task.total:,.0f}"
    count = TextColumn("{task.completed:,.0f}" + of + f" {what}")
    columns = (BarColumn(bar_width=20), count, Rate(), TimeRemainingColumn(compact=True))
    with _bar(*columns, doing="compiling", total=total) as update:
        lock = threading.Lock()

        def tell(name: str, done: int) -> None:
            with lock:
                update(description=name, advance=done)

        yield tell


def _watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def _bar(*columns: Any, doing: str = "", total: float | None = 1.0) -> Iterator[Any]:
    """Yield what updates a bar of these columns, which goes at the end."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    described = TextColumn("{task.description}")
    with Progress(described, *columns, console=Console(stderr=True), transient=True) as bar:
        yield partial(bar.update, bar.add_task(doing, total=total))


@contextmanager
def compiling(shown: bool) -> Iterator[None]:
    """Say on standard error that something is being compiled, if that takes over a second.

    Parameters
    ----------
    shown
        Whether to; standard error that is no terminal is never told.
    """
    if not (shown and _watched()):
        yield
        return
    from inferway.site.compiled import Compilation, watched

    timers: list[threading.Timer] = []
    sentence = "compiling the policies, once; `inferway compile FILE` does it beforehand"
    say = cache(partial(complain, sentence))  # once

    def begun() -> None:
        timers.append(threading.Timer(1.0, say))
        timers[-1].daemon = True
        timers[-1].start()

    def done(_: Compilation) -> None:
        timers.pop().cancel()

    with watched(begun, done):
        yield


def complain(sentence: str) -> None:
    """Print a sentence, or several on a line each, on standard error as they are."""
    for line in sentence.splitlines() if sys.stderr is not None else ():
        sys.stderr.write(f"inferway: {line}\n")


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {str(key): _plain(one) for key, one in value.items()}
        case str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Sequence():
            return [_plain(one) for one in value]
        case _ if hasattr(value, "item"):  # a NumPy number
            return _plain(value.item())
        case _:
            return value
