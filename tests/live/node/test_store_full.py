"""The model store on a disk that is full."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_server import ModelServer, chunked, content_of, digest_of, make_certificate, whole

from inferway.live.store import Allowed, ModelStore, NoRoomError

SMALL, LARGE = content_of(100_000, seed=1), content_of(950_000, seed=2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ModelServer]:
    server = ModelServer(make_certificate(tmp_path / "server.pem", "127.0.0.1"))
    server.replies |= {"/small": whole(SMALL), "/large": whole(LARGE), "/long": chunked(LARGE)}
    yield server
    server.close()


@pytest.mark.parametrize("path", ["/large", "/long"])
def test_a_full_disk_is_said_and_left_as_it_was(
    server: ModelServer, disk: Path, tmp_path: Path, path: str
) -> None:
    async def main() -> None:
        store = ModelStore(
            disk / "models",
            limit_bytes=10_000_000,
            allowed=Allowed(loopback=True),
            tls=ssl.create_default_context(cafile=tmp_path / "server.pem"),
        )
        small = await store.fetch(server.url("/small"), digest_of(SMALL))
        (disk / "another's").write_bytes(bytes(200_000))
        with (
            store.use(digest_of(SMALL)),
            pytest.raises(NoRoomError, match=r"the disk of \S+ (has [\d,]+ bytes left|is full)"),
        ):
            await store.fetch(server.url(path), digest_of(LARGE))
        assert small.read_bytes() == SMALL
        assert store.used_bytes == len(SMALL)
        assert shutil.disk_usage(disk).free > 600_000
        # Where the small one is not in use, it is the one to go.
        (disk / "another's").unlink()
        assert (await store.fetch(server.url("/large"), digest_of(LARGE))).read_bytes() == LARGE
        assert [one.digest for one in store.contents()] == [digest_of(LARGE)]
        store.close()

    asyncio.run(main())


LIMITED = """
import asyncio, resource, ssl, sys
from pathlib import Path
from inferway.live.store import Allowed, ModelStore, NoRoomError

folder, url, digest, trusted = sys.argv[1:]

async def main():
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    store = ModelStore(
        Path(folder), limit_bytes=10_000_000, allowed=Allowed(loopback=True),
        tls=ssl.create_default_context(cafile=trusted),
    )
    try:
        await store.fetch(url, digest)
    except NoRoomError as error:
        print(error, store.used_bytes)
    store.close()

asyncio.run(main())
"""


def test_a_write_that_fails_takes_the_beginning_along(server: ModelServer, tmp_path: Path) -> None:
    """A limit on file sizes fails a write in the middle, as a full disk does; needs no root."""
    ended = subprocess.run(
        [
            *(sys.executable, "-c", LIMITED, tmp_path / "models", server.url("/large")),
            *(digest_of(LARGE), tmp_path / "server.pem"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "is full: File too large after 300,000 bytes of a model 0" in ended.stdout
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["lock"]
