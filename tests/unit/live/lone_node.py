"""One node's fleets, made of real models and of offers that a test writes."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import inferway
from inferway.live.node.fleets import Fleets
from inferway.live.node.models import LoadedModels
from inferway.live.node.plan import plan_of
from inferway.live.options import ServerOptions
from inferway.live.request import InferRequest, NodeCondition
from inferway.live.server import Server
from inferway.live.site import TaskSite
from inferway.live.store.store import ModelStore
from inferway.live.upstream.upstream import Upstream
from inferway.network.offers import Offer
from inferway.protocol import Signature

FILE = """
tasks:
  digits:
    {task}
    variants:
      mini: {{model: zoo://digits/mini{mini}}}
      small: {{model: zoo://digits/small}}
      large: {{model: zoo://digits/large}}
nodes:
  cloud: {{repository: true, instances: {{digits/large: 1}}}}
  metro: {{budget: 500 kB}}
  edge: {{budget: 500 kB}}
network:
  max_wait: 1 ms
  links: [{{between: [cloud, metro], rtt: 5 ms}}, {{between: [metro, edge], rtt: 5 ms}}]
workload:
  digits: {{arrivals: {{process: poisson, rate: 20/s}}, entries: {{nodes: [edge]}}}}
"""
CLOUD = Offer("digits", "large", "cloud", 0.9, 0.004, 0.01, 100.0, ("metro", "cloud"), True)
METRO = Offer("digits", "small", "metro", 0.85, 0.001, 0.005, 100.0, ("metro",), False)


class Heard:
    """What a world's node goes by."""

    def __init__(self, world: World) -> None:
        self._world = world

    def offers(self, task: str) -> list[Offer]:
        return [one for one in self._world.offers if one.task == task]

    def signature(self, task: str) -> Signature | None:
        return self._world.said


class World:
    """One node's fleets, what it hears, and the server that has them."""

    def __init__(
        self,
        folder: Path,
        node: str = "edge",
        task: str = "deadline: 1 s",
        mini: str = "",
        text: str = FILE,
    ) -> None:
        file = folder / "three.yaml"
        file.write_text(text.format(task=task, mini=mini))
        deployment = inferway.load(file)
        self.store = ModelStore(folder / "store", limit_bytes=10_000_000)
        self.models = LoadedModels(deployment, self.store)
        self.offers: list[Offer] = []
        self.said: Signature | None = None
        self.later_s = 0.0
        # Nobody listens there: what these tests send stays where it is.
        self.upstreams = {"metro": Upstream("metro", "127.0.0.1", 9)}
        self.ended: list[InferRequest] = []
        plan = plan_of(deployment, node)
        sites = [
            TaskSite(name, kind.accuracy_target, now=self._now, node=NodeCondition(node))
            for name, kind in plan.tasks.items()
        ]
        for site in sites:
            site.trace(lambda task, request: self.ended.append(request))
        self.server = Server(sites, ServerOptions(log_level="critical"))
        self.fleets = Fleets(
            deployment,
            plan,
            self.server.sites,
            self.server.replace,
            self.models,
            Heard(self),  # type: ignore[arg-type]
            self.upstreams,
        )

    def _now(self) -> float:
        return time.monotonic() + self.later_s

    async def load(self, *variants: str, task: str = "digits") -> None:
        for variant in variants:
            await self.models.load(task, variant)

    @property
    def site(self) -> TaskSite:
        return self.server.sites["digits"]

    def ask(self, rows: int = 1, task: str = "digits") -> InferRequest:
        image = np.zeros((rows, 1, 32, 32), np.float32)
        request = InferRequest({"image": image}, rows, lambda request: None, None, self.site.now())
        self.server.sites[task].submit(request)
        return request
