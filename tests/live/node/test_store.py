"""The model store against real HTTPS servers, good ones and bad ones."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from model_server import (
    LIMIT_S,
    ModelServer,
    chunked,
    content_of,
    digest_of,
    make_certificate,
    redirect,
    say,
    until_gone,
    whole,
)
from patient import Patient

from inferway.live.store import (
    Allowed,
    DamagedError,
    ForbiddenSourceError,
    ModelStore,
    NoRoomError,
    StoreError,
    UnavailableError,
)

MODEL = content_of(300_000)
DIGEST = digest_of(MODEL)
OTHER = content_of(200_000, seed=1)

Make = Callable[..., ModelStore]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("certificate") / "server.pem"
    return make_certificate(file, "127.0.0.1", "localhost", "models.test")


@pytest.fixture
def server(certificate: Path) -> Iterator[ModelServer]:
    server = ModelServer(certificate)
    yield server
    server.close()


@pytest.fixture
def make(tmp_path: Path, certificate: Path) -> Make:
    def one(**settings: Any) -> ModelStore:
        given: dict[str, Any] = {
            "limit_bytes": 10_000_000,
            "allowed": Allowed(loopback=True),
            "tls": ssl.create_default_context(cafile=certificate),
        }
        return ModelStore(tmp_path / "models", **(given | settings))

    return one


def fetched(store: ModelStore, uri: str, digest: str = DIGEST) -> Path:
    async def main() -> Path:
        try:
            async with asyncio.timeout(LIMIT_S):
                return await store.fetch(uri, digest)
        finally:
            store.close()

    return asyncio.run(main())


def files(folder: Path) -> set[str]:
    """Suffixes of what is in the store's folder; the empty one is a whole model's."""
    return {path.suffix for path in (folder / "models").iterdir() if path.name != "lock"}


def test_a_model_is_there_when_it_has_come_and_is_not_asked_for_twice(
    server: ModelServer, make: Make
) -> None:
    server.replies["/model"] = whole(MODEL)
    told: list[tuple[int, int | None]] = []

    async def main() -> None:
        store = make()
        path = await store.fetch(
            server.url(),
            DIGEST.upper().replace("SHA256", "sha256"),
            lambda done, total: told.append((done, total)),
        )
        assert path.read_bytes() == MODEL
        assert await store.fetch(server.url(), DIGEST) == path
        (stored,) = store.contents()
        assert stored == (DIGEST, path, len(MODEL), 0)
        assert store.used_bytes == len(MODEL)
        store.close()

    asyncio.run(main())
    assert len(server.asked) == 1
    assert server.asked[0].headers["accept-encoding"] == "identity"
    assert told[-1] == (len(MODEL), len(MODEL))


def test_where_the_connection_breaks_the_rest_is_asked_for(
    server: ModelServer, make: Make, tmp_path: Path
) -> None:
    server.replies["/model"] = whole(MODEL, cuts=[100_000, 50_000])
    assert fetched(make(), server.url()).read_bytes() == MODEL
    assert [asked.start for asked in server.asked] == [0, 100_000, 150_000]
    assert server.asked[1].headers["if-range"] == '"one"'
    assert files(tmp_path) == {""}


def test_a_later_fetch_goes_on_where_the_last_one_stopped(
    server: ModelServer, make: Make, tmp_path: Path
) -> None:
    server.replies["/model"] = whole(MODEL, cuts=[100_000, 0])
    with pytest.raises(UnavailableError, match="breaks off: 100,000 bytes are there"):
        fetched(make(), server.url())
    assert files(tmp_path) == {".part", ".origin"}
    assert fetched(make(), server.url()).read_bytes() == MODEL
    assert [asked.start for asked in server.asked] == [0, 100_000, 100_000]


def test_a_server_that_breaks_off_again_and_again_is_given_up(
    server: ModelServer, make: Make
) -> None:
    server.replies["/model"] = whole(MODEL, cuts=[1] * 100)
    with pytest.raises(UnavailableError, match="breaks off: 5 bytes are there"):
        fetched(make(), server.url())
    assert len(server.asked) == 5


def test_a_file_that_changed_meanwhile_comes_from_its_beginning(
    server: ModelServer, make: Make
) -> None:
    server.replies["/model"] = whole(OTHER, '"old"', cuts=[100_000, 0])
    with pytest.raises(UnavailableError):
        fetched(make(), server.url())
    server.replies["/model"] = whole(MODEL, '"new"')
    assert fetched(make(), server.url()).read_bytes() == MODEL
    assert server.asked[-1].headers["if-range"] == '"old"'
    assert len(server.asked) == 3


@pytest.mark.parametrize("tag", [None, 'W/"weak"'])
def test_without_strong_tags_the_digest_tells_that_a_beginning_was_another_files(
    server: ModelServer, make: Make, tag: str | None
) -> None:
    server.replies["/model"] = whole(OTHER, tag, cuts=[100_000, 0])
    with pytest.raises(UnavailableError):
        fetched(make(), server.url())
    server.replies["/model"] = whole(MODEL, tag)
    assert fetched(make(), server.url()).read_bytes() == MODEL
    assert [asked.start for asked in server.asked] == [0, 100_000, 100_000, 0]
    assert not any("if-range" in asked.headers for asked in server.asked)


@pytest.mark.parametrize(
    "refusal",
    [
        ("416 Range Not Satisfiable", "Content-Range: bytes */10"),
        ("206 Partial Content", "Content-Range: bytes 7-299999/300000"),
        ("206 Partial Content", "Content-Range: nonsense"),
    ],
)
def test_a_rest_that_does_not_fit_is_not_taken(
    server: ModelServer, make: Make, refusal: tuple[str, str]
) -> None:
    good = whole(MODEL, cuts=[100_000, 0])
    server.replies["/model"] = good
    with pytest.raises(UnavailableError):
        fetched(make(), server.url())
    server.replies["/model"] = lambda wire, asked: (
        say(wire, *refusal, "Content-Length: 0") if asked.start else good(wire, asked)
    )
    assert fetched(make(), server.url()).read_bytes() == MODEL
    assert [asked.start for asked in server.asked] == [0, 100_000, 100_000, 0]


def test_all_bytes_that_a_kill_left_without_a_name_are_taken_without_asking(
    server: ModelServer, make: Make, tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / f"{DIGEST[7:]}.part").write_bytes(MODEL)
    assert fetched(make(), server.url()).read_bytes() == MODEL
    assert not server.asked


def test_another_file_is_refused_and_not_kept(
    server: ModelServer, make: Make, tmp_path: Path
) -> None:
    server.replies["/model"] = whole(OTHER)
    with pytest.raises(DamagedError, match=f"its digest is {digest_of(OTHER)}, expected {DIGEST}"):
        fetched(make(), server.url())
    assert files(tmp_path) == set()
    assert len(server.asked) == 1


def test_redirections_are_followed_within_what_is_allowed(server: ModelServer, make: Make) -> None:
    server.replies["/model"] = redirect("/elsewhere?key=1")
    server.replies["/elsewhere"] = redirect(server.url("/there", host="localhost"))
    server.replies["/there"] = whole(MODEL, cuts=[100_000])
    assert fetched(make(), server.url()).read_bytes() == MODEL
    # After an interruption it begins at the first address again, as the others may be for once.
    assert [asked.target for asked in server.asked] == [
        *("/model", "/elsewhere?key=1", "/there"),
        *("/model", "/elsewhere?key=1", "/there"),
    ]
    assert server.asked[-1].headers["if-range"] == '"one"'


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("https://169.254.169.254/latest/meta-data/", r"169\.254\.169\.254 \(link-local\)"),
        ("https://[fd00:ec2::254]/latest/", r"fd00:ec2::254 \(metadata\)"),
        ("https://[::ffff:169.254.169.254]/", r"\(link-local\)"),
        ("https://2852039166/", r"169\.254\.169\.254 \(link-local\)"),
        ("https://10.0.0.1/", r"10\.0\.0\.1 \(private\)"),
        ("http://127.0.0.1/", "does not"),
        ("file:///etc/passwd", "to a file of this machine"),
        ("https://me:secret@127.0.0.1/", "user name"),
        ("//[", "is not a URI|names no host"),
    ],
)
def test_redirections_elsewhere_are_refused(
    server: ModelServer, make: Make, location: str, why: str
) -> None:
    server.replies["/model"] = redirect(location)
    with pytest.raises(ForbiddenSourceError, match=why) as caught:
        fetched(make(), server.url())
    assert "secret" not in str(caught.value)


def test_redirections_go_only_to_the_hosts_that_were_named(server: ModelServer, make: Make) -> None:
    server.replies["/model"] = redirect(server.url("/there", host="localhost"))
    server.replies["/there"] = whole(MODEL)
    store = make(allowed=Allowed(hosts=["127.0.0.1"], loopback=True))
    with pytest.raises(ForbiddenSourceError, match=r"redirects: models come from 127\.0\.0\.1"):
        fetched(store, server.url())
    assert len(server.asked) == 1


def test_redirections_in_a_circle_end(server: ModelServer, make: Make) -> None:
    server.replies["/model"] = redirect("/model")
    with pytest.raises(UnavailableError, match="redirects more than 5 times"):
        fetched(make(), server.url())
    assert len(server.asked) == 6


def test_loopback_is_refused_unless_it_is_allowed(server: ModelServer, make: Make) -> None:
    server.replies["/model"] = whole(MODEL)
    with pytest.raises(ForbiddenSourceError, match=r"localhost is at .*127\.0\.0\.1 \(loopback\)"):
        fetched(make(allowed=Allowed()), server.url(host="localhost"))
    assert not server.asked


class Names:
    """A name server whose answers change each time."""

    def __init__(self, *answers: list[str]) -> None:
        self.asked = 0
        self._answers = list(answers)

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked += 1
        answer = self._answers.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in answer]


def test_what_is_checked_is_what_is_connected_to(
    server: ModelServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.replies["/model"] = whole(MODEL)
    # Whoever looked the name up once more, to connect, would come to the metadata service.
    names = Names(["169.254.169.254", "127.0.0.1"], ["169.254.169.254"])
    monkeypatch.setattr(socket, "getaddrinfo", names)
    assert fetched(make(), server.url(host="models.test")).read_bytes() == MODEL
    assert names.asked == 1


def test_a_name_for_a_forbidden_address_is_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Names(["169.254.169.254", "10.1.2.3"]))
    with pytest.raises(ForbiddenSourceError, match=r"models\.test is at 169\.254\.169\.254 \(lin"):
        fetched(make(), "https://models.test/model")


def test_an_unknown_name_is_said_so(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UnavailableError, match=r"models\.test cannot be found: Name or service"):
        fetched(make(), "https://models.test/model")


def test_certificates_must_be_the_hosts_and_of_a_known_authority(
    server: ModelServer, make: Make, tmp_path: Path
) -> None:
    server.replies["/model"] = whole(MODEL)
    with pytest.raises(UnavailableError, match="is refused: self-signed"):
        fetched(make(tls=None), server.url())
    other = make_certificate(tmp_path / "other.pem", "models.test")
    impostor = ModelServer(other)
    try:
        with pytest.raises(UnavailableError, match="is refused: IP address mismatch"):
            fetched(make(tls=ssl.create_default_context(cafile=other)), impostor.url())
    finally:
        impostor.close()
    assert not server.asked
    assert not impostor.asked


def test_a_port_where_nobody_answers_is_said_so(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UnavailableError, match="does not come: Connection refused"):
        fetched(make(), f"https://127.0.0.1:{port}/model")


@pytest.mark.parametrize("sends", ["nothing", "half a head", "a little"])
def test_a_server_that_is_too_slow_is_given_up(
    server: ModelServer, make: Make, sends: str, tmp_path: Path
) -> None:
    begun = threading.Event()

    def reply(wire: ssl.SSLSocket, _: Any) -> None:
        if sends == "half a head":
            wire.sendall(b"HTTP/1.1 200 OK\r\nContent-Le")
        if sends == "a little":
            say(wire, "200 OK", f"Content-Length: {len(MODEL)}")
            wire.sendall(MODEL[:1000])
        begun.set()
        until_gone(wire)

    server.replies["/model"] = reply

    async def main() -> None:
        store, loop = make(), asyncio.get_running_loop()
        assert isinstance(loop, Patient)
        part = tmp_path / "models" / f"{DIGEST[7:]}.part"
        fetch = asyncio.create_task(store.fetch(server.url(), DIGEST))
        while not begun.is_set() or (sends == "a little" and part.stat().st_size < 1000):
            await asyncio.sleep(0)
        await loop.let(29.0)
        assert not fetch.done()
        await loop.let(1.5)
        with pytest.raises(UnavailableError, match=r"in 30 s, [\d,]+ bytes have come, too few"):
            await fetch
        store.close()

    with asyncio.Runner(loop_factory=Patient) as runner:
        runner.run(main())


def test_a_handshake_that_never_ends_is_given_up(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:

        async def main() -> None:
            store, loop = make(), asyncio.get_running_loop()
            assert isinstance(loop, Patient)
            fetch = asyncio.create_task(
                store.fetch(f"https://127.0.0.1:{deaf.getsockname()[1]}/model", DIGEST)
            )
            accepted, _ = await asyncio.to_thread(deaf.accept)
            await asyncio.to_thread(accepted.recv, 1)
            await loop.let(31.0)
            with pytest.raises(UnavailableError, match="too few"):
                await fetch
            accepted.close()
            store.close()

        with asyncio.Runner(loop_factory=Patient) as runner:
            runner.run(main())


class Gate:
    """Serves the first half of the model, and the rest when it is opened."""

    def __init__(self) -> None:
        self.half = threading.Event()
        self.open = threading.Event()

    def __call__(self, wire: ssl.SSLSocket, asked: Any) -> None:
        if asked.start:
            whole(MODEL)(wire, asked)
            return
        say(wire, "200 OK", f"Content-Length: {len(MODEL)}", 'ETag: "one"')
        wire.sendall(MODEL[:150_000])
        self.half.set()
        assert self.open.wait(LIMIT_S)
        wire.sendall(MODEL[150_000:])


async def begun(store: ModelStore, gate: Gate) -> None:
    await asyncio.to_thread(gate.half.wait, LIMIT_S)


def test_a_fetch_that_is_canceled_leaves_what_has_come(
    server: ModelServer, make: Make, tmp_path: Path
) -> None:
    server.replies["/model"] = gate = Gate()
    part = tmp_path / "models" / f"{DIGEST[7:]}.part"

    async def main() -> None:
        store = make()
        fetch = asyncio.create_task(store.fetch(server.url(), DIGEST))
        while not gate.half.is_set() or part.stat().st_size < 150_000:
            await asyncio.sleep(0)
        fetch.cancel()
        # The next one comes before the canceled one has ended.
        again = asyncio.create_task(store.fetch(server.url(), DIGEST))
        with pytest.raises(asyncio.CancelledError):
            await fetch
        assert (await again).read_bytes() == MODEL
        store.close()

    asyncio.run(main())
    gate.open.set()
    assert [asked.start for asked in server.asked] == [0, 150_000]


def test_a_fetch_that_is_canceled_before_it_begins_is_forgotten(
    server: ModelServer, make: Make
) -> None:
    server.replies["/model"] = whole(MODEL)

    async def main() -> None:
        store = make()
        fetch = asyncio.create_task(store.fetch(server.url(), DIGEST))
        asyncio.get_running_loop().call_soon(fetch.cancel)
        with pytest.raises(asyncio.CancelledError):
            await fetch
        async with asyncio.timeout(LIMIT_S):
            assert (await store.fetch(server.url(), DIGEST)).read_bytes() == MODEL
        store.close()

    asyncio.run(main())


def test_a_model_without_a_length_comes_too(server: ModelServer, make: Make) -> None:
    server.replies["/model"] = chunked(MODEL)
    assert fetched(make(), server.url()).read_bytes() == MODEL


@pytest.mark.parametrize("reply", [whole, chunked])
def test_models_for_which_the_store_is_too_small_are_refused(
    server: ModelServer, make: Make, tmp_path: Path, reply: Callable[[bytes], Any]
) -> None:
    server.replies["/model"] = reply(MODEL)
    with pytest.raises(NoRoomError, match="may take 1,000 bytes"):
        fetched(make(limit_bytes=1000), server.url())
    assert sum(p.stat().st_size for p in (tmp_path / "models").iterdir()) < len(MODEL)


def test_a_model_that_is_larger_than_any_may_be_is_refused(server: ModelServer, make: Make) -> None:
    server.replies["/model"] = lambda wire, _: say(
        wire, "200 OK", f"Content-Length: {2 * 1024**3 + 1}"
    )
    with pytest.raises(NoRoomError, match="larger than the limit of 2,147,483,648 bytes for a mod"):
        fetched(make(limit_bytes=1 << 40), server.url())


def test_what_was_used_longest_ago_makes_room_but_never_what_is_in_use(
    server: ModelServer, make: Make
) -> None:
    models = [content_of(1000 + i, seed=i) for i in range(4)]
    for i, model in enumerate(models):
        server.replies[f"/{i}"] = whole(model)

    async def main() -> None:
        store = make(limit_bytes=3100, now=lambda: 5.0)

        async def fetch(i: int) -> None:
            await store.fetch(server.url(f"/{i}"), digest_of(models[i]))

        def there() -> list[int]:
            return [one.size_bytes - 1000 for one in store.contents()]

        for i in range(3):
            await fetch(i)
        await fetch(0)
        assert there() == [1, 2, 0]
        with store.use(digest_of(models[1])):
            await fetch(3)
            assert there() == [0, 1, 3]
        with (
            store.use(digest_of(models[0])),
            store.use(digest_of(models[1])),
            store.use(digest_of(models[3])),
            pytest.raises(NoRoomError, match="may take 3,100 bytes, and 3,004 of them are in use"),
        ):
            await fetch(2)
        store.close()
        assert there() == [3, 1, 0]
        # The order outlives the process, whatever its clock says.
        store = make(limit_bytes=2500, now=lambda: 1.0)
        assert there() == [1, 0]
        store.close()

    asyncio.run(main())


def test_strange_answers_are_said_in_a_sentence(server: ModelServer, make: Make) -> None:
    with pytest.raises(UnavailableError) as caught:
        fetched(make(), f"{server.url()}?signature=secret")
    assert str(caught.value) == f"{server.url()} answers 404 Not Found"
    server.replies["/model"] = lambda wire, _: say(
        wire, "200 OK", "Content-Encoding: gzip", "Content-Length: 0"
    )
    with pytest.raises(UnavailableError, match="compressed body"):
        fetched(make(), server.url())
    server.replies["/model"] = lambda wire, _: say(wire, "302 Found")
    with pytest.raises(UnavailableError, match="without saying where to"):
        fetched(make(), server.url())
    server.replies["/model"] = lambda wire, _: wire.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    with pytest.raises(UnavailableError, match="does not come"):
        fetched(make(), server.url())
    server.replies["/model"] = lambda wire, _: wire.sendall(b"HTTP/1.1 200 OK\r\n" + b"a" * 70000)
    with pytest.raises(UnavailableError, match="does not come"):
        fetched(make(), server.url())


def test_files_of_this_machine_are_copied(make: Make, tmp_path: Path) -> None:
    there = tmp_path / "a model.onnx"
    there.write_bytes(MODEL)
    uri = there.as_uri()
    copy = fetched(make(), uri)
    assert copy.read_bytes() == MODEL
    assert copy != there
    copy.rename(copy.with_name(f"{copy.name}.part"))
    with copy.with_name(f"{copy.name}.part").open("ab") as file:
        file.truncate(1000)
    assert fetched(make(), uri).read_bytes() == MODEL
    there.write_bytes(OTHER)
    assert fetched(make(), uri).read_bytes() == MODEL
    with pytest.raises(DamagedError, match="is not the model"):
        fetched(make(), uri, digest_of(b"else"))


def test_files_that_are_none_are_refused(make: Make, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="missing cannot be read: No such file"):
        fetched(make(), (tmp_path / "missing").as_uri())
    with pytest.raises(UnavailableError, match="is no ordinary file"):
        fetched(make(), tmp_path.as_uri())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnavailableError, match="is no ordinary file"):
        fetched(make(), (tmp_path / "pipe").as_uri())
    with pytest.raises(UnavailableError, match="is no ordinary file"):
        fetched(make(), "file:///dev/zero")


def test_a_stored_model_that_has_rotted_is_fetched_anew(server: ModelServer, make: Make) -> None:
    server.replies["/model"] = whole(MODEL)
    path = fetched(make(), server.url())
    path.write_bytes(MODEL[:-1] + b"\0")
    assert fetched(make(), server.url()).read_bytes() == MODEL
    assert len(server.asked) == 2


def test_a_discarded_model_is_fetched_anew(server: ModelServer, make: Make) -> None:
    server.replies["/model"] = whole(MODEL)

    async def main() -> None:
        store = make()
        path = await store.fetch(server.url(), DIGEST)
        store.discard(DIGEST)
        assert not path.exists()
        assert store.contents() == ()
        assert (await store.fetch(server.url(), DIGEST)).read_bytes() == MODEL
        store.close()

    asyncio.run(main())


def test_a_folder_has_one_store(make: Make, tmp_path: Path) -> None:
    store = make()
    with pytest.raises(StoreError, match="another process keeps its models in"):
        make()
    store.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"models cannot be kept in .*: File exists"):
        ModelStore(tmp_path / "file", limit_bytes=1)
    with pytest.raises(ValueError, match="a limit above 0 bytes, not 0"):
        ModelStore(tmp_path / "other", limit_bytes=0)


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:" + "g" * 64, "md5:" + "0" * 64, "../a"])
def test_digests_of_another_form_are_refused(make: Make, digest: str) -> None:
    with pytest.raises(ValueError, match="is not 'sha256:' followed by 64 hexadecimal digits"):
        fetched(make(), "file:///x", digest)
