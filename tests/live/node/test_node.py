"""A network of two nodes in one process: what it answers, what it says, and what it remembers."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import inferway
from inferway.live import Addresses, Keys, LiveNode, ServeError, ServerOptions
from inferway.live.store import StoreError
from ports import free_ports

FILE = """
tasks:
  digits:
    count: 2
    variants:
      mini: {model: zoo://digits/mini}
      small: {model: zoo://digits/small}
      large: {model: zoo://digits/large}
nodes:
  cloud: {repository: true, instances: {digits/large: 1}}
  edge: {budget: 80 kB, pinned: {digits/mini: 1}}
network:
  links: [{between: [cloud, edge], rtt: %s}]
placement: {policy: %s, slot: 1 s}
workload:
  digits: {arrivals: {process: poisson, rate: 20/s}, entries: {nodes: [edge]}}
"""
IMAGE = {"name": "image", "datatype": "FP32", "shape": [1, 1, 32, 32], "data": [0.0] * 1024}
LIMIT_S = 60.0


def free() -> str:
    (port,) = free_ports(1)
    return f"127.0.0.1:{port}"


def post_hop(url: str, body: Any, **headers: str) -> int:
    """Ask as a neighbor does; the answer's status."""
    request = urllib.request.Request(url, json.dumps(body).encode())
    for name, value in headers.items():
        request.add_header(f"Inferway-{name}", value)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        status: int = answer.status
        return status


class Response(NamedTuple):
    """An answer; names of headers in lower case."""

    status_code: int
    headers: dict[str, str]
    body: Any


def post(url: str, body: Any, headers: dict[str, str] | None = None) -> Response:
    request = urllib.request.Request(url, json.dumps(body).encode(), headers or {})
    try:
        answer = urllib.request.urlopen(request, timeout=LIMIT_S)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return Response(answer.status, headers, json.loads(answer.read()))


class World:
    """Both nodes, started one by one."""

    def __init__(self, folder: Path, policy: str = "infida", rtt: str = "20 ms") -> None:
        self.folder = folder
        file = folder / "two.yaml"
        file.write_text(FILE % (rtt, policy))
        self.deployment = inferway.load(file)
        self.addresses = {
            name: Addresses(free(), free(), free(), free()) for name in ("cloud", "edge")
        }
        self.nodes: dict[str, LiveNode] = {}

    async def start(self, name: str, **options: Any) -> LiveNode:
        node = LiveNode(
            self.deployment,
            name,
            self.addresses,
            ServerOptions(log_level="error", **options),
            folder=self.folder / name,
            emulate_rtt=True,
        )
        await node.start()
        self.nodes[name] = node
        return node

    async def stop(self, name: str) -> None:
        await self.nodes.pop(name).stop(1.0)

    async def ask(self, path: str = "", entry: str = "edge", **parameters: Any) -> Response:
        url = f"http://{self.addresses[entry].http}/v2/models/digits-0{path}/infer"
        return await asyncio.to_thread(post, url, {"inputs": [IMAGE], "parameters": parameters})

    async def variants(self, node: str = "edge", task: str = "digits-0") -> set[str]:
        """Tell what a node may answer a task's requests by."""

        def read() -> Any:
            url = f"http://{self.addresses[node].admin}/status"
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                return json.loads(answer.read())["tasks"].get(task, {}).get("variants", ())

        return set(await asyncio.to_thread(read))

    async def met(self) -> None:
        """Wait until the edge forwards to the cloud."""
        async with asyncio.timeout(LIMIT_S):
            while "large@cloud" not in await self.variants():
                await asyncio.sleep(0.01)

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def world(folder: Path, policy: str = "infida", rtt: str = "20 ms") -> AsyncIterator[World]:
    made = World(folder, policy, rtt)
    try:
        yield made
    finally:
        for name in list(made.nodes):
            await made.stop(name)


@pytest.fixture
def run() -> Callable[[Awaitable[None]], None]:
    def to_its_end(main: Awaitable[None]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(3 * LIMIT_S):
                await main

        asyncio.run(limited())

    return to_its_end


def test_requests_are_served_where_they_enter_or_forwarded(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        async with world(tmp_path) as both:
            cloud, edge = await both.start("cloud"), await both.start("edge")
            await both.met()

            far = await both.ask("/versions/large")
            assert far.status_code == 200, far.body
            assert far.headers["inferway-node"] == "cloud"
            assert far.headers["inferway-variant"] == "large"
            assert far.headers["inferway-path"] == "edge,cloud"
            here_ms, there_ms = map(float, far.headers["inferway-time-ms"].split(","))
            assert here_ms > there_ms + 20.0
            assert far.body["model_version"] == "large"
            assert far.body["parameters"]["node"] == "cloud"

            near = await both.ask("/versions/mini")
            assert near.headers["inferway-node"] == near.headers["inferway-path"] == "edge"
            # What would take too long on the way is decided for what is here.
            hasty = await both.ask(deadline_ms=15)
            assert hasty.status_code == 200, hasty.body
            assert hasty.headers["inferway-node"] == "edge"
            # And what must be accurate goes where that is.
            exact = await both.ask(accuracy=0.92)
            assert exact.headers["inferway-node"] == "cloud"
            impossible = await both.ask(accuracy=0.99)
            assert impossible.status_code == 429 or impossible.status_code == 400
            at_cloud = await both.ask(entry="cloud")
            assert at_cloud.headers["inferway-path"] == "cloud"

            told = edge.status()
            assert told["running"]["digits-0/mini"] == 1
            assert told["used_bytes"] <= told["budget_bytes"] == 80_000
            assert told["forwarded"] >= 2
            assert cloud.status()["served"] >= 3

    run(main())


def test_alone_it_answers_with_what_it_has_and_says_so(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        async with world(tmp_path) as both:
            edge = await both.start("edge")
            alone = await both.ask()
            assert alone.status_code == 200, alone.body
            assert alone.headers["inferway-degraded"] == (
                "node edge reaches no repository: cloud does not answer"
            )
            missing = await both.ask("/versions/large")
            assert missing.status_code in (404, 503)
            await both.start("cloud")
            await both.met()
            whole = await both.ask("/versions/large")
            assert "inferway-degraded" not in whole.headers
            assert whole.headers["inferway-node"] == "cloud"
            await both.stop("cloud")
            await both.until(lambda: edge.status()["degraded"])
            again = await both.ask()
            assert again.status_code == 200
            assert "inferway-degraded" in again.headers

    run(main())


@pytest.mark.parametrize("policy", ["olag", "static-greedy", "repository-only"])
def test_other_placement_policies_run_too(tmp_path: Path, run: Any, policy: str) -> None:
    async def main() -> None:
        async with world(tmp_path, policy) as both:
            await both.start("cloud")
            edge = await both.start("edge")
            await both.met()
            ended = edge.status()["slots"]
            pinned = {"digits-0/mini": 1, "digits-1/mini": 1}
            expected = pinned if policy == "repository-only" else {**pinned, "digits-0/small": 1}
            # OLAG keeps what is asked for, and only that.
            async with asyncio.timeout(LIMIT_S):
                while edge.status()["slots"] < ended + 2 or edge.status()["running"] != expected:
                    assert (await both.ask()).status_code == 200

    run(main())


def test_what_cannot_run_is_said(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        made = World(tmp_path)
        with pytest.raises(ServeError, match="the network has no node metro; it has cloud, edge"):
            await made.start("metro")
        del made.addresses["edge"]
        with pytest.raises(ServeError, match="node edge has no address"):
            await made.start("edge")
        with pytest.raises(ServeError, match="node edge, a neighbor, has no address"):
            await made.start("cloud")

    run(main())


def test_another_file_is_not_applied_to_a_node(tmp_path: Path, run: Any) -> None:
    key = "a-key-of-enough-length"

    async def main() -> None:
        async with world(tmp_path) as both:
            await both.start("edge", keys=Keys([f"admin={key}"]))
            url = f"http://{both.addresses['edge'].admin}/apply"
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            body = {"content": (both.folder / "two.yaml").read_text()}
            answer = await asyncio.to_thread(post, url, body, headers)
            assert answer.status_code == 400
            assert "a node of a network runs what its file says" in answer.body["error"]

    run(main())


def test_clients_may_come_over_grpc(tmp_path: Path, run: Any) -> None:
    grpc = pytest.importorskip("tritonclient.grpc")

    def asked(port: int, variant: str) -> Any:
        with grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
            tensor = grpc.InferInput("image", [1, 1, 32, 32], "FP32")
            tensor.set_data_from_numpy(np.zeros((1, 1, 32, 32), np.float32))
            return client.infer("digits-0", [tensor], model_version=variant)

    (port,) = free_ports(1)

    async def main() -> None:
        async with world(tmp_path) as both:
            await both.start("cloud")
            await both.start("edge", grpc_port=port)
            await both.met()
            far = await asyncio.to_thread(asked, port, "large")
            assert far.get_response().model_version == "large"
            assert far.as_numpy("probabilities").sum() == pytest.approx(1.0, abs=1e-3)
            near = await asyncio.to_thread(asked, port, "mini")
            assert near.get_response().model_version == "mini"

    run(main())


def test_two_processes_do_not_share_a_state(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        async with world(tmp_path) as both:
            await both.start("edge")
            with pytest.raises(StoreError, match="another process"):
                await both.start("edge")

    run(main())


def test_a_node_that_ends_hands_on_what_is_on_its_way_through_it(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        async with world(tmp_path, rtt="1 s") as both:
            await both.start("cloud")
            edge = await both.start("edge")
            await both.met()
            url = f"http://{edge.peer}/v2/models/digits-0/infer"
            answer = asyncio.create_task(
                asyncio.to_thread(
                    post_hop, url, {"inputs": [IMAGE]}, Node="cloud", Variant="large", Path="other"
                )
            )
            await both.until(lambda: edge.status()["passed"])
            await both.nodes.pop("edge").stop(LIMIT_S)
            assert await answer == 200

    run(main())
