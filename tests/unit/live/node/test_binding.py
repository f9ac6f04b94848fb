from __future__ import annotations

import re
import socket
from typing import Any

import pytest

from inferway.live import ServeError
from inferway.live.node.addresses import Addresses, bound

FAR = Addresses("edge.example.org:8000", "203.0.113.7:8003", "[2001:db8::7]:7447", "127.0.0.1:9002")
HERE = Addresses("127.0.0.1:8000", "127.0.0.2:8003", "localhost:7447")


def test_without_a_host_it_listens_where_it_is_reached() -> None:
    assert bound("edge", HERE) is HERE


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "0.0.0.0"])
def test_the_listeners_move_and_keep_their_ports(host: str) -> None:
    assert bound("edge", FAR, host) == Addresses(
        f"{host}:8000", f"{host}:8003", f"{host}:7447", "127.0.0.1:9002"
    )


@pytest.mark.parametrize("host", ["::1", "[::1]", "::", "[::]"])
def test_brackets_of_ipv6_may_be_left_out(host: str) -> None:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    bare = host.strip("[]")
    assert bound("edge", FAR, host) == Addresses(
        f"[{bare}]:8000", f"[{bare}]:8003", f"[{bare}]:7447", "127.0.0.1:9002"
    )


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "[::1]:8000", "edge:1", "8000", ":8000"])
def test_a_port_is_refused(host: str) -> None:
    said = f"--bind takes a host and no port, such as 0.0.0.0, and was given {host}: "
    with pytest.raises(ServeError, match=re.escape(said)):
        bound("edge", FAR, host)


@pytest.mark.parametrize(
    "host", ["", " ", "a b", "http://edge", "*", "0.0.0.0/0", "{node}.lan", "fe80::1%eth0", "a:b:c"]
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ServeError, match=f'^"{re.escape(host)}" is no host to listen at; write'):
        bound("edge", FAR, host)


@pytest.mark.parametrize("host", ["edge.invalid", "a" * 70])
def test_a_name_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(
        ServeError, match=f"^node edge cannot listen at {host}: no address of that name is found"
    ):
        bound("edge", FAR, host)


def test_an_address_of_another_machine_is_refused() -> None:
    said = (
        "^node edge cannot listen at 203.0.113.7: this machine has no such address; give --bind "
        "one that it has, or 0.0.0.0 for all of them$"
    )
    with pytest.raises(ServeError, match=said):
        bound("edge", FAR, "203.0.113.7")
    with pytest.raises(ServeError, match="at 2001:db8::7: this machine has no such address"):
        bound("edge", FAR, "[2001:db8::7]")


def test_an_own_address_that_is_elsewhere_is_refused_with_a_way_out() -> None:
    own = Addresses("127.0.0.1:8000", "203.0.113.7:8003", "127.0.0.1:7447")
    with pytest.raises(
        ServeError,
        match=r"at 203\.0\.113\.7: this machine has no such address; if it is reached there by way "
        r"of a router or a container, say by --bind where it listens, such as 0\.0\.0\.0$",
    ):
        bound("edge", own)


def test_a_name_must_be_this_machines_with_all_its_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask = socket.getaddrinfo

    def both(host: str, *args: Any, **options: Any) -> Any:
        assert host == "edge.lan"
        return [
            one
            for address in ("127.0.0.1", "203.0.113.7")
            for one in ask(address, *args, **options)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    with pytest.raises(
        ServeError, match=r"listen at edge\.lan: this machine has no address 203\.0\.113\.7; give"
    ):
        bound("edge", FAR, "edge.lan")


def test_listeners_that_differ_by_their_hosts_alone_are_refused() -> None:
    own = Addresses("edge.example.org:8000", "edge.lan:8003", "edge.lan:8000")
    with pytest.raises(
        ServeError,
        match=r"^node edge cannot listen at 0\.0\.0\.0:8000 for two: its addresses `http` and "
        "`control` differ by their hosts alone",
    ):
        bound("edge", own, "0.0.0.0")
