"""A node's moves where models come over HTTPS, from another server, or onto a full disk."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_server import Asked, ModelServer, digest_of, make_certificate, say, whole

import inferway
from inferway.catalog import zoo
from inferway.dispatch import Dispatcher
from inferway.live import Pool, Server, ServerOptions, TaskSite
from inferway.live.node.models import LoadedModels, Pair
from inferway.live.node.reconciler import Reconciler
from inferway.live.store.allowed import Allowed
from inferway.live.store.store import ModelStore
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime, RemoteRuntime, Served, zeros
from inferway.site import Fleet

# Real clocks and sockets: on shared machines, processes stand still.
pytestmark = pytest.mark.flaky(reruns=1)

LIMIT_S = 60.0
BARE = "{accuracy: 0.8, size: 1 MB, service: {mean: 1 ms}}"
LARGE = zoo.model_path("digits", "large").read_bytes()
FAR, TINY = ("digits", "far"), ("digits", "tiny")


@pytest.fixture
def digits() -> Iterator[Server]:
    """Another server, with a task of three scores."""
    image, scores = Tensor("image", "FP32", (-1, 4)), Tensor("scores", "FP32", (-1, 3))
    signature = Signature((image,), (scores,))
    fleet = Fleet(("big",), np.array([1e2]), np.array([0.9]), np.array([1]))
    dispatcher = Dispatcher(fleet, "fastest-only", target=None)
    site = TaskSite.of(Pool("digits", signature, dispatcher, [NullRuntime(signature)]))
    server = Server([site], ServerOptions(http_port=0, admin_port=0, log_level="critical"))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(LIMIT_S)
    yield server
    asyncio.run_coroutine_threadsafe(server.stop(0.0), loop).result(LIMIT_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(LIMIT_S)
    loop.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ModelServer]:
    server = ModelServer(make_certificate(tmp_path / "server.pem", "127.0.0.1"))
    server.replies["/model"] = whole(LARGE)
    yield server
    server.close()


async def ask(runtime: Served) -> Mapping[str, Any]:
    """Have a model answer zeros: one of another server on the loop, one here in a thread."""
    inputs = zeros(runtime.signature.inputs)
    if isinstance(runtime, RemoteRuntime):
        return await runtime.infer(inputs)
    return await asyncio.to_thread(runtime.run, inputs)


class Node:
    """A models and a reconciler; what runs is borrowed, tried, and given back when it leaves."""

    def __init__(
        self,
        tmp_path: Path,
        folder: Path,
        far: str,
        now: Callable[[], float],
        tiny: str = "{model: zoo://digits/tiny}",
    ) -> None:
        file = tmp_path / "deployment.yaml"
        file.write_text(
            "tasks:\n  digits:\n    deadline: 1 s\n    variants:\n"
            f"      tiny: {tiny}\n"
            f"      far: {{{far}, accuracy: 0.9, size: 7 MB, service: {{mean: 1 ms}}}}\n"
        )
        tls = tmp_path / "server.pem"
        self.store = ModelStore(
            folder / "models",
            limit_bytes=10_000_000,
            allowed=Allowed(loopback=True),
            tls=ssl.create_default_context(cafile=tls if tls.exists() else None),
        )
        deployment = inferway.load(file)
        self.models = LoadedModels(deployment, self.store)
        sizes = {
            ("digits", one.name): float(one.size_bytes or 0)
            for one in deployment.tasks["digits"].variants.values()
        }
        # Both do not fit at once.
        self.reconciler = Reconciler(
            self.models, self.announce, sizes=sizes, budget_bytes=sizes[FAR] + 1, now=now
        )
        self.borrowed: list[Served] = []

    async def announce(self, running: Mapping[Pair, int]) -> None:
        old, self.borrowed = self.borrowed, [self.models.acquire(*pair) for pair in running]
        for runtime in old:
            runtime.close()
        for runtime in self.borrowed:
            await ask(runtime)

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(LIMIT_S):
                await work()
            for runtime in self.borrowed:
                runtime.close()
            self.models.close()
            self.store.close()

        asyncio.run(bounded())


def test_a_model_is_fetched_before_the_old_one_goes(server: ModelServer, tmp_path: Path) -> None:
    asked, gate = threading.Event(), threading.Event()

    def slow(wire: ssl.SSLSocket, request: Asked) -> None:
        del request
        say(wire, "200 OK", f"Content-Length: {len(LARGE)}")
        wire.sendall(LARGE[:-1])
        asked.set()
        assert gate.wait(LIMIT_S)
        wire.sendall(LARGE[-1:])

    server.replies["/model"] = slow
    far = f"model: '{server.url()}', digest: '{digest_of(LARGE)}'"
    node = Node(tmp_path, tmp_path, far, lambda: 0.0)

    async def main() -> None:
        assert await node.models.learn("digits") is not None
        assert await node.reconciler.toward({TINY: 1})
        moving = asyncio.create_task(node.reconciler.toward({FAR: 1}))
        await asyncio.to_thread(asked.wait, LIMIT_S)
        assert node.reconciler.running == {TINY: 1}
        gate.set()
        assert await moving
        assert node.reconciler.running == {FAR: 1}
        # Loaded again, it comes from the disk.
        assert await node.reconciler.toward({TINY: 1})
        assert await node.reconciler.toward({FAR: 1})
        assert len(server.asked) == 1

    node.run(main)


def test_a_full_disk_costs_the_new_copy_and_not_the_old(
    server: ModelServer, disk: Path, tmp_path: Path
) -> None:
    clock = [0.0]
    far = f"model: '{server.url()}', digest: '{digest_of(LARGE)}'"
    node = Node(tmp_path, disk, far, lambda: clock[0])
    (disk / "another's").write_bytes(bytes(500_000))

    async def main() -> None:
        assert await node.reconciler.toward({TINY: 1})
        assert not await node.reconciler.toward({FAR: 1})
        assert node.reconciler.running == {TINY: 1}
        (failure,) = node.reconciler.status()["failures"]
        assert failure["name"] == "digits/far"
        assert "bytes do not fit: the disk of" in failure["reason"]
        assert "\n" not in failure["reason"]
        (disk / "another's").unlink()
        # Its time has not come yet.
        assert not await node.reconciler.toward({FAR: 1})
        clock[0] = failure["again_s"]
        assert await node.reconciler.toward({FAR: 1})
        assert node.reconciler.running == {FAR: 1}
        assert not node.reconciler.status()["failures"]

    node.run(main)


def test_a_corrupt_file_costs_the_new_copy_and_not_the_old(
    server: ModelServer, tmp_path: Path
) -> None:
    clock = [0.0]
    server.replies["/model"] = whole(LARGE[:-1] + b"x")
    far = f"model: '{server.url()}', digest: '{digest_of(LARGE)}'"
    node = Node(tmp_path, tmp_path, far, lambda: clock[0])

    async def main() -> None:
        assert await node.reconciler.toward({TINY: 1})
        for times in (1, 2, 3):
            assert not await node.reconciler.toward({FAR: 1})
            (failure,) = node.reconciler.status()["failures"]
            assert (failure["times"], failure["again_s"]) == (times, 2.0 ** (times - 1))
            assert "is not the model: its digest is sha256:" in failure["reason"]
            assert node.reconciler.running == {TINY: 1}
            clock[0] += failure["again_s"]
        assert len(server.asked) == 3
        server.replies["/model"] = whole(LARGE)
        assert await node.reconciler.toward({FAR: 1})

    node.run(main)


def test_a_variant_of_another_server_is_one_to_move(digits: Server, tmp_path: Path) -> None:
    """It takes of the budget what the file says, and holds no weights here."""
    far = f"remote: 'http://127.0.0.1:{digits.http_port}/v2/models/digits'"
    node = Node(tmp_path, tmp_path, far, lambda: 0.0, tiny=BARE)

    async def main() -> None:
        assert await node.reconciler.toward({FAR: 1})
        assert node.reconciler.moves.used_bytes == 7_000_000
        (runtime,) = node.borrowed
        assert node.models.signature("digits") == runtime.signature
        outputs = await ask(runtime)
        assert [array.shape for array in outputs.values()] == [(1, 3)]
        assert await node.reconciler.toward({})
        assert FAR not in node.models

    node.run(main)


def test_a_server_with_another_model_is_told(digits: Server, tmp_path: Path) -> None:
    far = f"remote: 'http://127.0.0.1:{digits.http_port}/v2/models/digits'"
    node = Node(tmp_path, tmp_path, far, lambda: 0.0)

    async def main() -> None:
        assert await node.reconciler.toward({TINY: 1})
        assert not await node.reconciler.toward({FAR: 1})
        assert node.reconciler.running == {TINY: 1}
        (failure,) = node.reconciler.status()["failures"]
        assert failure["reason"].startswith("digits/far: the remote model's signature")

    node.run(main)
