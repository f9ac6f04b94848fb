"""Nodes hear their neighbors, and nobody else, whatever is said to them."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zenoh
from planes import LIMIT_S, Heard, addresses_of, planes

from inferway.live import ServeError
from inferway.live.control.authority import issue
from inferway.live.control.control import ControlPlane
from inferway.live.control.credentials import Credentials
from inferway.live.control.session import Keys, settings

# Real clocks and sockets: on shared machines, processes stand still.
pytestmark = pytest.mark.flaky(reruns=1)

LINE = {"a": ("b",), "b": ("a", "c"), "c": ("b",)}
PAIR = {"a": ("b",), "b": ("a",)}


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    issue(["a", "b", "c", "far"], folder)
    return folder


async def session(config: dict[str, Any]) -> zenoh.Session:
    return await asyncio.to_thread(zenoh.open, zenoh.Config.from_json5(json.dumps(config)))


def intruder(name: str, target: str, credentials: Credentials | None) -> dict[str, Any]:
    """Configure a session that keeps to no rules, and gives up if it is not let in."""
    own = next(iter(addresses_of(("own",)).values()))
    config = json.loads(
        settings(
            Keys("test", name),
            own,
            {"a": target},
            credentials,
            lease_s=1.0,
            limit_bytes=1 << 30,
        )
    )
    config["access_control"]["enabled"] = False
    config["connect"].update(timeout_ms=0, exit_on_failure=True)
    return config


async def reached(other: zenoh.Session, node: str, name: str) -> Any:
    """Wait until a node hears a session under a name; returns what puts, and never drops."""
    seen = threading.Event()
    watched = other.liveliness().declare_subscriber(
        f"inferway/test/{node}/{name}/alive/*", lambda _: seen.set(), history=True
    )
    assert await asyncio.to_thread(seen.wait, LIMIT_S)
    watched.undeclare()
    block = zenoh.CongestionControl.BLOCK
    return functools.partial(other.put, congestion_control=block, attachment="0")


@pytest.mark.parametrize("encrypted", [True, False])
def test_neighbors_meet_and_letters_come_in_order(certs: Path, encrypted: bool) -> None:
    async def main() -> None:
        async with planes(LINE, certs if encrypted else None) as of:
            await of["b"].met("a", "c")
            await of["a"].met("b")
            for k in range(300):
                assert of["a"].plane.send("b", "needed", b"%d" % k)
            assert of["b"].plane.send("a", "worst", b"answer")
            letters = await of["b"].letter(300)
            assert letters == [("a", "needed", b"%d" % k) for k in range(300)]
            assert await of["a"].letter() == [("b", "worst", b"answer")]
            size = sum(len(b"%d" % k) for k in range(300))
            assert of["a"].plane.cut().sent == {("b", "needed"): (300, size)}
            assert of["b"].plane.cut().received == {("a", "needed"): (300, size)}
            assert of["a"].plane.cut().sent == {}
            assert of["c"].letters == []

    asyncio.run(main())


def test_one_that_closes_is_gone_at_once_and_back_when_it_opens_again(certs: Path) -> None:
    async def main() -> None:
        addresses = addresses_of(tuple(PAIR))
        async with planes(PAIR, certs, addresses=addresses, only=("a",)) as of:
            assert not of["a"].plane.send("b", "probe", b"nobody there")
            assert of["a"].plane.cut().refused == {("b", "gone"): 1}
            for count in (1, 2):
                async with planes(PAIR, certs, addresses=addresses, only=("b",)) as again:
                    await of["a"].met("b")
                    await again["b"].met("a")
                    # Who has seen the other may write at once.
                    assert again["b"].plane.send("a", "probe", b"here")
                    await of["a"].letter(count)
                seen = len(of["a"].seen)
                await of["a"].until(lambda: not of["a"].plane.alive)
            assert of["a"].seen == [("b", True), ("b", False)] * 2
            assert seen >= 3
            assert await of["a"].letter(2) == [("b", "probe", b"here")] * 2

    asyncio.run(main())


def test_a_burst_larger_than_any_queue_arrives_whole(certs: Path) -> None:
    async def main() -> None:
        async with planes(PAIR, certs) as of:
            await of["a"].met("b")
            letter = os.urandom(1 << 20)
            for _ in range(20):
                assert of["a"].plane.send("b", "probe", letter)
            assert await of["b"].letter(20) == [("a", "probe", letter)] * 20

    asyncio.run(main())


def test_without_a_certificate_of_the_authority_nobody_comes_in(
    certs: Path, tmp_path: Path
) -> None:
    issue(["b"], tmp_path)  # the same name, by another authority
    # Even one that knows ours, and so would trust what it reaches.
    foreign = Credentials.of("b", tmp_path)._replace(authority=certs / "authority.pem")

    async def main() -> None:
        async with planes(PAIR, certs, only=("a",)) as of:
            a = of["a"].plane
            with pytest.raises(zenoh.ZError):
                await session(intruder("b", a.listen, foreign))
            with pytest.raises(zenoh.ZError):
                await session(intruder("b", a.listen, None))
            bare = ssl.create_default_context(cafile=str(certs / "authority.pem"))
            bare.check_hostname = False
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(_talk, bare, a.listen)
            assert of["a"].seen == []
            own = await session(intruder("b", a.listen, Credentials.of("b", certs)))
            own.close()

    asyncio.run(main())


def test_a_node_connects_to_none_that_the_authority_does_not_know(
    certs: Path, tmp_path: Path
) -> None:
    issue(["a"], tmp_path)
    config = {"node": "a", "network": "test", "neighbors": {"b": None}}

    async def main() -> None:
        addresses = addresses_of(tuple(PAIR))
        false = Heard(
            ControlPlane(**config, listen=addresses["a"], credentials=Credentials.of("a", tmp_path))
        )
        await false.plane.open()
        with pytest.raises(zenoh.ZError):
            await session(intruder("b", addresses["a"], Credentials.of("b", certs)))
        await false.plane.close()
        assert false.seen == []

    asyncio.run(main())


def _talk(context: ssl.SSLContext, address: str) -> bytes:
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), LIMIT_S) as plain,
        context.wrap_socket(plain) as secure,
    ):
        secure.sendall(b"\x05\x00hello")
        if not (answer := secure.recv(100)):
            raise ConnectionError
        return answer


@pytest.mark.parametrize("name", ["far", "c"])
def test_a_node_that_is_no_neighbor_is_not_heard_under_any_name(certs: Path, name: str) -> None:
    async def main() -> None:
        async with planes(PAIR, certs) as of:
            await of["a"].met("b")
            known = Credentials.of(name, certs)
            other = await session(intruder(name, of["a"].plane.listen, known))
            try:
                kept = [
                    other.liveliness().declare_token(f"inferway/test/{name}/a/alive/0"),
                    other.liveliness().declare_token("inferway/test/b/a/alive/0"),
                ]
                overheard: list[Any] = []
                remote = zenoh.Locality.REMOTE
                other.declare_subscriber("inferway/**", overheard.append, allowed_origin=remote)
                # Named as the process that is the true one at this moment.
                (true,) = of["a"].plane._tokens["b"]
                process = true.rpartition("/")[2]
                for sender in (name, "b", "*"):
                    other.put(f"inferway/test/{sender}/a/probe", b"forged", attachment=process)
                # What it is answered shows that all of this has been read.
                replies = other.liveliness().get("inferway/test/a/*/alive/*", timeout=2.0)
                assert [one for one in replies if one.ok] == []
                of["b"].plane.send("a", "probe", b"true")
                of["a"].plane.send("b", "probe", b"secret")
                assert await of["a"].letter() == [("b", "probe", b"true")]
                assert await of["b"].letter() == [("a", "probe", b"secret")]
                assert of["a"].seen == [("b", True)]
                assert overheard == []
                del kept
            finally:
                other.close()

    asyncio.run(main())


def test_a_neighbor_speaks_in_its_own_name_only(certs: Path) -> None:
    # b is between a and c; a may not tell b what c says.
    async def main() -> None:
        addresses = addresses_of(tuple(LINE))
        async with planes(LINE, certs, addresses=addresses, only=("b",)) as of:
            config = intruder("c", addresses["b"], Credentials.of("c", certs))
            other = await session(config)
            try:
                put = await reached(other, "b", "c")
                token = other.liveliness().declare_token("inferway/test/a/b/alive/0")
                put("inferway/test/a/b/probe", b"forged")
                own = other.liveliness().declare_token("inferway/test/c/b/alive/0")
                await of["b"].met("c")
                put("inferway/test/c/b/probe", b"own")
                assert await of["b"].letter() == [("c", "probe", b"own")]
                assert of["b"].seen == [("c", True)]
                del token, own
            finally:
                other.close()

    asyncio.run(main())


def test_what_no_node_would_send_is_counted_and_harmless(certs: Path) -> None:
    async def main() -> None:
        async with planes(PAIR, certs, only=("a",), limit_bytes=2000) as of:
            a = of["a"].plane
            other = await session(intruder("b", a.listen, Credentials.of("b", certs)))
            try:
                token = other.liveliness().declare_token("inferway/test/b/a/alive/0")
                await of["a"].met("b")
                at = "inferway/test/b/a"
                put = await reached(other, "a", "b")
                put(f"{at}/probe", bytes(2001))
                put(f"{at}/probe", bytes(10_000_000))  # in fragments, dropped by the first
                put(f"{at}/virus", b"x")
                put(f"{at}/*", b"x")
                put(f"{at}/probe/deeper", b"x")
                put(f"{at}/probe", b"whose?", attachment=None)
                put(f"{at}/probe", b"")
                put(f"{at}/probe", b"good")
                letters = await of["a"].letter(2)
                assert letters == [("b", "probe", b""), ("b", "probe", b"good")]
                refused = {("b", "large"): 1, ("b", "kind"): 2, ("b", "anonymous"): 1}
                assert a.cut().refused == refused
                del token
            finally:
                other.close()

    asyncio.run(main())


def test_who_comes_again_before_it_was_seen_to_go_has_come_anew(certs: Path) -> None:
    async def main() -> None:
        async with planes(PAIR, certs) as of:
            await of["a"].met("b")
            config = intruder("b", of["a"].plane.listen, Credentials.of("b", certs))
            other = await session(config)
            for k in range(1, 3):
                tokens = [
                    other.liveliness().declare_token(f"inferway/test/b/a/alive/{n}")
                    for n in range(10 * k, 10 * k + 9)
                ]
                # The first is another process, the others are too many to be.
                await of["a"].until(lambda k=k: len(of["a"].seen) == 8 * k - 1)
                for token in tokens:
                    token.undeclare()
                # The one that was there all the time counts again.
                await of["a"].until(lambda k=k: len(of["a"].seen) == 8 * k + 1)
            assert [alive for _, alive in of["a"].seen] == [k % 2 == 0 for k in range(17)]
            assert of["a"].plane.alive == {"b"}
            other.close()

    asyncio.run(main())


def test_a_letter_counts_with_the_process_that_wrote_it(certs: Path) -> None:
    async def main() -> None:
        async with planes(PAIR, certs, only=("a",)) as of:
            a = of["a"]
            config = intruder("b", a.plane.listen, Credentials.of("b", certs))
            other = await session(config)
            try:
                put = functools.partial(await reached(other, "a", "b"), "inferway/test/b/a/probe")

                async def read(*letters: bytes) -> None:
                    await a.until(lambda: [data for _, _, data in a.letters] == list(letters))

                async def refused(count: int) -> None:
                    while a.plane._refused["b", "gone"] < count:
                        await asyncio.sleep(0.01)

                # Before it is seen: kept, in order, until it is.
                for k in range(3):
                    put(b"%d" % k, attachment="1")
                put(b"of nobody", attachment="9")
                await asyncio.sleep(0.3)
                assert a.letters == []
                first = other.liveliness().declare_token("inferway/test/b/a/alive/1")
                await read(b"0", b"1", b"2")
                await refused(1)
                # The next one's, while the first still counts.
                put(b"next", attachment="2")
                put(b"first", attachment="1")
                await read(b"0", b"1", b"2", b"first")
                second = other.liveliness().declare_token("inferway/test/b/a/alive/2")
                await read(b"0", b"1", b"2", b"first", b"next")
                # After it has gone: nobody's.
                first.undeclare()
                put(b"late", attachment="1")
                await refused(2)
                put(b"last", attachment="2")
                await read(b"0", b"1", b"2", b"first", b"next", b"last")
                second.undeclare()
                await a.until(lambda: not a.plane.alive)
                put(b"late", attachment="2")
                await refused(3)
                assert len(a.letters) == 6
                assert [alive for _, alive in a.seen] == [True, False, True, False]
            finally:
                other.close()

    asyncio.run(main())


def test_a_flood_is_cut_off(certs: Path) -> None:
    async def main() -> None:
        async with planes(PAIR, certs) as of:
            await of["b"].met("a")
            for k in range(12_000):
                assert of["b"].plane.send("a", "probe", b"%d" % k)
            # The loop does not look meanwhile: it stands here.
            refused, flood = of["a"].plane._refused, ("b", "flood")
            end = time.monotonic() + LIMIT_S
            while refused[flood] < 2000:
                assert time.monotonic() < end
                time.sleep(0.001)
            letters = await of["a"].letter(10_000)
            assert letters[-1] == ("b", "probe", b"9999")
            assert of["a"].plane.cut().refused == {flood: 2000}
            assert of["a"].seen == [("b", True)]

    asyncio.run(main())


def test_bytes_that_are_no_protocol_do_not_disturb(certs: Path) -> None:
    async def main() -> None:
        async with planes(PAIR, certs) as of:
            await of["a"].met("b")
            known = Credentials.of("b", certs)
            context = ssl.create_default_context(cafile=str(known.authority))
            context.load_cert_chain(known.certificate, known.key)
            context.check_hostname = False
            host, _, port = of["a"].plane.listen.rpartition(":")

            def rubbish() -> None:
                for k in range(20):
                    plain = socket.create_connection((host, int(port)), LIMIT_S)
                    wire = context.wrap_socket(plain) if k % 2 else plain
                    try:
                        wire.sendall(os.urandom(5000))
                    except OSError:  # it hung up
                        pass
                    finally:
                        wire.close()

            await asyncio.to_thread(rubbish)
            assert of["b"].plane.send("a", "probe", b"still here")
            assert await of["a"].letter() == [("b", "probe", b"still here")]
            assert of["a"].seen == [("b", True)]

    asyncio.run(main())


def test_who_fails_to_take_a_letter_fails_alone(certs: Path) -> None:
    async def main() -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
        async with planes(PAIR, certs) as of:

            def fail(neighbor: str, kind: str, data: bytes) -> None:
                raise RuntimeError(data)

            of["b"].plane.on_letter(fail)
            await of["a"].met("b")
            for k in range(3):
                of["a"].plane.send("b", "probe", b"%d" % k)
            assert len(await of["b"].letter(3)) == 3
            await asyncio.sleep(0)
            assert of["b"].plane.cut().refused == {("a", "failed"): 3}
            assert [str(one["exception"]) for one in reported] == ["b'0'", "b'1'", "b'2'"]

    asyncio.run(main())


def test_a_link_ends_when_a_certificate_does(tmp_path: Path) -> None:
    issue(["a"], tmp_path)
    issue(["b"], tmp_path, days=1, at=datetime.now(UTC) - timedelta(days=1) + timedelta(seconds=5))

    async def main() -> None:
        async with planes(PAIR, tmp_path) as of:
            await of["a"].met("b")
            await of["a"].until(lambda: not of["a"].plane.alive)
            with pytest.raises(ServeError, match=r"b\.pem expired on"):
                Credentials.of("b", tmp_path).check("b")

    asyncio.run(main())


def test_names_may_hold_what_keys_may_not(tmp_path: Path) -> None:
    names = {"Zürich 1/2*": ("@home?",), "@home?": ("Zürich 1/2*",)}
    issue(list(names), tmp_path)

    async def main() -> None:
        async with planes(names, tmp_path) as of:
            await of["@home?"].met("Zürich 1/2*")
            of["@home?"].plane.send("Zürich 1/2*", "probe", b"x")
            assert await of["Zürich 1/2*"].letter() == [("@home?", "probe", b"x")]

    asyncio.run(main())


def test_what_cannot_be_opened_or_sent_is_said(certs: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with planes(PAIR, certs, only=("a",)) as of:
            a = of["a"].plane
            again = ControlPlane(
                "a",
                network="test",
                listen=a.listen,
                neighbors={},
                credentials=Credentials.of("a", certs),
            )
            with pytest.raises(ServeError, match=rf"node a cannot listen .* at {a.listen}"):
                await again.open()
            with pytest.raises(ValueError, match="z is no neighbor of a"):
                a.send("z", "probe", b"")
            with pytest.raises(ValueError, match="'rumor' is none of the kinds"):
                a.send("b", "rumor", b"")
            with pytest.raises(ValueError, match="1048577 bytes; at most 1048576"):
                a.send("b", "probe", bytes((1 << 20) + 1))
        missing = ControlPlane(
            "a",
            network="test",
            listen="127.0.0.1:1",
            neighbors={},
            credentials=Credentials.of("a", tmp_path),
        )
        with pytest.raises(ServeError, match=r"node a needs .*authority\.pem: No such file"):
            await missing.open()

    asyncio.run(main())
