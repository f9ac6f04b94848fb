"""Which URIs, hosts and addresses models may come from."""

from __future__ import annotations

import ipaddress
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from inferway.live.errors import ForbiddenSourceError, UnavailableError
from inferway.live.store.allowed import Allowed, kind_of, shown


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("8.8.8.8", "public"),
        ("2606:4700::1111", "public"),
        ("127.0.0.1", "loopback"),
        ("127.255.0.9", "loopback"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("10.0.0.1", "private"),
        ("172.31.255.255", "private"),
        ("172.32.0.0", "public"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "private"),
        ("203.0.113.7", "private"),
        ("fd12::1", "private"),
        ("169.254.169.254", "link-local"),
        ("169.254.170.2", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("febf::1", "link-local"),
        ("fd00:ec2::254", "metadata"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("192.0.0.192", "metadata"),
        ("0.0.0.0", "reserved"),
        ("::", "reserved"),
        ("224.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("ff02::1", "reserved"),
        # The same address in all the clothes that IPv6 has for it.
        ("::ffff:169.254.169.254", "link-local"),
        ("::169.254.169.254", "reserved"),
        ("2002:a9fe:a9fe::1", "link-local"),
        ("64:ff9b::169.254.169.254", "link-local"),
        ("64:ff9b::8.8.8.8", "public"),
        ("2001:0:a9fe:a9fe::1", "reserved"),
        ("::ffff:8.8.8.8", "public"),
        ("::8.8.8.8", "reserved"),
        ("2002:808:808::1", "public"),
        # For a special purpose, or never given out.
        ("5f00::1", "reserved"),
        ("fec0::1", "private"),
        ("2001:20::1", "private"),
        ("2001:1ff::1", "private"),
        ("2001:200::1", "public"),
        ("100:0:0:1::1", "reserved"),
        ("4000::1", "reserved"),
        ("::ffff:0:127.0.0.1", "reserved"),
    ],
)
def test_addresses_are_told_apart(address: str, kind: str) -> None:
    assert kind_of(address) == kind


def special() -> Iterator[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Networks with a purpose of their own, as the running Python knows them."""
    for constants in ("_IPv4Constants", "_IPv6Constants"):
        for value in vars(getattr(ipaddress, constants)).values():
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, ipaddress.IPv4Network | ipaddress.IPv6Network):
                    yield one


def about(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> Iterator[Any]:
    """Addresses at and next to a network's borders, and some within."""
    first, last = int(network.network_address), int(network.broadcast_address)
    kind = ipaddress.IPv4Address if network.version == 4 else ipaddress.IPv6Address
    inside = random.Random(str(network))
    places = {first - 1, first, first + 1, (first + last) // 2, last - 1, last, last + 1}
    places |= {inside.randint(first, last) for _ in range(40)}
    return (kind(place) for place in places if 0 <= place < 1 << network.max_prefixlen)


def test_what_python_calls_not_global_is_never_public() -> None:
    networks = list(special())
    assert len(networks) > 40
    asked = 0
    for one in (one for network in networks for one in about(network)):
        asked += 1
        assert one.is_global or kind_of(str(one)) != "public", one
        if isinstance(one, ipaddress.IPv6Address):
            continue
        # In all that stands for it, it is no more public than it is itself.
        bits = int(one)
        for form in (
            0xFFFF << 32 | bits,
            bits,
            0x64FF9B << 96 | bits,
            0x2002 << 112 | bits << 80 | 1,
            0x20010000 << 96 | bits << 64 | ~bits & 0xFFFFFFFF,
            0x64FF9B0001 << 80 | bits,
        ):
            written = ipaddress.IPv6Address(form)
            kind = kind_of(str(written))
            assert kind != "public" or (one.is_global and kind_of(str(one)) == "public"), written
            assert written.is_global or kind != "public", written
    assert asked > 1_500


def found(*addresses: str) -> list[Any]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 443)) for one in addresses]


@pytest.mark.parametrize(
    ("allowed", "good"),
    [
        (Allowed(), ["8.8.8.8"]),
        (Allowed(loopback=True), ["127.0.0.1", "8.8.8.8"]),
        (Allowed(private=True), ["10.0.0.1", "8.8.8.8"]),
    ],
)
def test_only_allowed_addresses_are_left(allowed: Allowed, good: list[str]) -> None:
    source = allowed.source("https://models.test/model")
    given = found("127.0.0.1", "10.0.0.1", "169.254.169.254", "100.100.100.200", "8.8.8.8")
    assert allowed.addresses(source, given) == [(socket.AF_INET, (one, 443)) for one in good]


def test_hosts_without_an_allowed_address_are_refused() -> None:
    allowed = Allowed(loopback=True, private=True)
    source = allowed.source("https://models.test/model")
    with pytest.raises(ForbiddenSourceError) as caught:
        allowed.addresses(source, found("169.254.169.254", "169.254.169.254", "0.0.0.0"))
    assert str(caught.value) == (
        "the host models.test is at 169.254.169.254 (link-local), 0.0.0.0 (reserved), "
        "where models must not come from"
    )
    with pytest.raises(UnavailableError, match=r"models\.test has no address"):
        allowed.addresses(source, [])


def test_uris_are_taken_apart() -> None:
    allowed = Allowed()
    source = allowed.source("https://Models.Example.ORG.:8443/a%20b?key=1#part")
    assert source[1:] == ("models.example.org", 8443, "/a%20b?key=1")
    assert allowed.source("https://models.example.org").target == "/"
    assert allowed.source("https://[2606:4700::1111]/m")[1:3] == ("2606:4700::1111", 443)
    file = allowed.source("file:///models/a%20b.onnx")
    assert file.is_file
    assert file.target == "/models/a b.onnx"
    assert allowed.source("file://localhost/m").target == "/m"


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("", "characters that a URI must not"),
        ("model.onnx", "models come by file or https here, and model.onnx does not"),
        ("http://models.test/m", "and http://models.test/m does not"),
        ("ftp://models.test/m", "does not"),
        ("zoo://digits/tiny", "does not"),
        ("https:///m", "names no host"),
        ("https:m", "names no host"),
        ("https://a b/m", "characters that a URI must not"),
        ("https://models.test/\u00e9", "percent-encoded"),
        ("https://models.test/\r\nHost: x", r"percent-encoded"),
        ("https://models.test\\@127.0.0.1/m", "characters"),
        ("https://me@models.test/m", "holds a user name"),
        ("https://me:secret@models.test/m", "https://models.test/m holds a user name"),
        ("https://models.test:99999/m", "is not a URI"),
        ("https://[::1/m", "is not a URI"),
        ("https://-models/m", "names no host"),
        ("https://models.test%2f@x/m", "user name"),
        ("https://models%2etest/m", "names no host"),
        ("file://elsewhere/m", "names a host; write file:///"),
        ("file:relative", "no absolute path"),
        ("file:///a%00b", "no absolute path"),
    ],
)
def test_other_uris_are_refused(uri: str, why: str) -> None:
    with pytest.raises(ForbiddenSourceError, match=why) as caught:
        Allowed().source(uri)
    assert "secret" not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("hosts", "uri", "good"),
    [
        (["models.test"], "https://models.test/m", True),
        (["Models.Test"], "https://MODELS.test./m", True),
        (["models.test"], "https://models.test:8443/m", True),
        (["models.test"], "https://evil-models.test/m", False),
        (["models.test"], "https://models.test.evil/m", False),
        (["models.test"], "https://a.models.test/m", False),
        (["*.models.test"], "https://a.b.models.test/m", True),
        (["*.models.test"], "https://models.test/m", False),
        (["*.models.test"], "https://evilmodels.test/m", False),
        (["models.test:8443"], "https://models.test:8443/m", True),
        (["models.test:8443"], "https://models.test/m", False),
        (["a", "[::1]:8443"], "https://[::1]:8443/m", True),
        (["::1"], "https://[::1]/m", True),
        (["::1"], "https://[::2]/m", False),
        ([], "https://models.test/m", False),
        ([], "file:///m", True),
    ],
)
def test_only_named_hosts_are_allowed(hosts: list[str], uri: str, good: bool) -> None:
    allowed = Allowed(hosts=hosts)
    if good:
        allowed.source(uri)
    else:
        with pytest.raises(ForbiddenSourceError, match="is elsewhere"):
            allowed.source(uri)


def test_only_named_schemes_are_allowed() -> None:
    with pytest.raises(ForbiddenSourceError, match="models come by https here"):
        Allowed(schemes=["https"]).source("file:///m")
    with pytest.raises(ValueError, match="models come by file or https, not by 'http'"):
        Allowed(schemes=["http"])


@pytest.mark.parametrize("host", ["", "https://models.test", "models.test:", "*", "a.*", "a/b"])
def test_hosts_that_are_none_are_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"is no host: write it as models\.example\.org"):
        Allowed(hosts=[host])


def test_uris_are_shown_without_what_may_be_secret() -> None:
    assert shown("https://me:secret@h/m?signature=secret#secret") == "https://h/m"
    assert shown("https://h/\x1b[31m\n") == "https://h/\\x1b[31m\\n"
    assert len(shown("https://h/" + "a" * 1000)) == 203
