"""A target over two tasks at a node whose neighbor has the other variants of both."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from row import row

pytest.importorskip("zenoh")

TAKES_J = {"tiny": 5.0, "big": 1.0}
TASKS = ("task", "other")
FILE = """\
tasks:
  task: &both
    idempotent: {idempotent}
    variants:
      tiny: {{remote: '{first}', accuracy: 0.9, energy: 5 J, size: 1 MB, service: {{mean: 1 ms}}}}
      big: {{remote: '{last}', accuracy: 0.9, energy: 1 J, size: 5 MB, service: {{mean: {mean}}}}}
  other: *both
targets: {{both: {{tasks: [task, other], energy: GOAL J}}}}
nodes:
{nodes}
network: {{links: [{links}]}}
placement: {{policy: repository-only, slot: 1 h}}
workload:
  task: &asked {{arrivals: {{process: poisson, rate: {rate}/s}}, entries: {{nodes: [{entry}]}}}}
  other: *asked
"""


async def asked(folder: Path, goal: float, count: int) -> tuple[list[str], Any, Any, Any]:
    """Ask for each task in turn; who answered, and the target: at both nodes, and as counted."""
    text = FILE.replace("GOAL", str(goal))
    async with row(folder, "edge", "cloud", text=text, tasks=TASKS) as (edge, cloud):
        client = await edge.client()
        answers = [await client.ask(task=TASKS[number % 2]) for number in range(count)]
        who = [one.json["model_version"] for one in answers]
        here, there = [
            json.loads(await one.get("/status"))["targets"]["both"] for one in (edge, cloud)
        ]
        counted = {
            kind: await edge.counted(f"inferway_target_{kind}", target="both")
            for kind in ("energy_mean_joules", "energy_goal_joules", "balance")
        }
        return who, here, there, counted


@pytest.mark.parametrize("goal", [9.0, 2.0])
def test_the_entry_keeps_a_mean_energy_by_what_its_neighbor_takes(
    tmp_path: Path, goal: float
) -> None:
    who, here, there, counted = asyncio.run(asked(tmp_path, goal, 400))
    # The neighbor, a repository, has both variants.
    mean = sum(TAKES_J[variant] for variant in who) / len(who)
    assert (here["energy"], here["answers"], there["answers"]) == (goal, 400, 0)
    assert here["mean"] == pytest.approx(mean) == counted["energy_mean_joules"]
    assert here["balance"] == pytest.approx(400 * (goal - mean)) == counted["balance"]
    assert counted["energy_goal_joules"] == goal
    if goal > TAKES_J["tiny"]:  # who is ten times as fast, where nothing holds it up
        assert who.count("tiny") > len(who) / 2
    else:
        assert mean == pytest.approx(goal, rel=0.05)
