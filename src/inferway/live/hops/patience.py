"""How long a neighbor may have a request before it is taken back, however well it says that it is.

A pure rule. A neighbor that hangs as a whole is found out sooner (`inferway.live.hops.suspicion`);
this is for one whose health is well and whose answers do not come, or never end.
"""

from __future__ import annotations

import math
from typing import Final

FACTOR: Final = 8.0
LEAST_S: Final = 2.0
"""A neighbor has a request for so many times what was predicted, and at least this time: what was
to take less than 250 ms has 3 s in all, in which it is taken back, looked for once in 0.1 s, and
answered by another."""
BYTE_S: Final = 4e-6
"""And for so long per byte of the request (2 Mbit/s): what a slow link takes to carry it is in no
prediction before it has been learned. An answer has none, for one that drips quickly and never ends
cannot be told from a long one."""
SHARE: Final = 0.8
LEAST_SHARE: Final = 0.4
"""Of what the entry waits, each node on the way waits for this share of the one before it, down to
the second: the one before whoever does not answer finds it out first, and nobody else is blamed."""
TRIAL: Final = 0.25
"""Share of it for the one request that shows whether a neighbor works: until then it did not."""


def patience_s(predicted_s: float, size: int, nodes: int = 0) -> float:
    """Tell how long a neighbor may have a request.

    Parameters
    ----------
    predicted_s
        How long the entry node predicted it to take, the queue and the way included; 0 where
        nothing is known.
    size
        Bytes of its body.
    nodes
        That it has come through before this one.
    """
    if predicted_s <= 0.0:
        return math.inf
    limit_s = max(FACTOR * predicted_s, LEAST_S)
    if nodes:
        limit_s *= max(SHARE**nodes, LEAST_SHARE)
    return limit_s + BYTE_S * size
