"""An entry node that asks again, live and in the event twin of its network."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from asking import confidence
from chain import Doubles, line, until

import inferway
from inferway.live import InferRequest, Outcome
from inferway.network.node import TaskFleets
from inferway.network.offers import Offer
from inferway.twin.network.events import simulate_events

FILE = """
tasks:
  quiet:
    accuracy_target: 0.85
    difficulty: {quality: 0.8}
    variants:
      tiny:  {accuracy: 0.7, size: 1 MB, service: {mean: 4 ms}}
      large: {accuracy: 0.9, size: 4 MB, service: {mean: 16 ms}}
nodes:
  edge: {budget: 1 MB, pinned: {quiet/tiny: 1}}
  cloud: {repository: true}
network:
  links: [{between: [edge, cloud], rtt: 10 ms}]
dispatch: {policy: escalate}
placement: {policy: repository-only, slot: 10 s}
workload:
  quiet: {arrivals: {process: poisson, rate: 40/s}, entries: {nodes: [edge]}}
"""
TINY_S, LARGE_S, RTT_S, RATE_PER_S, REQUESTS = 0.004, 0.016, 0.01, 40.0, 400
SPARE_PER_S = 1.0 / LARGE_S


class Takes(Doubles):
    """Takes a time, and gives back what it is given: how sure it is."""

    def __init__(self, service_s: float) -> None:
        super().__init__()
        self.service_s = service_s

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self.service_s)
        return {"y": inputs["x"]}


@pytest.mark.slow
def test_an_entry_asks_as_often_as_its_twin(tmp_path: Path) -> None:
    file = tmp_path / "asking.yaml"
    file.write_text(FILE)
    deployment = inferway.load(file)
    # As many requests as live, from the same start, several times.
    twins = [simulate_events(deployment, slots=1, seed=seed) for seed in range(8)]
    offer = Offer(*("quiet", "large", "cloud", 0.9, LARGE_S, RTT_S, SPARE_PER_S), ("cloud",), True)
    fleets = TaskFleets(
        *(deployment, deployment.tasks["quiet"], "quiet", "edge", "cpu", False, None, True),
        *(RATE_PER_S, RATE_PER_S),
    )
    dispatcher = fleets.make({"tiny": 1}, [offer]).dispatcher
    dispatcher.prepare(shifts=True)
    assert dispatcher.fleet.variants == ("tiny", "large@cloud")
    random = np.random.default_rng(1)
    between_s, sure = random.exponential(1 / RATE_PER_S, REQUESTS), random.random(REQUESTS)
    answers: list[InferRequest] = []

    async def main() -> None:
        async with line("edge", "cloud", rtt_s=RTT_S) as (edge, cloud):
            edge.runtime, cloud.runtime = Takes(TINY_S), Takes(LARGE_S)
            await cloud.serve(own="large")
            await edge.serve(
                ("large", "cloud", "cloud"),
                dispatcher=dispatcher,
                target=0.85,
                confidences=[confidence, None],
            )
            now = edge.site.now
            due_s = now()
            for wait_s, one in zip(between_s, sure, strict=True):
                due_s += wait_s
                await asyncio.sleep(max(0.0, due_s - now()))
                array = np.array([[one, 0.0]], np.float32)
                edge.site.submit(InferRequest({"x": array}, 1, answers.append, None, now()))
            await until(lambda: len(answers) == REQUESTS)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert {one.outcome for one in answers} == {Outcome.ANSWERED}
    asked = sum(one.escalated_from == "tiny" for one in answers) / REQUESTS
    shares = [pair.share for one in twins for pair in one.escalated or ()]
    assert asked == pytest.approx(np.mean(shares), abs=0.1)
    expected = float(np.mean([one.credit for one in answers]))
    assert expected == pytest.approx(np.mean([one.accuracy for one in twins]), abs=0.02)
    mean_s = float(np.mean([one.latency_s for one in answers]))
    assert mean_s == pytest.approx(np.mean([one.latency_s for one in twins]), rel=0.4)
