"""The site of examples/edge-burst.yaml, as it is trained on."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import inferway
from inferway.deployment import Batch
from inferway.learning.control import Control
from inferway.learning.settings import Settings
from inferway.twin.scenario import scenario_of

FILE = Path(__file__).parents[3] / "examples" / "edge-burst.yaml"
SMALL = Settings(
    slots=8_000, slots_per_update=2_000, sites=20, epochs=2, minibatch=500, hidden=(16, 8)
)
BATCHES = (Batch((1, 3, 5), (0.0107, 0.02, 0.03), 1, 5), Batch((1, 3), (0.0429, 0.1), 1, 3))


@cache
def control(**changes: Any) -> Control:
    scenario = replace(scenario_of(inferway.load(FILE), "recognise"), late="serve")
    if changes.get("batches"):
        scenario = replace(scenario, batches=BATCHES)
    return Control(scenario, **changes)
