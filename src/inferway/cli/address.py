"""The URL of a server that some commands take, and the key that it may ask for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from inferway.cli.failure import REFUSED, CommandError

KeyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Holds a key of the server; else INFERWAY_KEY in the environment.",
        show_default=False,
    ),
]


def checked(url: str) -> str:
    """Return a server's address with scheme and port, or say that it is none."""
    from inferway.drive.address import DriveError, parse

    try:
        return parse(url).url
    except DriveError as error:
        raise CommandError(str(error), REFUSED) from error


def key(file: Path | None) -> str | None:
    """Read the first key of a file, or else of the environment; None where neither is given."""
    if file is None:
        return os.environ.get("INFERWAY_KEY")
    try:
        words = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} cannot be read: {error}", REFUSED) from error
    if not words:
        raise CommandError(f"{file} holds no key", REFUSED)
    return words[0]
