"""Where models may come from: schemes, hosts, and the addresses that hosts resolve to.

A deployment file names its models' sources, and a server may redirect anywhere, so that a node
could be sent to services that trust it: those on its own host, in its network, and above all the
cloud's metadata service, which hands out keys. A name is no protection, as whoever owns it decides
what it resolves to, each time anew; therefore `Allowed.addresses` judges the addresses, and the
download connects to these very ones.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

from inferway.live.store.error import ForbiddenSourceError, UnavailableError

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

SCHEMES: Final = ("file", "https")


def _networks(*written: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(one) for one in written)


# Our own table (after the IANA registries of special-purpose addresses, RFC 6890): what `ipaddress`
# calls private or global has changed between patch releases of Python. The first match counts.
_KINDS: Final = (
    # Amazon over IPv6, Alibaba, Azure, Oracle; all of them, and others, answer at
    # 169.254.169.254 too, which is link-local.
    ("metadata", _networks("fd00:ec2::/32", "100.100.100.200", "168.63.129.16", "192.0.0.192")),
    ("link-local", _networks("169.254.0.0/16", "fe80::/10")),
    ("loopback", _networks("127.0.0.0/8", "::1/128")),
    (
        "reserved",
        _networks(
            *("0.0.0.0/8", "192.88.99.0/24", "224.0.0.0/4", "240.0.0.0/4"),
            *("::/128", "100::/64", "100:0:0:1::/64", "ff00::/8"),
            # What is left of the special purposes below 2001:200::, ORCHID (2001:20::/28) too: a
            # few of them can be reached from everywhere, and no model lies there.
            "2001::/23",
        ),
    ),
    (
        "private",
        _networks(
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "192.0.0.0/24"),
            *("192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
            *("fc00::/7", "fec0::/10", "2001:db8::/32", "3fff::/20", "64:ff9b:1::/48"),
            "5f00::/16",
        ),
    ),
    # Of IPv6, only 2000::/3 has been given out for use between networks (RFC 4291).
    ("reserved", _networks("::/3", "4000::/2", "8000::/1")),
)
_SIX_TO_FOUR: Final = ipaddress.ip_network("2002::/16")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE: Final = ipaddress.ip_network("::/96")
_WRITTEN: Final = ipaddress.ip_network("::/80")
"""Mapped and compatible addresses: ways of writing, by which nothing is reached."""
_TEREDO: Final = ipaddress.ip_network("2001::/32")

_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")
_PRINTABLE: Final = re.compile(r"[!-~]+")


class Source(NamedTuple):
    """A checked URI, in parts.

    Attributes
    ----------
    uri
        As it was given.
    host
        In lower case; empty for a file.
    port
        0 for a file.
    target
        What is asked for: path and query; for a file, its path.
    """

    uri: str
    host: str
    port: int
    target: str

    @property
    def is_file(self) -> bool:
        """Whether it lies on this machine."""
        return not self.host


class Address(NamedTuple):
    """What a host resolved to.

    Attributes
    ----------
    family
        The socket's.
    where
        What the socket connects to.
    """

    family: int
    where: tuple[Any, ...]


@dataclass(frozen=True)
class Allowed:
    """Where models may come from.

    Attributes
    ----------
    schemes
        Of ``file`` and ``https``.
    hosts
        Names; ``*.example.org`` stands for all below it, and ``example.org:8443`` for one port
        only. None: any.
    loopback, private
        Whether hosts may resolve to this machine, or to addresses of networks that are not public.
        Link-local and metadata addresses are never allowed.
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
            name, _, port = host.rpartition(":") if _with_port(host) else (host, "", "1")
            name = name.removeprefix("*.").removeprefix("[").removesuffix("]")
            if not (_HOST.fullmatch(name.lower()) or _literal(name)) or not port.isdecimal():
                raise ValueError(
                    f"{host!r} is no host: write it as models.example.org, *.example.org or "
                    "models.example.org:8443"
                )

    def source(self, uri: str) -> Source:
        """Check a model's URI as far as it can be without resolving anything.

        Raises
        ------
        ForbiddenSourceError
            If models must not come from there.
        """
        if not _PRINTABLE.fullmatch(uri) or "\\" in uri:
            raise ForbiddenSourceError(
                f"{shown(uri)} holds characters that a URI must not; write them percent-encoded"
            )
        try:
            parts = urlsplit(uri)
            port = parts.port
        except ValueError as error:
            raise ForbiddenSourceError(f"{shown(uri)} is not a URI: {error}") from None
        if parts.scheme not in self.schemes:
            raise ForbiddenSourceError(
                f"models come by {' or '.join(self.schemes) or 'no scheme'} here, "
                f"and {shown(uri)} does not"
            )
        if parts.scheme == "file":
            return Source(uri, "", 0, _path(parts.netloc, parts.path, uri))
        if parts.username is not None or parts.password is not None:
            raise ForbiddenSourceError(
                f"{shown(uri)} holds a user name; a model's URI must hold none"
            )
        host = (parts.hostname or "").rstrip(".")
        if not _HOST.fullmatch(host) and _literal(host) is None:
            raise ForbiddenSourceError(f"{shown(uri)} names no host")
        port = 443 if port is None else port
        if self.hosts is not None and not any(_matches(one, host, port) for one in self.hosts):
            raise ForbiddenSourceError(
                f"models come from {', '.join(self.hosts) or 'no host'} here, "
                f"and {shown(uri)} is elsewhere"
            )
        query = f"?{parts.query}" if parts.query else ""
        return Source(uri, host, port, f"{parts.path or '/'}{query}")

    def redirected(self, source: Source, location: str) -> Source:
        """Check where a server says that a model is.

        Raises
        ------
        ForbiddenSourceError
            If models must not come from there; files must not, when a server says so.
        """
        try:
            uri = urljoin(source.uri, location)
        except ValueError:
            uri = location
        try:
            there = self.source(uri)
        except ForbiddenSourceError as error:
            raise ForbiddenSourceError(f"{shown(source.uri)} redirects: {error}") from None
        if there.is_file:
            raise ForbiddenSourceError(f"{shown(source.uri)} redirects to a file of this machine")
        return there

    def addresses(self, source: Source, found: Iterable[tuple[Any, ...]]) -> list[Address]:
        """Keep those of a host's addresses that may be connected to.

        Parameters
        ----------
        source
            Names the host.
        found
            What `socket.getaddrinfo` returned.

        Raises
        ------
        ForbiddenSourceError
            If none is left.
        """
        good, bad = [], []
        for family, _, _, _, where in found:
            kind = kind_of(where[0])
            if kind == "public" or getattr(self, kind, False) is True:
                good.append(Address(family, where))
            else:
                bad.append(f"{where[0]} ({kind})")
        if good:
            return good
        if not bad:
            raise UnavailableError(f"the host {source.host} has no address")
        raise ForbiddenSourceError(
            f"the host {source.host} is at {', '.join(dict.fromkeys(bad))}, "
            "where models must not come from"
        )


def kind_of(address: str) -> str:
    """Classify an address: public, private, loopback, link-local, metadata or reserved.

    An IPv6 address that stands for one of IPv4 (mapped, compatible, 6to4, NAT64) is what that one
    is. What nobody should need counts as reserved: Teredo, and public addresses written as mapped
    or compatible ones.
    """
    # A scope, as in fe80::1%eth0, does not change what it is.
    one: IPAddress = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(one, ipaddress.IPv6Address):
        if one in _TEREDO:
            return "reserved"
        inner = _inner(one)
        if inner is not None:
            kind = kind_of(str(inner))
            return "reserved" if kind == "public" and one in _WRITTEN else kind
    for kind, networks in _KINDS:
        if any(one in network for network in networks):
            return kind
    return "public"


def shown(uri: str) -> str:
    """Write a URI for people: without user and query, which may hold keys, and on one line."""
    bare = uri.partition("?")[0].partition("#")[0]
    scheme, mark, rest = bare.partition("://")
    if mark:
        authority, slash, path = rest.partition("/")
        bare = f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"
    short = bare if len(bare) <= 200 else f"{bare[:200]}..."
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in short)


def _inner(one: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    bits = int(one)
    if one.ipv4_mapped is not None:
        return one.ipv4_mapped
    if one in _SIX_TO_FOUR:
        return ipaddress.IPv4Address(bits >> 80 & 0xFFFFFFFF)
    if one in _NAT64 or (one in _COMPATIBLE and bits > 1):
        return ipaddress.IPv4Address(bits & 0xFFFFFFFF)
    return None


def _path(host: str, path: str, uri: str) -> str:
    if host not in {"", "localhost"}:
        raise ForbiddenSourceError(
            f"{shown(uri)} names a host; write file:/// and an absolute path"
        )
    plain = unquote(path)
    if not plain.startswith("/") or "\0" in plain:
        raise ForbiddenSourceError(f"{shown(uri)} is no absolute path; write file:/// and one")
    return str(Path(plain))


def _with_port(host: str) -> bool:
    return "]:" in host or (host.count(":") == 1)


def _matches(allowed: str, host: str, port: int) -> bool:
    allowed = allowed.lower()
    if _with_port(allowed):
        allowed, _, wanted = allowed.rpartition(":")
        if int(wanted) != port:
            return False
    allowed = allowed.removeprefix("[").removesuffix("]").rstrip(".")
    if allowed.startswith("*."):
        return host.endswith(allowed[1:])
    return host == allowed


def _literal(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
