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
    from inferway.protocol.address import parse_server

    try:
        return parse_server(url).url
    except ValueError as error:
        raise CommandError(str(error), REFUSED) from error


def key(file: Path | None, role: str = "infer") -> str | None:
    """Read a key from a file, or else from the environment; None where neither is given.

    The file may be the server's own (`inferway.live.security.keys.keys_from`), with its comments
    and roles: the first key counts that has the role, else the first.
    """
    from inferway.live.security.keys import ROLES, parted

    if file is None:
        given = os.environ.get("INFERWAY_KEY")
        return given and parted(given)[1]
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"{file} cannot be read: {reason}", REFUSED) from error
    words = (word for line in lines if not line.lstrip().startswith("#") for word in line.split())
    keys = [parted(word) for word in words]
    if not keys:
        raise CommandError(f"{file} holds no key", REFUSED)
    fitting = (key for roles, key in keys if roles & ROLES[role])
    return next(fitting, keys[0][1])
