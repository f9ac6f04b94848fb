"""Placement decides the same with the JIT off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import naive_placement as naive
import numpy as np
from inferway.placement import Observation, build_policy, project, serve
found = {}
for name in ("infida", "infida-offline", "static-greedy", "olag", "greedy"):
    network = naive.random_network(5, nodes=4, tasks=2, types=5, copies=2, pins=True)
    batches = np.array([naive.batch(network, k) for k in range(4)])
    options = {"iterations": 10} if name == "infida-offline" else {}
    policy = build_policy(name, network, seed=2, batches=batches, **options)
    rows = []
    for requests in batches:
        load = serve(network, requests, policy.allocation)
        rows.append([float(f"{value:.9g}") for value in load])
        policy.step(Observation(requests, load))
        rows.append(policy.allocation.tolist())
    found[name] = rows
found["fresh"] = build_policy("infida", network, rounding="fresh").allocation.tolist()
found["projection"] = [float(f"{v:.9g}") for v in project([3.0, 0.2, 0.1], [1.0, 2.0, 3.0], 2.5)]
print(json.dumps(found))
"""


def outcome(jit: bool) -> dict[str, object]:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0" if jit else "1"}
    oracles = Path(__file__).parents[2] / "theory"
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(oracles)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    return json.loads(ran.stdout)


def test_decisions_are_the_same_without_the_compiler() -> None:
    assert outcome(jit=True) == outcome(jit=False)
