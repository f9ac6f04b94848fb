"""Allowed sources of models: schemes, hosts, and the addresses that hosts resolve to.

A deployment file names its models' sources, and a server may redirect anywhere, so that a node
could be sent to services that trust it: those on its own host, in its network, and above all the
cloud's metadata service, which hands out keys. A name is no protection, as whoever owns it decides
what it resolves to, each time anew; therefore `Allowed.addresses` judges the addresses, and the
download connects to these very ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

from inferway.live.errors import ForbiddenSourceError, UnavailableError

# A socket's family, and where it connects to.
Address = tuple[int, tuple[Any, ...]]
SCHEMES: Final = ("file", "https")

# Amazon over IPv6, Alibaba, Azure, Oracle; all of them, and others, answer at 169.254.169.254 too,
# which is link-local.
_METADATA: Final = tuple(
    map(ip_network, ("fd00:ec2::/32", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
_NAT64: Final = ip_network("64:ff9b::/96")
# Of IPv6, all that is for use between networks (RFC 4291).
_GIVEN_OUT: Final = ip_network("2000::/3")

_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")
_PRINTABLE: Final = re.compile(r"[!-~]+")


class ModelSource(NamedTuple):
    """A checked URI, in parts."""

    uri: str
    host: str  # In lower case; empty for a file
    port: int
    target: str  # Path and query; of a file, its path

    @property
    def is_file(self) -> bool:
        """Tell whether it lies on this machine."""
        return not self.host


@dataclass(frozen=True)
class Allowed:
    """The sources that models may come from.

    Attributes
    ----------
    schemes
        Of ``file`` and ``https``.
    hosts
        Names; ``*.example.org`` stands for all below it, and ``example.org:8443`` for one port
        only. None: any.
    loopback, private
        True where hosts may resolve to this machine, or to addresses of networks that are not
        public. Link-local and metadata addresses are never allowed.
    """

    schemes: Sequence[str] = SCHEMES
    hosts: Sequence[str] | None = None
    loopback: bool = False
    private: bool = False

    def __post_init__(self) -> None:
        """Check what was given; ValueError for an unknown scheme or something that is no host."""
        for scheme in self.schemes:
            if scheme not in SCHEMES:
                raise ValueError(f"models come by file or https, not by {scheme!r}")
        for host in self.hosts or ():
            name, port = _parted(host)
            name = name.removeprefix("*.")
            if not (_is_host(name) or _is_host(name[1:-1])) or not port.isdecimal():
                raise ValueError(
                    f"{host!r} is no host: write it as models.example.org, *.example.org or "
                    "models.example.org:8443"
                )

    def source(self, uri: str) -> ModelSource:
        """Check a model's URI without resolving anything; ForbiddenSourceError if it is refused."""
        name = shown(uri)
        if not _PRINTABLE.fullmatch(uri) or "\\" in uri:
            raise ForbiddenSourceError(
                f"{name} holds characters that a URI must not; write them percent-encoded"
            )
        try:
            parts = urlsplit(uri)
            port = 443 if parts.port is None else parts.port
        except ValueError as error:
            raise ForbiddenSourceError(f"{name} is not a URI: {error}") from None
        path, host = unquote(parts.path), (parts.hostname or "").rstrip(".")
        is_file = parts.scheme == "file"
        by, at = " or ".join(self.schemes) or "no scheme", ", ".join(self.hosts or ()) or "no host"
        for right, of_file, complaint in (
            (parts.scheme in self.schemes, None, f"models come by {by} here, and {name} does not"),
            (
                parts.netloc in {"", "localhost"},
                True,
                f"{name} names a host; write file:/// and an absolute path",
            ),
            (
                path.startswith("/") and "\0" not in path,
                True,
                f"{name} is no absolute path; write file:/// and one",
            ),
            (
                parts.username is None,
                False,
                f"{name} holds a user name; a model's URI must hold none",
            ),
            (_is_host(host), False, f"{name} names no host"),
            (
                self.hosts is None or any(_matches(one, host, port) for one in self.hosts),
                False,
                f"models come from {at} here, and {name} is elsewhere",
            ),
        ):
            if not right and of_file in (None, is_file):
                raise ForbiddenSourceError(complaint)
        if is_file:
            return ModelSource(uri, "", 0, str(Path(path)))
        query = f"?{parts.query}" if parts.query else ""
        return ModelSource(uri, host, port, f"{parts.path or '/'}{query}")

    def redirected(self, source: ModelSource, location: str) -> ModelSource:
        """Check where a server says that a model is: ForbiddenSourceError, for any file too."""
        with suppress(ValueError):
            location = urljoin(source.uri, location)
        try:
            there = self.source(location)
        except ForbiddenSourceError as error:
            raise ForbiddenSourceError(f"{shown(source.uri)} redirects: {error}") from None
        if there.is_file:
            raise ForbiddenSourceError(f"{shown(source.uri)} redirects to a file of this machine")
        return there

    def addresses(self, source: ModelSource, found: Iterable[tuple[Any, ...]]) -> list[Address]:
        """Keep those that may be connected to of what `socket.getaddrinfo` found for a host.

        UnavailableError if it found none, and ForbiddenSourceError if none is left.
        """
        kinds = [(kind_of(where[0]), family, where) for family, _, _, _, where in found]
        good = [
            (family, where)
            for kind, family, where in kinds
            if kind == "public" or getattr(self, kind, False) is True
        ]
        if good:
            return good
        if not kinds:
            raise UnavailableError(f"the host {source.host} has no address")
        bad = dict.fromkeys(f"{where[0]} ({kind})" for kind, _, where in kinds)
        raise ForbiddenSourceError(
            f"the host {source.host} is at {', '.join(bad)}, where models must not come from"
        )


def kind_of(address: str) -> str:
    """Classify an address: public, private, loopback, link-local, metadata or reserved.

    An IPv6 address that stands for one of IPv4 (mapped, 6to4, NAT64) is what that one is.
    """
    # A scope, as in fe80::1%eth0, does not change what it is.
    one = ip_address(address.partition("%")[0])
    if isinstance(one, IPv6Address):
        inner = one.ipv4_mapped or one.sixtofour
        if inner is None and one in _NAT64:
            inner = IPv4Address(int(one) & 0xFFFFFFFF)
        if inner is not None:
            return kind_of(str(inner))
    tunneled = isinstance(one, IPv6Address) and one.teredo is not None
    kinds = {
        "metadata": any(one in network for network in _METADATA),
        "link-local": one.is_link_local,
        "loopback": one.is_loopback,
        "reserved": one.is_multicast or one.is_reserved or one.is_unspecified or tunneled,
        "public": one.is_global and (one.version == 4 or one in _GIVEN_OUT),
    }
    return next((kind for kind, holds in kinds.items() if holds), "private")


def shown(uri: str) -> str:
    """Write a URI for people: without user and query, which may hold keys, and on one line."""
    bare = uri.partition("?")[0].partition("#")[0]
    scheme, mark, rest = bare.partition("://")
    if mark:
        authority, slash, path = rest.partition("/")
        bare = f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"
    short = bare if len(bare) <= 200 else f"{bare[:200]}..."
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in short)


def _parted(host: str, port: int = 443) -> tuple[str, str]:
    """Give the name, in lower case, and its port, as written if one is."""
    if "]:" in host or host.count(":") == 1:
        name, _, written = host.lower().rpartition(":")
        return name, written
    return host.lower(), str(port)


def _matches(allowed: str, host: str, port: int) -> bool:
    name, wanted = _parted(allowed, port)
    name = name.removeprefix("[").removesuffix("]").rstrip(".")
    same = host.endswith(name[1:]) if name.startswith("*.") else host == name
    return same and int(wanted) == port


def _is_host(name: str) -> bool:
    with suppress(ValueError):
        return bool(_HOST.fullmatch(name) or ip_address(name))
    return False
