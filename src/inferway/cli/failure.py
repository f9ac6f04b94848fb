"""Failure of a command as a person sees it: one sentence and an exit code, never a traceback."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

from inferway.cli.terminal import complain
from inferway.extras import installing

FAILED: Final = 1
"""The command could not do what was asked, or found something wrong."""
REFUSED: Final = 2
"""What was asked makes no sense: a wrong option, a file that is not a deployment."""
INTERRUPTED: Final = 130
"""Ctrl-C, as shells count it: 128 + SIGINT."""

# Shows the traceback as well, for a bug report.
_DEBUG: Final = "INFERWAY_DEBUG"

_EXTRAS: Final = {
    "grpc": ("grpc", "google"),
    "learn": ("torch", "sklearn", "gymnasium", "stable_baselines3", "sb3_contrib", "tensorboard"),
    "network": ("zenoh", "cryptography"),
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
    """Say on standard error what went wrong.

    Returns
    -------
    int
        Exit code.
    """
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
            sentence = _missing(error)
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
    context = getattr(error, "ctx", None)
    # What pydantic puts before the sentences of the parser is of no use to a person.
    message = error.format_message().strip().replace(": Value error, ", ": ", 1)
    if message:
        path = context.command_path if context is not None else "inferway"
        end = "" if message.endswith("?") else "."
        complain(f"{message.rstrip('.')}{end} See `{path} --help`.")
    return error.exit_code


def _missing(error: ModuleNotFoundError) -> str:
    missing = (error.name or "").partition(".")[0]
    for extra, modules in _EXTRAS.items():
        if missing in modules:
            return (
                f"this command needs {error.name}, which is in the extra `{extra}`: "
                f"{installing(extra)}"
            )
    return f"the module {error.name} is not installed: reinstall inferway"
