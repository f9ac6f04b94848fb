"""A small network: two edges, a metro, a cloud; two tasks of two variants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import inferway

SMALL = """
tasks:
  quiet:
    max_instances: 2
    variants:
      tiny:  {accuracy: 0.6, size: 100 MB, service: {mean: 2 ms}}
      large: {accuracy: 0.9, size: 400 MB, service: {mean: 8 ms}}
  other:
    max_instances: 2
    variants:
      tiny:  {accuracy: 0.5, size: 100 MB, service: {mean: 3 ms}}
      large: {accuracy: 0.95, size: 400 MB, service: {mean: 9 ms}}
dispatch: {policy: least-cost}
nodes:
  edge-1: {budget: 500 MB}
  edge-2: {budget: 200 MB}
  metro: {budget: 600 MB}
  cloud: {repository: true}
network:
  links:
    - {between: [edge-1, metro], rtt: 6 ms}
    - {between: [edge-2, metro], rtt: 10 ms}
    - {between: [metro, cloud], rtt: 40 ms}
placement: {policy: infida, slot: 20 s}
seed: 3
workload:
  quiet: {arrivals: {process: constant, rate: 7/s}, entries: {nodes: [edge-1, edge-2]}}
  other: {arrivals: {process: constant, rate: 3.1/s}, entries: {nodes: [edge-1, edge-2]}}
"""

Loaded = Callable[..., inferway.Deployment]


@pytest.fixture
def small(tmp_path: Path) -> Loaded:
    """Load the small network with parts of its text replaced."""

    def load(*replaced: tuple[str, str]) -> inferway.Deployment:
        text = SMALL
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        file = tmp_path / "small.yaml"
        file.write_text(text)
        return inferway.load(file)

    return load
