"""Nodes hear their neighbors, and nobody else, whatever is said to them."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import socket
import ssl
import struct
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zenoh
from peering import LIMIT_S, Heard, addresses_of, peers

from inferway.live import ServeError
from inferway.live.control.link import PeerLink
from inferway.live.control.peers import LIMIT_BYTES, Peers
from inferway.live.control.session import KeyExpressions, settings
from inferway.live.security.authority import issue
from inferway.live.security.tls import Credentials
from inferway.version import NODE_PROTOCOL

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
            KeyExpressions("test", name),
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


def stamp(process: int, number: int = 0, version: int = NODE_PROTOCOL) -> bytes:
    return struct.pack(">IQB", process, number, version)


async def reached(other: zenoh.Session, node: str, name: str) -> Any:
    """Wait until a node hears a session under a name; returns what puts, and never drops."""
    seen = threading.Event()
    watched = other.liveliness().declare_subscriber(
        f"inferway/test/{node}/{name}/alive/*", lambda _: seen.set(), history=True
    )
    assert await asyncio.to_thread(seen.wait, LIMIT_S)
    watched.undeclare()
    block = zenoh.CongestionControl.BLOCK
    return functools.partial(other.put, congestion_control=block, attachment=stamp(0))


@pytest.mark.parametrize("encrypted", [True, False])
def test_neighbors_meet_and_messages_come_in_order(certs: Path, encrypted: bool) -> None:
    async def main() -> None:
        async with peers(LINE, certs if encrypted else None) as of:
            await of["b"].met("a", "c")
            await of["a"].met("b")
            for k in range(300):
                of["a"].peers.send("b", "needed", b"%d" % k)
            of["b"].peers.send("a", "worst", b"answer")
            letters = await of["b"].message(300)
            assert letters == [("a", "needed", b"%d" % k) for k in range(300)]
            assert await of["a"].message() == [("b", "worst", b"answer")]
            size = sum(len(b"%d" % k) for k in range(300))
            assert of["a"].peers.cut().sent == {("b", "needed"): (300, size)}
            assert of["b"].peers.cut().received == {("a", "needed"): (300, size)}
            assert of["a"].peers.cut().sent == {}
            assert of["c"].messages == []

    asyncio.run(main())


def test_one_that_closes_is_gone_at_once_and_back_when_it_opens_again(certs: Path) -> None:
    async def main() -> None:
        addresses = addresses_of(tuple(PAIR))
        async with peers(PAIR, certs, addresses=addresses, only=("a",)) as of:
            of["a"].peers.send("b", "needed", b"nobody there")
            assert of["a"].peers.cut().refused == {("b", "gone"): 1}
            for count in (1, 2):
                async with peers(PAIR, certs, addresses=addresses, only=("b",)) as again:
                    await of["a"].met("b")
                    await again["b"].met("a")
                    # Who has seen the other may write at once.
                    again["b"].peers.send("a", "needed", b"here")
                    await of["a"].message(count)
                seen = len(of["a"].seen)
                await of["a"].until(lambda: not of["a"].peers.alive)
            assert of["a"].seen == [("b", True), ("b", False)] * 2
            assert seen >= 3
            assert await of["a"].message(2) == [("b", "needed", b"here")] * 2

    asyncio.run(main())


def test_a_burst_larger_than_any_queue_arrives_whole(certs: Path) -> None:
    async def main() -> None:
        async with peers(PAIR, certs) as of:
            await of["a"].met("b")
            value = os.urandom(1 << 20)
            for k in range(20):
                of["a"].peers.put("b", "menu", f"{k}", value)
            async with asyncio.timeout(LIMIT_S):
                # What was dropped where the link was full is asked for.
                while len(of["b"].values) < 20:
                    of["a"].peers.send("b", "menu", b"")
                    await asyncio.sleep(0.1)
            assert of["b"].values == {("a", "menu", f"{k}"): value for k in range(20)}

    asyncio.run(main())


def test_without_a_certificate_of_the_authority_nobody_comes_in(
    certs: Path, tmp_path: Path
) -> None:
    issue(["b"], tmp_path)  # the same name, by another authority
    # Even one that knows ours, and so would trust what it reaches.
    foreign = Credentials.of("b", tmp_path)._replace(authority=certs / "authority.pem")

    async def main() -> None:
        async with peers(PAIR, certs, only=("a",)) as of:
            a = of["a"].peers
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
            Peers(**config, listen=addresses["a"], credentials=Credentials.of("a", tmp_path))
        )
        await false.peers.open()
        with pytest.raises(zenoh.ZError):
            await session(intruder("b", addresses["a"], Credentials.of("b", certs)))
        await false.peers.close()
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
        async with peers(PAIR, certs) as of:
            await of["a"].met("b")
            known = Credentials.of(name, certs)
            other = await session(intruder(name, of["a"].peers.listen, known))
            try:
                kept = [
                    other.liveliness().declare_token(f"inferway/test/{name}/a/alive/00000000"),
                    other.liveliness().declare_token("inferway/test/b/a/alive/00000000"),
                ]
                overheard: list[Any] = []
                remote = zenoh.Locality.REMOTE
                other.declare_subscriber("inferway/**", overheard.append, allowed_origin=remote)
                # Named as the process that is the true one at this moment.
                true = stamp(int(str(of["a"].peers._links["b"].process), 16))
                of["a"].peers.put("b", "menu", "1", b"for b alone")
                for sender in (name, "b", "*"):
                    other.put(f"inferway/test/{sender}/a/needed", b"forged", attachment=true)
                    other.put(f"inferway/test/{sender}/a/menu/1", b"forged", attachment=true)
                # What it is answered shows that all of this has been read.
                replies = other.liveliness().get("inferway/test/a/*/alive/*", timeout=2.0)
                assert [one for one in replies if one.ok] == []
                told = other.get("inferway/test/a/**", timeout=2.0)
                assert [one for one in told if one.ok] == []
                of["b"].peers.send("a", "needed", b"true")
                of["a"].peers.send("b", "needed", b"secret")
                assert await of["a"].message() == [("b", "needed", b"true")]
                assert await of["b"].message() == [("a", "needed", b"secret")]
                assert of["a"].seen == [("b", True)]
                assert overheard == of["a"].changes == []
                del kept
            finally:
                other.close()

    asyncio.run(main())


def test_a_neighbor_speaks_in_its_own_name_only(certs: Path) -> None:
    # b is between a and c; a may not tell b what c says.
    async def main() -> None:
        addresses = addresses_of(tuple(LINE))
        async with peers(LINE, certs, addresses=addresses, only=("b",)) as of:
            config = intruder("c", addresses["b"], Credentials.of("c", certs))
            other = await session(config)
            try:
                put = await reached(other, "b", "c")
                token = other.liveliness().declare_token("inferway/test/a/b/alive/00000000")
                put("inferway/test/a/b/needed", b"forged")
                own = other.liveliness().declare_token("inferway/test/c/b/alive/00000000")
                await of["b"].met("c")
                put("inferway/test/c/b/needed", b"own")
                assert await of["b"].message() == [("c", "needed", b"own")]
                assert of["b"].seen == [("c", True)]
                del token, own
            finally:
                other.close()

    asyncio.run(main())


def test_what_no_node_would_send_is_counted_and_harmless(certs: Path) -> None:
    async def main() -> None:
        async with peers(PAIR, certs, only=("a",)) as of:
            a = of["a"].peers
            other = await session(intruder("b", a.listen, Credentials.of("b", certs)))
            try:
                token = other.liveliness().declare_token("inferway/test/b/a/alive/00000000")
                await of["a"].met("b")
                at = "inferway/test/b/a"
                put = await reached(other, "a", "b")
                put(f"{at}/needed", bytes(LIMIT_BYTES + 1))
                put(f"{at}/needed", bytes(10_000_000))  # in fragments, dropped by the first
                put(f"{at}/virus", b"x")
                put(f"{at}/*", b"x")
                put(f"{at}/menu/*", b"odd", attachment=stamp(0, 1))
                put(f"{at}/menu/1/2", b"deep", attachment=stamp(0, 2))
                put(f"{at}/needed", b"whose?", attachment=b"0123456789")
                put(f"{at}/needed", b"whose?", attachment=None)
                put(f"{at}/needed", b"tomorrow's", attachment=stamp(0, 0, NODE_PROTOCOL + 1))
                put(f"{at}/needed", b"")
                # What a later release says behind what is known is left aside.
                put(f"{at}/needed", b"good", attachment=stamp(0) + b"more")
                messages = await of["a"].message(2)
                assert of["a"].values == {("b", "menu", "*"): b"odd", ("b", "menu", "1/2"): b"deep"}
                assert messages == [("b", "needed", b""), ("b", "needed", b"good")]
                refused = {("b", "large"): 1, ("b", "kind"): 2, ("b", "anonymous"): 2}
                assert a.cut().refused == refused | {("b", "version"): 1}
                del token
            finally:
                other.close()

    asyncio.run(main())


def test_who_comes_again_before_it_was_seen_to_go_has_come_anew(certs: Path) -> None:
    async def main() -> None:
        async with peers(PAIR, certs) as of:
            a = of["a"]
            await a.met("b")
            config = intruder("b", a.peers.listen, Credentials.of("b", certs))
            other = await session(config)
            true = a.peers._links["b"].process
            for k in range(1, 3):
                tokens = [
                    other.liveliness().declare_token(f"inferway/test/b/a/alive/{n:08x}")
                    for n in range(10 * k, 10 * k + 9)
                ]
                # The first is another process, the last are too many to be.
                third = f"{10 * k + 2:08x}"
                await a.until(lambda third=third: a.peers._links["b"].process == third)
                await a.met("b")
                for token in tokens:
                    token.undeclare()
                # The one that was there all the time counts again.
                async with asyncio.timeout(LIMIT_S):
                    while a.peers._links["b"].process != true:
                        await asyncio.sleep(0.01)
                await a.met("b")
            alive = [one for _, one in a.seen]
            assert alive == [k % 2 == 0 for k in range(len(alive))]
            assert len(alive) >= 9
            other.close()

    asyncio.run(main())


def test_what_is_said_counts_with_the_process_that_says_it(certs: Path) -> None:
    async def main() -> None:
        async with peers(PAIR, certs, only=("a",)) as of:
            a = of["a"]
            config = intruder("b", a.peers.listen, Credentials.of("b", certs))
            other = await session(config)
            try:
                at = "inferway/test/b/a"
                put = await reached(other, "a", "b")
                now = {"process": 1, "number": 1, "value": b"first"}

                def answer(query: Any) -> None:
                    with query:
                        attachment = stamp(now["process"], now["number"])
                        query.reply(f"{at}/menu/1", now["value"], attachment=attachment)
                        query.reply(f"{at}/whole", b"", attachment=attachment)

                answering = other.declare_queryable(f"{at}/**", answer)

                async def reads(value: bytes) -> None:
                    await a.until(lambda: a.values.get(("b", "menu", "1")) == value)

                async def refused(count: int) -> None:
                    async with asyncio.timeout(LIMIT_S):
                        while a.peers._refused["b", "gone"] < count:
                            await asyncio.sleep(0.01)

                # Before it is seen: nobody's, and asked for when it is.
                put(f"{at}/menu/1", b"early", attachment=stamp(1, 1))
                await refused(1)
                assert a.changes == []
                first = other.liveliness().declare_token(f"{at}/alive/00000001")
                await reads(b"first")
                # The next one's, while the first still counts.
                put(f"{at}/menu/1", b"next", attachment=stamp(2, 5))
                put(f"{at}/menu/1", b"more", attachment=stamp(1, 2))
                await reads(b"more")
                await refused(2)
                now.update(process=2, number=5, value=b"next")
                second = other.liveliness().declare_token(f"{at}/alive/00000002")
                await reads(b"next")
                # After it has gone: nobody's.
                first.undeclare()
                put(f"{at}/menu/1", b"late", attachment=stamp(1, 3))
                await refused(3)
                put(f"{at}/menu/1", b"last", attachment=stamp(2, 6))
                await reads(b"last")
                second.undeclare()
                await a.until(lambda: not a.peers.alive)
                put(f"{at}/menu/1", b"late", attachment=stamp(2, 7))
                await refused(4)
                assert a.values["b", "menu", "1"] == b"last"
                assert [alive for _, alive in a.seen] == [True, False, True, False]
                answering.undeclare()
            finally:
                other.close()

    asyncio.run(main())


def test_who_comes_late_is_told_what_is_current(certs: Path) -> None:
    async def main() -> None:
        addresses = addresses_of(tuple(PAIR))
        async with peers(PAIR, certs, addresses=addresses, only=("a",)) as of:
            say = of["a"].peers
            say.publish("b", "menu", {"1": b"one", "2": b"two"})
            say.put("b", "floor", "7", b"least")
            say.publish("b", "menu", {"1": b"one", "3": b"three"})
            current = {("a", "menu", "1"): b"one", ("a", "menu", "3"): b"three"}
            current["a", "floor", "7"] = b"least"
            for count in range(2):
                async with peers(PAIR, certs, addresses=addresses, only=("b",)) as again:
                    b = again["b"]
                    await b.until(lambda b=b, current=current: b.values == current)
                    await of["a"].met("b")
                    say.cut()
                    # Only what changes is said, and where nothing does, that it holds.
                    say.publish("b", "menu", {"1": b"new %d" % count, "4": b"four"})
                    say.publish("b", "menu", {"1": b"new %d" % count, "4": b"four"})
                    assert await b.message() == [("a", "menu", b"")]
                    assert say.cut().sent["b", "menu"] == ((2, 6) if count else (4, 12))
                    current = {("a", "floor", "7"): b"least", ("a", "menu", "4"): b"four"}
                    current["a", "menu", "1"] = b"new %d" % count
                    assert b.values == current

    asyncio.run(main())


def test_what_is_lost_on_the_way_is_asked_for(certs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lossy(Peers):
        lose = 0

        def _transmit(self, link: PeerLink, key: str, data: bytes | None) -> None:
            if self.lose:
                self.lose -= 1
            else:
                super()._transmit(link, key, data)

    async def main() -> None:
        async with peers(PAIR, certs, make=Lossy) as of:
            a, b = of["a"], of["b"]
            say: Any = a.peers
            await a.met("b")
            await b.met("a")
            for k in range(3):
                values = {f"{n}": b"%d" % k for n in range(k, k + 4)}
                say.lose = 3
                say.publish("b", "menu", values)
                # What comes next shows that something is missing; so does that all holds.
                say.publish("b", "menu", values if k else {**values, "x": b"x"})
                values = values if k else {**values, "x": b"x"}
                wanted = {("a", "menu", name): data for name, data in values.items()}
                await b.until(lambda wanted=wanted: b.values == wanted)
                assert b.peers._links["a"].whole
                await asyncio.sleep(0.6)  # it does not ask more often

    asyncio.run(main())


def test_a_flood_is_cut_off(certs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = sum(256 + len(str(k)) for k in range(10_000))
    monkeypatch.setattr("inferway.live.control.peers._INBOX_BYTES", limit)

    async def main() -> None:
        async with peers(PAIR, certs) as of:
            await of["b"].met("a")
            await of["a"].met("b")
            for k in range(12_000):
                of["b"].peers.send("a", "needed", b"%d" % k)
            # The loop does not look meanwhile: it stands here.
            refused, flood = of["a"].peers._refused, ("b", "flood")
            end = time.monotonic() + LIMIT_S
            while refused[flood] < 2000:
                assert time.monotonic() < end
                time.sleep(0.001)
            messages = await of["a"].message(10_000)
            assert messages[-1] == ("b", "needed", b"9999")
            assert of["a"].peers.cut().refused == {flood: 2000}
            assert of["a"].seen == [("b", True)]

    asyncio.run(main())


def test_bytes_that_are_no_protocol_do_not_disturb(certs: Path) -> None:
    async def main() -> None:
        async with peers(PAIR, certs) as of:
            await of["a"].met("b")
            known = Credentials.of("b", certs)
            context = ssl.create_default_context(cafile=str(known.authority))
            context.load_cert_chain(known.certificate, known.key)
            context.check_hostname = False
            host, _, port = of["a"].peers.listen.rpartition(":")

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
            of["b"].peers.send("a", "needed", b"still here")
            assert await of["a"].message() == [("b", "needed", b"still here")]
            assert of["a"].seen == [("b", True)]

    asyncio.run(main())


def test_who_fails_to_take_a_message_fails_alone(certs: Path) -> None:
    async def main() -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
        async with peers(PAIR, certs) as of:

            def fail(neighbor: str, kind: str, name: str, data: bytes | None) -> None:
                raise RuntimeError(data)

            of["b"].peers.on_sample(fail)
            await of["a"].met("b")
            for k in range(3):
                of["a"].peers.send("b", "needed", b"%d" % k)
            assert len(await of["b"].message(3)) == 3
            await asyncio.sleep(0)
            assert of["b"].peers.cut().refused == {("a", "failed"): 3}
            assert [str(one["exception"]) for one in reported] == ["b'0'", "b'1'", "b'2'"]

    asyncio.run(main())


def test_a_link_ends_when_a_certificate_does(tmp_path: Path) -> None:
    issue(["a"], tmp_path)
    issue(["b"], tmp_path, days=1, at=datetime.now(UTC) - timedelta(days=1) + timedelta(seconds=5))

    async def main() -> None:
        async with peers(PAIR, tmp_path) as of:
            await of["a"].met("b")
            await of["a"].until(lambda: not of["a"].peers.alive)
            with pytest.raises(ServeError, match=r"b\.pem expired on"):
                Credentials.of("b", tmp_path).check("b")

    asyncio.run(main())


def test_names_may_hold_what_keys_may_not(tmp_path: Path) -> None:
    names = {"Zürich 1/2*": ("@home?",), "@home?": ("Zürich 1/2*",)}
    issue(list(names), tmp_path)

    async def main() -> None:
        async with peers(names, tmp_path) as of:
            await of["@home?"].met("Zürich 1/2*")
            of["@home?"].peers.send("Zürich 1/2*", "needed", b"x")
            assert await of["Zürich 1/2*"].message() == [("@home?", "needed", b"x")]

    asyncio.run(main())


def test_what_cannot_be_opened_or_sent_is_said(certs: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with peers(PAIR, certs, only=("a",)) as of:
            a = of["a"].peers
            again = Peers(
                "a",
                network="test",
                listen=a.listen,
                neighbors={},
                credentials=Credentials.of("a", certs),
            )
            with pytest.raises(ServeError, match=rf"node a cannot listen .* at {a.listen}"):
                await again.open()
        async with peers(PAIR, certs) as of:
            await of["a"].met("b")
            of["a"].peers.put("b", "menu", "1", bytes(LIMIT_BYTES + 1))
            of["a"].peers.send("b", "needed", bytes(LIMIT_BYTES + 1))
            assert of["a"].peers.cut().refused == {("b", "large"): 2}
            # What cannot be said does not keep the rest from being said to hold.
            of["a"].peers.publish("b", "menu", {"1": bytes(LIMIT_BYTES + 1)})
            assert of["a"].peers.cut().sent == {("b", "menu"): (1, 0)}
            await of["a"].peers.close()
            of["a"].peers.send("b", "needed", b"")
            assert of["a"].peers.cut().refused[("b", "gone")] == 1
        missing = Peers(
            "a",
            network="test",
            listen="127.0.0.1:1",
            neighbors={},
            credentials=Credentials.of("a", tmp_path),
        )
        with pytest.raises(ServeError, match=r"node a needs .*authority\.pem: No such file"):
            await missing.open()

    asyncio.run(main())
