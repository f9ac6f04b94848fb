"""The alias table: an index from any discrete distribution in constant time.

Kronmal and Peterson, The American Statistician 33(4), 1979, doi 10.1080/00031305.1979.10482697.
"""

from __future__ import annotations

from inferway.site.compiled import jit
from inferway.site.view import Floats, Ints


@jit
def tabulate(probabilities: Floats, threshold: Floats, other: Ints) -> None:
    """Write the table of a distribution over n indices.

    A uniform number u in [0, n) stands for index i = floor(u) where u - i < threshold[i], and
    else for other[i].

    Parameters
    ----------
    probabilities
        (n,) at least 0, with a sum above 0; they are divided by it.
    threshold, other
        (n,) the table to write.
    """
    n = probabilities.size
    total = 0.0
    for i in range(n):
        total += probabilities[i]
    for i in range(n):
        threshold[i] = probabilities[i] * n / total
        other[i] = i
    rich = _next_rich(threshold, 0)
    for first in range(n):
        if threshold[first] >= 1.0:
            continue
        poor = first
        while rich < n:
            other[poor] = rich
            threshold[rich] -= 1.0 - threshold[poor]
            if threshold[rich] >= 1.0:
                break
            # It has become poor itself: its turn comes, or has been and it is filled now.
            poor, rich = rich, _next_rich(threshold, rich + 1)
            if poor > first:
                break


@jit
def _next_rich(threshold: Floats, start: int) -> int:
    while start < threshold.size and threshold[start] <= 1.0:
        start += 1
    return start
