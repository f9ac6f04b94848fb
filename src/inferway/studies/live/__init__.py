"""Comparisons on real models and real images, here and now: what `inferway demo` runs.

`compare_policies` is of dispatch policies, `compare_schedulers` of schedulers under bursts with a
deadline, `compare_placements` of placement policies on five nodes. Each serves what a deployment
file beside this one says, under one stream of requests for all, beside what the twin makes of it.
"""

from inferway.studies.live.burst import compare_schedulers
from inferway.studies.live.comparison import LiveComparison, SeenServer, own_command
from inferway.studies.live.network import compare_placements
from inferway.studies.live.policies import compare_policies
from inferway.studies.live.servers import DemoError, launch

__all__ = [
    "DemoError",
    "LiveComparison",
    "SeenServer",
    "compare_placements",
    "compare_policies",
    "compare_schedulers",
    "launch",
    "own_command",
]
