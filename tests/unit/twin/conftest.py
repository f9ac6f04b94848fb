"""A small site to simulate."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.deployment import ServiceTime
from inferway.deployment.workloads import PoissonArrivals
from inferway.site import Fleet
from inferway.twin import Scenario


@pytest.fixture
def scenario() -> Scenario:
    """Two classes, exponential service, Poisson arrivals."""
    fleet = Fleet(("quick", "good"), np.array([2.0, 0.5]), np.array([0.6, 0.9]), np.array([2, 3]))
    return Scenario(
        fleet,
        (ServiceTime("exponential", 0.5), ServiceTime("exponential", 2.0)),
        PoissonArrivals.read({"process": "poisson", "rate": "3/s"}),
        target=0.7,
    )
