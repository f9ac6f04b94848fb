"""How long batches take: assumed, as the paper prints no batch service times.

A batch of b takes s1 (phi + (1 - phi) b): phi is the part of one request's time that a batch pays
once. A small network hardly fills a GPU, so that batches cost it little more (phi 0.7); a large one
fills it already (phi 0.3). Sizes are the paper's (Sec. 5.2.2).
"""

from __future__ import annotations

SIZES = (1, 3, 5)
LIGHT_PHI = 0.7
HEAVY_PHI = 0.3


def batch_service_s(service_s: float, phi: float) -> tuple[float, ...]:
    """Service times of whole batches of `SIZES`, s.

    Parameters
    ----------
    service_s
        Of one request, s.
    phi
        Part of it that a batch pays once, 0..1.

    Raises
    ------
    ValueError
        Where phi is out of range.
    """
    if not 0 <= phi <= 1:
        raise ValueError(f"the part that a batch pays once is in 0..1, not {phi:g}")
    return tuple(service_s * (phi + (1 - phi) * size) for size in SIZES)
