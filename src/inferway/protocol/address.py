"""Addresses of servers: HOST:PORT, a server's URL, and a model's URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

# Stands for the node's name, so that one address can be said of a tier's nodes.
NODE: Final = "{node}"
# A host's name, or an IPv4 address, in which `NODE` may stand.
LABELS: Final = r"(?:[A-Za-z0-9_.-]|\{node\})+"

_ADDRESS: Final = re.compile(rf"(?:({LABELS})|\[([0-9A-Fa-f:.]+)\])(?::([0-9]{{1,5}}))?")
_MODEL: Final = re.compile(r"(.*)/v2/models/([^/]+)(?:/versions/([^/]+))?/?")


def split(address: str) -> tuple[str, int | None]:
    """Split HOST or HOST:PORT, else ValueError; an IPv6 host loses its brackets."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(
            f'"{address[:60]}" is no address; write HOST or HOST:PORT, such as 10.0.0.7:8000, '
            "[fd00::7]:8000 or edge-1.example.org"
        )
    name, literal, port = match.groups()
    if port is None:
        return name or literal, None
    if not 0 < int(port) < 65536:
        raise ValueError(f"{address} names the port {port}; ports are 1 to 65535")
    return name or literal, int(port)


def joined(host: str, port: int) -> str:
    """Write host and port as one address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's address in parts.

    Attributes
    ----------
    host, port
        Where to connect.
    tls
        Whether the connection is encrypted.
    prefix
        Path before `/v2`, empty or beginning with a slash.
    """

    host: str
    port: int
    tls: bool
    prefix: str

    @property
    def authority(self) -> str:
        """Host and port as the Host header has them."""
        return joined(self.host, self.port)

    @property
    def url(self) -> str:
        """The server's address in one piece, for messages."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"

    @property
    def server_path(self) -> str:
        """Path of the server's own metadata."""
        return f"{self.prefix}/v2"

    def model_path(self, model: str, version: str | None = None) -> str:
        """Path of a model's metadata; `/infer` behind it answers requests."""
        pinned = "" if version is None else f"/versions/{quote(version, safe='')}"
        return f"{self.prefix}/v2/models/{quote(model, safe='')}{pinned}"


@dataclass(frozen=True, slots=True)
class ModelAddress(ServerAddress):
    """One model behind a server.

    Attributes
    ----------
    model, version
        As the server names them; None for the version that it chooses.
    """

    model: str
    version: str | None = None

    @property
    def path(self) -> str:
        """Path of the model's metadata."""
        return self.model_path(self.model, self.version)

    def __str__(self) -> str:
        return self.url.removesuffix(self.prefix) + self.path


def _parts(url: str) -> tuple[SplitResult, str, int] | None:
    """Split a URL of HTTP; its host and port beside it, None where it is none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # a bracket or a port that is none
        return None
    if not host or parts.scheme not in ("http", "https"):
        return None
    return parts, host, (443 if parts.scheme == "https" else 80) if port is None else port


def parse_server(url: str) -> ServerAddress:
    """Read `http://host:port/prefix` or `https://...`.

    Raises
    ------
    ValueError
        When it is no such address.
    """
    given = _parts(url if "://" in url else f"http://{url}")
    if given is None:
        raise ValueError(f"{url!r} is no server address: write it as http://127.0.0.1:8000")
    parts, host, port = given
    tls = parts.scheme == "https"
    return ServerAddress(host, port or (443 if tls else 80), tls, parts.path.rstrip("/"))


def parse_model(url: str) -> ModelAddress:
    """Read `http://host:port/v2/models/NAME` or `.../versions/VERSION`; `https` likewise.

    Raises
    ------
    ValueError
        When it is no such URL, with a sentence that says what would be right.
    """
    given = None if re.search(r"[^!-~]", url) else _parts(url)
    path = None if given is None else _MODEL.fullmatch(given[0].path)
    if given is None or path is None or not given[2] or given[0].query or given[0].fragment:
        raise ValueError(
            f"{url!r} is no model's URL: write it as http://127.0.0.1:8080/v2/models/NAME, or with "
            "/versions/VERSION behind it"
        )
    parts, host, port = given
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "a URL with a password in it would be in logs; name an environment variable in `key`"
        )
    prefix, model, version = path.groups()
    version = None if version is None else unquote(version)
    return ModelAddress(host, port, parts.scheme == "https", prefix, unquote(model), version)
