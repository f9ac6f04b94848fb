from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.live.http.compression import MEMBERS, accepted, packing, unpacking
from inferway.protocol import RefusalError
from inferway.protocol.tensors import finished


def compress(body: bytes, encoding: bytes) -> bytes:
    return b"".join(finished(packing([body], encoding)))


def decompress(body: bytes, encoding: bytes, limit: int) -> bytes | bytearray:
    return finished(unpacking(body, encoding, limit))


@given(body=st.binary(max_size=5000), encoding=st.sampled_from([b"gzip", b"deflate"]))
def test_round_trip(body: bytes, encoding: bytes) -> None:
    assert decompress(compress(body, encoding), encoding.upper(), 5000) == body


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
def test_the_limit_holds_before_memory_is_spent(encoding: bytes) -> None:
    bomb = compress(bytes(50_000_000), encoding)
    tracemalloc.start()
    with pytest.raises(RefusalError, match="more than the limit of 1000 bytes") as caught:
        decompress(bomb, encoding, 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.status == 413
    assert peak < 1_000_000
    assert decompress(compress(bytes(1000), encoding), encoding, 1000) == bytes(1000)


def test_members_share_the_limit() -> None:
    members = gzip.compress(bytes(600)) * 2
    assert len(decompress(members, b"gzip", 1200)) == 1200
    with pytest.raises(RefusalError, match="more than the limit"):
        decompress(members, b"gzip", 1199)


def test_many_members_are_refused_before_they_cost_time() -> None:
    member = gzip.compress(b"x", mtime=0)
    assert decompress(member * MEMBERS, b"gzip", 100) == b"x" * MEMBERS
    for many in (member * (MEMBERS + 1), gzip.compress(b"", mtime=0) * 100_000):
        with pytest.raises(RefusalError, match="more than 16 members") as caught:
            decompress(many, b"gzip", 10**7)
        assert caught.value.status == 400


def test_a_member_may_end_anywhere_in_a_large_body() -> None:
    noise = random.Random(1).randbytes(700_000)
    body = gzip.compress(noise, 1, mtime=0) + gzip.compress(b"end")
    assert decompress(body, b"gzip", 10**6) == noise + b"end"
    with pytest.raises(RefusalError, match="truncated"):
        decompress(body[:-1], b"gzip", 10**6)


def test_bare_deflate_is_understood() -> None:
    machine = zlib.compressobj(wbits=-15)
    assert decompress(machine.compress(b"abc") + machine.flush(), b"deflate", 10) == b"abc"


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (gzip.compress(b"abc", mtime=0)[:-1], b"gzip", 400),
        (gzip.compress(b"abc", mtime=0) + b"rest", b"gzip", 400),
        (zlib.compress(b"abc") + b"rest", b"deflate", 400),
        (b"abc", b"gzip", 400),
        (b"abc", b"zstd", 415),
        (b"abc", b"gzip, gzip", 415),
    ],
)
def test_damaged_and_unknown(body: bytes, encoding: bytes, status: int) -> None:
    with pytest.raises(RefusalError) as caught:
        decompress(body, encoding, 100)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"", None),
        (b"identity", None),
        (b"gzip", b"gzip"),
        (b"deflate", b"deflate"),
        (b"deflate, gzip", b"gzip"),
        (b"GZIP;q=0.1, deflate;q=0.2", b"deflate"),
        (b"gzip;q=0", None),
        (b"gzip;q=x", None),
    ],
)
def test_accepted(header: bytes, expected: bytes | None) -> None:
    assert accepted(header) == expected
