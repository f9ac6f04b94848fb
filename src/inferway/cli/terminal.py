"""The two outputs of every command, words or one JSON document, and its end.

A command that fails says one sentence and has an exit code; nobody sees a traceback.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from inferway.extras import installing

if TYPE_CHECKING:
    from rich.console import RenderableType

FAILED: Final = 1  # it could not do what was asked, or found something wrong
REFUSED: Final = 2  # it makes no sense: a wrong option, a file that is not a deployment
INTERRUPTED: Final = 130  # Ctrl-C, as shells count it: 128 + SIGINT

Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document instead of words.", show_default=False),
]


def says(sentence: str, *names: str, **words: Any) -> Any:
    """Make an option by its help, its names if other than the parameter's, and what Typer takes."""
    return typer.Option(*names, help=sentence, **words)


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


def browsed(file: Path) -> bool:
    """Show a file in the browser; False where there is none that has a window."""
    names = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    if sys.platform.startswith("linux") and not any(map(os.environ.get, names)):
        return False  # one for terminals would take this one
    import webbrowser

    try:
        return webbrowser.open(file.resolve().as_uri())
    except webbrowser.Error:
        return False


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

    Yields what is to be called with what is being done and the part of it that is done, 0..1.
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

    Yields what is to be called with what was done and how many more are; None where nothing is.
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
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    described = TextColumn("{task.description}")
    with Progress(described, *columns, console=Console(stderr=True), transient=True) as bar:
        yield partial(bar.update, bar.add_task(doing, total=total))


@contextmanager
def compiling(shown: bool) -> Iterator[None]:
    """Say on a terminal's standard error that something compiles, if that takes over a second."""
    if not (shown and _watched()):
        yield
        return
    from inferway.site.compiled import watched

    timers: list[threading.Timer] = []
    sentence = "compiling the policies, once; `inferway compile FILE` does it beforehand"
    say = cache(partial(complain, sentence))  # once

    def begun() -> None:
        timers.append(threading.Timer(1.0, say))
        timers[-1].daemon = True
        timers[-1].start()

    with watched(begun, lambda _: timers.pop().cancel()):
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


_DEBUG: Final = "INFERWAY_DEBUG"  # shows the traceback as well, for a bug report
_EXTRAS: Final = {
    "dask": ("distributed",),
    "export": ("skl2onnx", "onnxmltools", "onnxscript", "skops"),
    "dashboard": ("starlette", "uvicorn"),
    "grpc": ("grpc", "google"),
    "learn": ("torch", "sklearn", "gymnasium", "stable_baselines3", "sb3_contrib", "tensorboard"),
    "network": ("zenoh", "cryptography"),
    "ray": ("ray",),
}


class CommandError(Exception):
    """A sentence for the person at the terminal, and the exit code."""

    def __init__(self, sentence: str, code: int = REFUSED) -> None:
        super().__init__(sentence)
        self.code = code


@contextmanager
def failing(*kinds: type[Exception], code: int = REFUSED) -> Iterator[None]:
    """Say errors of these kinds in their own words, and end the command with this exit code."""
    try:
        yield
    except kinds as error:
        raise CommandError(str(error), code) from error


def report(error: BaseException) -> int:
    """Say on standard error what went wrong; return the exit code."""
    if os.environ.get(_DEBUG):
        traceback.print_exception(error)
    code = FAILED
    match error:
        case typer.TyperException():
            return _usage(error)
        case KeyboardInterrupt():
            return INTERRUPTED
        case typer.Abort() | BrokenPipeError():
            return FAILED
        case CommandError():
            sentence, code = str(error), error.code
        case ModuleNotFoundError():
            module = (error.name or "").partition(".")[0]
            extra = next((extra for extra, of in _EXTRAS.items() if module in of), None)
            sentence = (
                f"the module {error.name} is not installed: reinstall inferway"
                if extra is None
                else f"this command needs {error.name}, which is in the extra `{extra}`: "
                f"{installing(extra)}"
            )
        case MemoryError():
            sentence = ": ".join(filter(None, ("this needs more memory than there is", str(error))))
        case OSError() if error.filename is not None:
            sentence = f"{error.filename}: {error.strerror or error}"
        case OSError() if error.strerror:
            sentence = error.strerror
        case ValueError() | OSError() | RuntimeError() if str(error):
            from inferway.deployment import DeploymentError

            sentence, code = str(error), REFUSED if isinstance(error, DeploymentError) else FAILED
        case _:
            sentence = (
                f"this is a bug in inferway: {type(error).__name__}: {error} "
                f"(set {_DEBUG}=1 to see where)"
            )
    complain(sentence)
    return code


def reason(error: OSError) -> str:
    """Say why a file cannot be read or written, without a number or the file's name."""
    return os.strerror(error.errno) if error.errno else str(error)


def _usage(error: typer.TyperException) -> int:
    # What pydantic puts before the sentences of the parser is of no use to a person.
    message = error.format_message().strip().replace(": Value error, ", ": ", 1)
    if message:
        path = getattr(getattr(error, "ctx", None), "command_path", "inferway")
        end = "" if message.endswith("?") else "."
        complain(f"{message.rstrip('.')}{end} See `{path} --help`.")
    return error.exit_code
