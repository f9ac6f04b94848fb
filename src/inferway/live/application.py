"""Changing a running server: the client's side of ``POST /apply``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from inferway.live.errors import ServeError
from inferway.unreadable import UNREADABLE, fault

if TYPE_CHECKING:
    from inferway.deployment import Deployment

ADMIN_URL = "http://127.0.0.1:8002"


def apply(
    deployment: Deployment | Path | str,
    admin_url: str = ADMIN_URL,
    *,
    key: str | None = None,
    timeout_s: float = 300.0,
) -> dict[str, Any]:
    """Have a running server serve another deployment file, or the same one changed.

    Parameters
    ----------
    deployment
        The file, or what `inferway.load` made of it. The server reads the file itself.
    admin_url
        Of the server's admin listener.
    key
        Where the server asks for one.
    timeout_s
        For loading and warming up what is new.

    Returns
    -------
    dict
        ``{"schema": 1, "tasks": {name: [variants]}}``: what is served now.

    Raises
    ------
    ServeError
        When the server refuses; it goes on as before.
    OSError
        When the server cannot be reached.
    """
    path = deployment if isinstance(deployment, str | Path) else deployment.path
    if path is None:
        raise ServeError("the deployment has no file that the server could read")
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    body = json.dumps({"path": str(Path(path).resolve())}).encode()
    request = Request(f"{admin_url.rstrip('/')}/apply", body, headers, method="POST")
    # Straight to the server: what it may be told is nothing for a proxy.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            said = answer.read()
    except HTTPError as error:
        with error:
            said = error.read()
        if error.code == 404:
            raise ServeError(
                f"{admin_url} is no server's admin listener: it has no /apply"
            ) from None
        try:
            reason = str(json.loads(said)["error"])
        except (*UNREADABLE, KeyError, TypeError):
            reason = f"HTTP status {error.code}"
        raise ServeError(reason) from None
    try:
        told: dict[str, Any] = json.loads(said)
    except UNREADABLE as error:
        raise ServeError(f"{admin_url} answers what is no JSON: {fault(error)}") from None
    return told
