"""Nodes that ask again: the entry has a small variant, the large one is a process further up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_node import LIMIT_S, Response, World, post

import inferway
from inferway import catalog

FILE = """
tasks:
  digits:
    accuracy_target: 0.9
    variants:
      mini: {model: zoo://digits/mini}
      large: {model: zoo://digits/large}
nodes:
  cloud: {repository: true, instances: {digits/large: 1}}
  metro: {budget: 1 kB}
  edge: {budget: 80 kB, pinned: {digits/mini: 1}}
network:
  links: [{between: [cloud, metro], rtt: 2 ms}, {between: [metro, edge], rtt: 2 ms}]
dispatch: {policy: escalate}
placement: {policy: repository-only, slot: 1 h}
workload:
  digits: {arrivals: {process: poisson, rate: 50/s}, entries: {nodes: [edge]}}
"""
AT_ONCE = 4
KILLED_AT = 60  # Requests
REQUESTS = 160


class Asking(World):
    """The entry is in this process, the others are of their own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "asking.yaml"
        self.file.write_text(FILE)
        self.deployment = inferway.load(self.file)
        self.addresses["metro"] = World(folder).addresses["cloud"]
        (folder / "at.json").write_bytes(msgspec.json.encode(self.addresses))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.images = [
            {"name": "image", "datatype": "FP32", "shape": [1, 1, 32, 32], "data": image}
            for image in catalog.testset().images[:REQUESTS].reshape(REQUESTS, -1).tolist()
        ]

    def begin(self, node: str) -> None:
        self.running[node] = subprocess.Popen(
            [
                *(sys.executable, "-m", "inferway", "node", str(self.file), "--name", node),
                *("--addresses", str(self.folder / "at.json"), "--log-level", "error"),
                *("--state", str(self.folder / node)),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def kill(self, node: str) -> None:
        process = self.running.pop(node)
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)

    async def send(self, i: int, **parameters: Any) -> Response:
        url = f"http://{self.addresses['edge'].http}/v2/models/digits/infer"
        asked = {"inputs": [self.images[i]], "parameters": parameters}
        return await asyncio.to_thread(post, url, asked)

    async def read(self, path: str, *, admin: bool = False) -> str:
        at = self.addresses["edge"]

        def reads() -> str:
            url = f"http://{at.admin if admin else at.http}{path}"
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                text: str = answer.read().decode()
                return text

        return await asyncio.to_thread(reads)

    async def known(self) -> None:
        """Wait until the entry goes by the large variant."""
        async with asyncio.timeout(LIMIT_S):
            while "large@cloud" not in await self.variants(task="digits"):
                await asyncio.sleep(0.01)


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    made = Asking(tmp_path)
    try:
        yield made
    finally:
        for node in list(made.running):
            made.kill(node)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(3 * LIMIT_S):
            await main()

    asyncio.run(limited())


def test_no_answer_is_lost_with_the_node_that_was_asked_again(asking: Asking) -> None:
    answers: list[Response] = []
    begun = 0

    async def ask() -> None:
        nonlocal begun
        while begun < REQUESTS:
            i, begun = begun, begun + 1
            if i == KILLED_AT:
                asking.kill("cloud")
            answers.append(await asking.send(i))

    async def main() -> None:
        asking.begin("cloud")
        asking.begin("metro")
        edge = await asking.start("edge")
        try:
            await asking.known()
            await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
            asked_twice = next(one for one in answers if "escalated_from" in one.body["parameters"])
            identity = asked_twice.headers["x-request-id"]
            explained = await asking.read(f"/v2/models/digits/explain/{identity}")
            metrics = await asking.read("/metrics", admin=True)
        finally:
            await asking.stop("edge")
        assert [answer.status_code for answer in answers] == [200] * REQUESTS
        far = [one for one in answers if one.headers["inferway-node"] == "cloud"]
        assert far
        told = [one.body["parameters"] for one in far if "escalated_from" in one.body["parameters"]]
        assert told
        for one in told:
            assert (one["variant"], one["escalated_from"], one["node"]) == (
                "large",
                "mini",
                "cloud",
            )
            assert 0.0 < one["confidence"] < 1.0
            assert one["expected_accuracy"] > 0.5
        assert {one.headers["inferway-path"] for one in far} == {"edge,metro,cloud"}
        # All that answer with the first variant say how sure it was, also after the other died.
        near = [one.body["parameters"] for one in answers if one not in far]
        assert all(one["variant"] == "mini" for one in near)
        assert all("escalated_from" not in one for one in near)
        stats = edge.server.sites["digits"].stats
        assert sum(stats.escalations.values()) >= len(told)
        assert stats.total_rows == REQUESTS
        said = json.loads(explained)
        assert (said["variant"], said["escalated_from"]) == ("large@cloud", "mini")
        assert "mini was asked first" in said["reason"]
        assert 'inferway_escalations_total{first="mini",second="large@cloud"' in metrics

    run(main)
