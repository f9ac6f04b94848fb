"""What of a tracestate goes on, and beside what."""

from __future__ import annotations

import pytest

from inferway.live.http.exchange import MOST_BYTES, TraceContext, carried, members_of

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MANY = b",".join(b"k%d=%d" % (i, i) for i in range(32))


@pytest.mark.parametrize(
    "given",
    [
        b"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
        b"a=1 , \tb=2,,c= 3",
        b"0tenant_-*/@sys-tem=!\"#<>~ ;:'",
        b"k" * 256 + b"=1",
        b"0" * 241 + b"@" + b"s" * 14 + b"=" + b"v" * 200,
        b"k=" + b"v" * 256,
        MANY,
        b"a=1,a=2",
    ],
    ids=len,
)
def test_what_is_well_formed_goes_on_unchanged(given: bytes) -> None:
    assert carried(given) == given


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b" , ,",
        b"a",
        b"a=",
        b"=1",
        b"a=1=2",
        b"a =1",
        b"A=1",
        b"1a=1",
        b"a@=1",
        b"@a=1",
        b"a@b@c=1",
        b"a@1=1",
        b"a=\xc3\xa9",
        b"a=1\t2",
        b"a=1;b=2,c",
        b"k" * 257 + b"=1",
        b"0" * 242 + b"@s=1",
        b"0@" + b"s" * 15 + b"=1",
        b"k=" + b"v" * 257,
        MANY + b",one=more",
        MANY + b",",
    ],
    ids=repr,
)
def test_what_is_malformed_or_has_too_many_members_does_not(given: bytes) -> None:
    assert carried(given) == b""


def test_of_what_is_too_long_whole_members_go_long_ones_first_from_the_end() -> None:
    short = [b"s%d=%s" % (i, b"v" * 97) for i in range(5)]  # 100 bytes each
    long = [b"l%d=%s" % (i, b"w" * 150) for i in range(2)]
    # 504 + 154 + 154: both long ones go, and no other.
    given = b", ".join([long[0], *short[:3], long[1], *short[3:]])
    assert carried(given) == b",".join(short)
    # One long one is enough: the last.
    given = b",".join([long[0], *short[:3], long[1]])
    assert carried(given) == b",".join([long[0], *short[:3]])
    # Of short ones those at the end.
    assert carried(b",".join([*short, b"t=1", b"u=" + b"v" * 100])) == b",".join([*short, b"t=1"])
    assert carried(b"k" * 256 + b"=" + b"v" * 256) == b""
    exact = b",".join([*short, b"t=12345"])
    assert len(exact) == MOST_BYTES
    assert carried(exact) == exact
    assert carried(exact + b" ") == exact


def test_members_are_told_apart() -> None:
    assert members_of(b"b=1 2 , a@x=\t") == {"b": "1 2", "a@x": ""}
    assert list(members_of(b"b=1,, a= 2,b=3").items()) == [("b", "1"), ("a", " 2")]


@pytest.mark.parametrize("parent", [None, b"", b"ff" + PARENT[2:], PARENT[:-1]])
def test_there_is_none_without_a_valid_traceparent(parent: bytes | None) -> None:
    identity = TraceContext(None, parent, b"a=1")
    assert identity.state == b""
    assert b"tracestate" not in identity.onward()


def test_it_goes_on_to_nodes_and_not_back_to_clients() -> None:
    identity = TraceContext(b"seven", PARENT, b"b=2,a=1")
    assert identity.onward(b"1" * 16, b"01") == (
        b"X-Request-Id: seven\r\n"
        b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-1111111111111111-01\r\n"
        b"tracestate: b=2,a=1\r\n"
    )
    assert b"tracestate" not in identity.headers()


def test_a_traceparent_stays_where_the_tracestate_is_malformed() -> None:
    identity = TraceContext(None, PARENT, b"a")
    assert (identity.parent, identity.state) == (b"b7ad6b7169203331", b"")
    assert identity.onward().endswith(b"traceparent: %s\r\n" % PARENT)
