"""Where a remote model is, read from its URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, urlsplit

EXAMPLE: Final = "http://127.0.0.1:8080/v2/models/NAME"
_PATH: Final = re.compile(r"(.*)/v2/models/([^/]+)(?:/versions/([^/]+))?/?")


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """One model behind an Open Inference Protocol server.

    Attributes
    ----------
    host, port
        Where to connect.
    tls
        Whether the connection is encrypted.
    prefix
        Path before `/v2`, empty or beginning with a slash.
    model, version
        As the server names them; None for the version that it chooses.
    """

    host: str
    port: int
    tls: bool
    prefix: str
    model: str
    version: str | None = None

    @property
    def authority(self) -> str:
        """Host and port as the Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def model_path(self) -> str:
        """Path of the model's metadata; `/infer` behind it answers requests."""
        version = "" if self.version is None else f"/versions/{quote(self.version, safe='')}"
        return f"{self.prefix}/v2/models/{quote(self.model, safe='')}{version}"

    @property
    def server_path(self) -> str:
        """Path of the server's own metadata."""
        return f"{self.prefix}/v2"

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.model_path}"


def parse(url: str) -> RemoteAddress:
    """Read `http://host:port/v2/models/NAME` or `.../versions/VERSION`; `https` likewise.

    Raises
    ------
    ValueError
        When it is no such URL, with a sentence that says what would be right.
    """
    wrong = f"{url!r} is no model's URL: write it as {EXAMPLE}, or with /versions/VERSION behind it"
    if any(character <= " " or character > "~" for character in url):
        raise ValueError(wrong)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(wrong) from None
    path = _PATH.fullmatch(parts.path)
    if parts.scheme not in ("http", "https") or not parts.hostname or path is None or port == 0:
        raise ValueError(wrong)
    if parts.query or parts.fragment:
        raise ValueError(wrong)
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "a URL with a password in it would be in logs; name an environment variable in `key`"
        )
    prefix, model, version = path.groups()
    tls = parts.scheme == "https"
    return RemoteAddress(
        parts.hostname,
        port or (443 if tls else 80),
        tls,
        prefix,
        unquote(model),
        None if version is None else unquote(version),
    )
