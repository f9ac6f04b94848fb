"""Feedback in a network: the entry that sent an answer keeps it, wherever it came from."""

from __future__ import annotations

import asyncio
import http.client
import json
from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway.live import Addresses, Keys, LiveNode, ServeError, ServerOptions
from ports import free_ports

FILE = """
tasks:
  digits:
    accuracy_target: {mean: 0.9, by: measured}
    feedback: {}
    drift: {alarm: %s}
    variants:
      mini: {model: zoo://digits/mini}
      large: {model: zoo://digits/large}
nodes:
  cloud: {repository: true, instances: {digits/large: 1, digits/mini: 1}}
  edge: {budget: 80 kB, pinned: {digits/mini: 1}}
network:
  links: [{between: [cloud, edge], rtt: 1 ms}]
placement: {policy: infida, slot: 600 s}
workload:
  digits: {arrivals: {process: poisson, rate: 20/s}, entries: {nodes: [edge]}}
"""
SAYS, ASKS = "a-key-of-feedback", "a-key-of-all-else"
KEYS = [f"feedback={SAYS}", f"infer+read+admin={ASKS}"]
LIMIT_S = 120.0
TASK = "/v2/models/digits"
IMAGE = {"name": "image", "datatype": "FP32", "shape": [1, 1, 32, 32], "data": [0.0] * 1024}


class World:
    """Both nodes in one process, with keys."""

    def __init__(self, folder: Path, *, alarm: bool = False) -> None:
        self.folder, file = folder, folder / "two.yaml"
        file.write_text(FILE % str(alarm).lower())
        self.deployment = inferway.load(file)
        ports = [f"127.0.0.1:{port}" for port in free_ports(8)]
        self.addresses = {"cloud": Addresses(*ports[:4]), "edge": Addresses(*ports[4:])}
        self.nodes: dict[str, LiveNode] = {}

    async def start(self, name: str) -> LiveNode:
        options = ServerOptions(log_level="error", keys=Keys(KEYS))
        node = LiveNode(
            self.deployment,
            name,
            self.addresses,
            options,
            folder=self.folder / name,
        )
        await node.start()
        self.nodes[name] = node
        return node

    async def stop(self, name: str) -> None:
        await self.nodes.pop(name).stop(1.0)

    async def send(
        self, requests: list[tuple[str, Any, str]], *, key: str = ASKS, entry: str = "edge"
    ) -> list[tuple[int, Any]]:
        """Send requests, each a path, a body or None, and an id, over one connection."""

        def sent() -> list[tuple[int, Any]]:
            host, port = self.addresses[entry].http.rsplit(":", 1)
            connection, answers = http.client.HTTPConnection(host, int(port), LIMIT_S), []
            for path, body, name in requests:
                headers = {"Authorization": f"Bearer {key}", "X-Request-Id": name}
                method = "GET" if body is None else "POST"
                raw = None if body is None else json.dumps(body)
                connection.request(method, TASK + path, raw, headers)
                answer = connection.getresponse()
                answers.append((answer.status, json.loads(answer.read())))
            connection.close()
            return answers

        return await asyncio.to_thread(sent)

    async def answered(self, variant: str, names: list[str], entry: str = "edge") -> set[int]:
        """Ask a variant for so many answers; the classes that they have.

        On a busy machine a node may be given up for a moment: then it is asked again.
        """
        path = f"/versions/{variant}/infer"
        found = set[int]()
        async with asyncio.timeout(LIMIT_S):
            while names:
                answers = await self.send(
                    [(path, {"inputs": [IMAGE]}, name) for name in names], entry=entry
                )
                assert {status for status, _ in answers} <= {200, 502, 503, 504}
                given = [said for status, said in answers if status == 200]
                names = [
                    name for name, (status, _) in zip(names, answers, strict=True) if status != 200
                ]
                for said in given:
                    assert said["model_version"] == variant
                    scores = next(
                        one["data"] for one in said["outputs"] if one["datatype"] == "FP32"
                    )
                    found.add(max(range(len(scores)), key=scores.__getitem__))
        return found

    async def feedback(self, items: list[dict[str, Any]], entry: str = "edge") -> Any:
        ((status, said),) = await self.send([("/feedback", items, "")], key=SAYS, entry=entry)
        assert status == 200, said
        return said

    async def accuracy(self, entry: str = "edge") -> Any:
        ((status, said),) = await self.send([("/accuracy", None, "")], entry=entry)
        assert status == 200, said
        assert said["node"] == entry
        return said["variants"]

    def counted(self, name: str) -> dict[str, float | None]:
        """Tell the accuracies that count at a node, by class."""
        pool = self.nodes[name].server.sites["digits"].present
        return {} if pool is None else dict(zip(pool.variants, pool.accuracy, strict=True))

    def kept(self, name: str) -> int:
        """Count the answers that a node keeps, as of the last feedback."""
        book = self.nodes[name].server.sites["digits"].answers
        assert book is not None
        (count,) = book._base.execute("SELECT count(*) FROM answers").fetchone()
        return int(count)

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                await asyncio.sleep(0.01)

    async def met(self) -> None:
        await self.until(lambda: "large@cloud" in self.counted("edge"))

    async def close(self) -> None:
        for name in list(self.nodes):
            await self.stop(name)


def test_the_entry_keeps_what_it_answered_and_goes_by_its_own_labels(tmp_path: Path) -> None:
    count = 600

    async def run() -> None:
        world = World(tmp_path)
        try:
            await world.start("cloud")
            await world.start("edge")
            await world.met()
            variants = world.deployment.tasks["digits"].variants.values()
            profiles = {one.name: one.accuracy for one in variants}
            # Of an answer of its own, and of one that the cloud gave, labels are compared.
            (mini_class,) = await world.answered("mini", ["mini-0"])
            (large_class,) = await world.answered("large", ["large-0"])
            items = [{"id": "mini-0", "label": mini_class}, {"id": "large-0", "label": large_class}]
            assert (await world.feedback(items, "cloud"))["unknown"] == ["mini-0", "large-0"]
            assert world.kept("cloud") == 0
            assert await world.feedback(items) == {"matched": 2, "unknown": [], "doubled": []}
            said = await world.accuracy()
            assert (said["mini"]["labels"], said["large"]["labels"]) == (1, 1)
            assert (said["mini"]["mean"], said["large"]["mean"]) == (1.0, 1.0)
            assert said["large"]["profile"] == pytest.approx(profiles["large"])
            # Labels say that the cloud's variant is wrong half of the time: that counts here.
            names = [f"l-{number}" for number in range(count)]
            await world.answered("large", names)
            wrong = [{"id": name, "correct": at % 2 == 0} for at, name in enumerate(names)]
            assert (await world.feedback(wrong))["matched"] == count
            await world.until(lambda: (world.counted("edge")["large@cloud"] or 1.0) < 0.6)
            assert world.counted("edge")["mini"] == pytest.approx(profiles["mini"])
            # The cloud has answered for itself alone: it goes by its profiles, and offers these.
            assert world.counted("cloud")["large"] == pytest.approx(profiles["large"])
            said = await world.accuracy("cloud")
            assert {one["labels"] for one in said.values()} == {0}
            offers = {one.variant: one.accuracy for one in world.nodes["edge"].offer_table.all}
            assert offers["large"] == pytest.approx(profiles["large"])
            # Over a restart, and where the other node has gone.
            await world.stop("edge")
            await world.start("edge")
            await world.met()
            await world.until(lambda: (world.counted("edge")["large@cloud"] or 1.0) < 0.6)
            await world.answered("large", ["last"])
            await world.stop("cloud")
            assert (await world.feedback([{"id": "last", "score": 0.5}]))["matched"] == 1
            assert (await world.accuracy())["large"]["labels"] == count + 2
        finally:
            await world.close()

    asyncio.run(run())


def test_offers_that_change_make_a_fleet_that_goes_by_labels_at_once(tmp_path: Path) -> None:
    """The cloud comes after its labels: what was measured before is what counts of it first."""

    async def run() -> None:
        world = World(tmp_path)
        try:
            edge = await world.start("edge")
            await world.until(lambda: "mini" in world.counted("edge"))
            names = [f"m-{number}" for number in range(600)]
            await world.answered("mini", names)
            await world.feedback([{"id": one, "correct": False} for one in names])
            await world.until(lambda: world.counted("edge")["mini"] == 0.0)
            seen, site = list[dict[str, float | None]](), edge.server.sites["digits"]
            swap = site.swap

            def swapped(pool: Any) -> Any:
                made = swap(pool)
                asyncio.get_running_loop().call_soon(lambda: seen.append(world.counted("edge")))
                return made

            site.swap = swapped  # type: ignore[method-assign]
            await world.start("cloud")
            await world.until(lambda: seen and "mini@cloud" in world.counted("edge"))
            assert all(one["mini"] == 0.0 for one in seen)
            assert world.counted("edge")["mini@cloud"] == 0.0
        finally:
            await world.close()

    asyncio.run(run())


def test_an_alarm_is_raised_at_the_entry(tmp_path: Path) -> None:
    pytest.importorskip("river.drift", reason="alarms need river: pip install 'inferway[drift]'")

    async def run() -> None:
        world = World(tmp_path, alarm=True)
        try:
            await world.start("cloud")
            await world.start("edge")
            await world.met()
            for right in (True, False):
                names = [f"{right}-{number}" for number in range(300)]
                await world.answered("large", names)
                items = [{"id": name, "correct": right} for name in names]
                assert (await world.feedback(items))["matched"] == 300
            said = (await world.accuracy())["large"]
            assert said["alarms"] == 1
            assert said["alarm"]["before"] > 0.9
            assert {one["alarms"] for one in (await world.accuracy("cloud")).values()} == {0}
        finally:
            await world.close()

    asyncio.run(run())


def test_a_node_that_cannot_keep_its_answers_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "edge" / "answers" / "digits.sqlite").mkdir(parents=True)
    with pytest.raises(ServeError, match=r"the answers of task 'digits' cannot be kept in .*edge"):
        asyncio.run(World(tmp_path).start("edge"))
