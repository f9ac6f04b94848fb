"""Nodes that ask again: the entry has a small variant, the large one is another process's."""

from __future__ import annotations

import asyncio
import contextlib
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
from inferway.dispatch import recordings

FILE = """
tasks:
  digits:
    accuracy_target: 0.85
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
IMAGES = 200
START_S = 300.0  # A node that starts may have to compile the policy first
SEEN, AFTER, MOST = 10, 60, 2000  # Second answers before the kill; requests after it, and in all


class Asking(World):
    """The entry and the one on the way are in this process, the one with the model is not."""

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
            for image in catalog.testset().images[:IMAGES].reshape(IMAGES, -1).tolist()
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
        asked = {"inputs": [self.images[i % IMAGES]], "parameters": parameters}
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
        async with asyncio.timeout(START_S):
            while "large@cloud" not in await self.variants(task="digits"):
                ended = {name: process.poll() for name, process in self.running.items()}
                assert set(ended.values()) == {None}, f"nodes have ended: {ended}"
                await asyncio.sleep(0.05)


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
        async with asyncio.timeout(START_S + 2 * LIMIT_S):
            await main()

    asyncio.run(limited())


def test_a_node_that_runs_alone_measures_what_requests_take(asking: Asking) -> None:
    """No one asks for it: a process of its own looks each second."""

    async def main() -> None:
        url = f"http://{asking.addresses['cloud'].http}/v2/models/digits/infer"
        status = f"http://{asking.addresses['cloud'].admin}/status"
        body = {"inputs": [asking.images[0]]}

        def ask() -> Any:
            with contextlib.suppress(OSError):  # it starts
                for _ in range(5):
                    post(url, body)
                with urllib.request.urlopen(status, timeout=LIMIT_S) as answer:
                    return json.loads(answer.read()).get("overhead")

        asking.begin("cloud")
        async with asyncio.timeout(START_S):
            while (told := await asyncio.to_thread(ask)) is None:
                assert asking.running["cloud"].poll() is None
        assert told["by"] == "measured"
        assert told["seconds"] > 0.0

    run(main)


def test_no_answer_is_lost_with_the_node_that_was_asked_again(asking: Asking) -> None:
    answers: list[Response] = []
    twice: list[Response] = []
    begun, last = 0, MOST

    async def ask() -> None:
        nonlocal begun, last
        while begun < last:
            begun += 1
            answer = await asking.send(begun)
            answers.append(answer)
            twice.extend([answer] * ("escalated_from" in answer.body["parameters"]))
            if len(twice) >= SEEN and "cloud" in asking.running:
                last = begun + AFTER
                asking.kill("cloud")

    async def main() -> None:
        asking.begin("cloud")
        await asking.start("metro")
        edge = await asking.start("edge", record=asking.folder / "recorded")
        try:
            await asking.known()
            await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
            assert len(twice) >= SEEN
            identity = twice[0].headers["x-request-id"]
            explained = await asking.read(f"/v2/models/digits/explain/{identity}")
            metrics = await asking.read("/metrics", admin=True)
        finally:
            for node in list(asking.nodes):
                await asking.stop(node)
        assert [answer.status_code for answer in answers] == [200] * last
        far = [one for one in answers if one.headers["inferway-node"] == "cloud"]
        told = [one.body["parameters"] for one in twice]
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
        assert stats.total_rows == last
        said = json.loads(explained)
        assert (said["variant"], said["escalated_from"]) == ("large@cloud", "mini")
        assert "mini was asked first" in said["reason"]
        assert 'inferway_escalations_total{first="mini",second="large@cloud"' in metrics

    run(main)
    found = [inferway.replay(one, requests=None) for one in recordings(asking.folder / "recorded")]
    assert [(one.differences, one.losses) for one in found] == [((), ())] * len(found)
    assert sum(one.requests for one in found) >= last
    assert sum(one.answers for one in found if one.policy == "escalate") >= len(answers)
