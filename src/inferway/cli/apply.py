"""``inferway apply``: another deployment for a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from inferway.cli import address, terminal
from inferway.cli.failure import FAILED, CommandError
from inferway.cli.file import File, existing


def apply(
    file: File,
    admin_url: Annotated[
        str, typer.Option(help="The running server's admin listener.")
    ] = "http://127.0.0.1:8002",
    key_file: address.KeyFile = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds to wait until what is new is loaded and warm.")
    ] = 300.0,
    json: terminal.Json = False,
) -> None:
    """Have a running server serve this file, or the same file changed, without losing a request."""
    import inferway
    from inferway import live

    admin_url = address.checked(admin_url)
    deployment = inferway.load(existing(file))  # what is wrong is said here, with its lines
    key = address.key(key_file, "admin")
    try:
        told = live.apply(deployment, admin_url, key=key, timeout_s=timeout)
    except OSError as error:
        reason = getattr(error, "reason", error)
        why = (getattr(reason, "strerror", None) or str(reason)).lower()
        raise CommandError(
            f"no server can be asked at {admin_url} ({why}): start one with `inferway serve FILE`, "
            "or say with --admin-url where its admin listener is",
            FAILED,
        ) from error
    if json:
        terminal.document(told)
    else:
        for task, variants in told["tasks"].items():
            terminal.show(f"serving {task} with {', '.join(variants)}")
