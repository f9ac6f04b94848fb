"""The URL of a server that some commands take."""

from __future__ import annotations

from inferway.cli.failure import REFUSED, CommandError


def checked(url: str) -> str:
    """Return a server's address with scheme and port, or say that it is none."""
    from inferway.drive.address import DriveError, parse

    try:
        return parse(url).url
    except DriveError as error:
        raise CommandError(str(error), REFUSED) from error
