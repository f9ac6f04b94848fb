"""Nodes form batches of what their clients ask and of what neighbors send."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_node import LIMIT_S, World, world

import inferway
from inferway.catalog import testset as load_testset

FILE = """
tasks:
  digits:
    count: 2
    variants:
      mini: {model: zoo://digits/mini, batch: %s}
      large: {model: zoo://digits/large, batch: %s}
nodes:
  cloud: {repository: true, instances: {digits/large: 1}}
  edge: {budget: 2 MB, pinned: {digits/mini: 1}}
network:
  links: [{between: [cloud, edge], rtt: 5 ms}]
placement: {policy: repository-only, slot: 1 h}
workload:
  digits: {arrivals: {process: poisson, rate: 20/s}, entries: {nodes: [edge]}}
"""
QUICK = "{sizes: [1, 2, 4, 8], service: [2 ms, 3 ms, 5 ms, 9 ms]}"
FOUR = "{sizes: [1, 4], service: [2 ms, 5 ms], min: 4}"
SIXTEEN = "{sizes: [1, 16], service: [2 ms, 20 ms], min: 16}"
MANY = 24


@pytest.fixture
def run() -> Any:
    def to_its_end(main: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(3 * LIMIT_S):
                await main

        asyncio.run(limited())

    return to_its_end


class Batching:
    """Two nodes, of which the edge forwards to the cloud, and clients who ask all at once."""

    def __init__(self, both: World) -> None:
        self.both, self.cloud, self.edge = both, both.nodes["cloud"], both.nodes["edge"]
        self._images = load_testset().images[:MANY]

    async def ask(self, variant: str, number: int, entry: str = "edge") -> Any:
        """The scores of an image; the request is named by its number."""
        image = self._images[number : number + 1]
        tensor = {
            "name": "image",
            "datatype": "FP32",
            "shape": list(image.shape),
            "parameters": {"binary_data_size": image.nbytes},
        }
        text = json.dumps({"inputs": [tensor]}).encode()
        body = text + image.tobytes()
        head = (
            f"POST /v2/models/digits-0/versions/{variant}/infer HTTP/1.1\r\nHost: test\r\n"
            f"Inference-Header-Content-Length: {len(text)}\r\nX-Request-Id: {entry}-{number}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        host, _, port = self.both.addresses[entry].http.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", answer)
            assert length is not None
            content = await reader.readexactly(int(length[1]))
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 200 "), answer + content
        (output,) = json.loads(content)["outputs"]
        return np.array(output["data"])

    async def ask_all(self, variant: str, numbers: Sequence[int] = range(MANY)) -> Any:
        return await asyncio.gather(*(self.ask(variant, number) for number in numbers))

    async def get(self, node: str, path: str, *, admin: bool = False) -> str:
        where = self.both.addresses[node]
        url = f"http://{where.admin if admin else where.http}{path}"

        def read() -> str:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                text: str = answer.read().decode()
                return text

        return await asyncio.to_thread(read)

    async def counted(self, node: str, metric: str, variant: str) -> int:
        text = await self.get(node, "/metrics", admin=True)
        labels = f'task="digits-0",variant="{variant}"'
        found = re.search(rf"^inferway_{metric}{{{labels}}} (\S+)$", text, re.MULTILINE)
        return 0 if found is None else int(float(found[1]))

    async def runs(self, node: str, variant: str) -> tuple[int, int]:
        """Runs of a node's own copies, and their rows."""
        names = ("batch_size_count", "batch_size_sum")
        count, rows = [await self.counted(node, name, variant) for name in names]
        return count, rows

    async def under_way(self, count: int) -> None:
        """Wait until the cloud has so many requests."""
        async with asyncio.timeout(LIMIT_S):
            while await self.counted("cloud", "queue_length", "large") != count:
                await asyncio.sleep(0.005)

    async def batch_of(self, node: str, name: str) -> Any:
        told = await self.get(node, f"/v2/models/digits-0/explain/{name}")
        return json.loads(told)["batch"]


@contextlib.asynccontextmanager
async def batching(folder: Path, mini: str = QUICK, large: str = QUICK) -> AsyncIterator[Batching]:
    async with world(folder) as both:
        file = folder / "batches.yaml"
        file.write_text(FILE % (mini, large))
        both.deployment = inferway.load(file)
        await both.start("cloud", record=folder / "recorded" / "cloud")
        await both.start("edge", record=folder / "recorded" / "edge")
        await both.met()
        yield Batching(both)


@pytest.mark.parametrize(("variant", "where"), [("mini", "edge"), ("large", "cloud")])
def test_under_load_a_node_forms_batches_and_answers_each_its_own(
    tmp_path: Path, run: Any, variant: str, where: str
) -> None:
    async def main() -> None:
        async with batching(tmp_path) as both:
            alone = [await both.ask(variant, number) for number in range(MANY)]
            before = await both.runs(where, variant)
            assert before == (MANY, MANY)
            for _ in range(20):
                together = await both.ask_all(variant)
                for found, expected in zip(together, alone, strict=True):
                    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
                count, rows = await both.runs(where, variant)
                if count < rows:
                    break
            assert count < rows, "no run was of several requests"
            assert rows % MANY == 0
            sizes = [await both.batch_of(where, f"edge-{number}") for number in range(MANY)]
            assert max(one["requests"] for one in sizes) > 1
            assert all(one["requests"] == one["rows"] <= 8 for one in sizes)
            if where == "cloud":
                # The edge cannot know with how many others, and has run nothing itself.
                assert await both.batch_of("edge", "edge-0") is None
                text = await both.get("edge", "/metrics", admin=True)
                found = re.search(r'inferway_batch_size_count\{.*variant="large@cloud"\} 0', text)
                assert found is not None

    run(main())


def test_what_neighbors_send_and_what_clients_ask_are_one_batch(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        async with batching(tmp_path, large=FOUR) as both:
            first = await both.ask_all("large", range(4))
            far = [asyncio.create_task(both.ask("large", number)) for number in range(3)]
            await both.under_way(3)
            near = await both.ask("large", 3, entry="cloud")
            for found, expected in zip([*await asyncio.gather(*far), near], first, strict=True):
                assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
            assert await both.runs("cloud", "large") == (2, 8)
            for name in ("edge-0", "edge-2", "cloud-3"):
                assert await both.batch_of("cloud", name) == {"requests": 4, "rows": 4}
            # Somebody leaves, and the others wait on.
            far = [asyncio.create_task(both.ask("large", number)) for number in range(3)]
            await both.under_way(3)
            far[0].cancel()
            await both.under_way(2)
            far += [asyncio.create_task(both.ask("large", number)) for number in (3, 4)]
            assert all(one.shape == first[0].shape for one in await asyncio.gather(*far[1:]))
            assert await both.runs("cloud", "large") == (3, 12)
            # When the node goes nobody waits for others any more.
            last = asyncio.create_task(both.ask("large", 0))
            await both.under_way(1)
            await both.both.stop("cloud")
            assert await last == pytest.approx(first[0], rel=1e-4, abs=1e-5)

    run(main())


def test_neighbors_are_told_of_batches_and_send_as_many_as_fill_one(
    tmp_path: Path, run: Any
) -> None:
    async def main() -> None:
        async with batching(tmp_path, large=SIXTEEN) as both:
            offers = both.edge.status()["offers"]
            (offer,) = [
                one for one in offers if (one["task"], one["variant"]) == ("digits-0", "large")
            ]
            # Nothing has been measured: the file's time of the least that it runs.
            assert offer["spare_per_s"] == pytest.approx(16 / 0.02)
            # With fewer on their way than it waits for, none would ever be answered.
            async with asyncio.timeout(LIMIT_S / 3):
                await both.ask_all("large", range(16))
            assert await both.runs("cloud", "large") == (1, 16)

    run(main())
