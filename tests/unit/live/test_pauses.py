"""Pauses of the collector: each is counted once, in its bucket, until counting ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from inferway.live.admin import ServerCollector
from inferway.live.process import PAUSE_BOUNDS_S, Pauses


@pytest.fixture
def quiet() -> Iterator[None]:
    """No collections but those of the test."""
    gc.disable()
    yield
    gc.enable()


def test_a_collection_is_a_pause(quiet: None) -> None:
    pauses = Pauses()
    callbacks = list(gc.callbacks)
    pauses.begin()
    gc.collect()
    gc.collect(0)
    assert sum(pauses.buckets) == 2
    assert 0.0 < pauses.longest_s < pauses.sum_s < 10.0
    pauses.end()
    pauses.end()
    gc.collect()
    assert sum(pauses.buckets) == 2
    assert gc.callbacks == callbacks


def test_the_page_has_them_cumulated() -> None:
    pauses = Pauses()
    pauses.buckets[1], pauses.buckets[-1], pauses.sum_s, pauses.longest_s = 3, 1, 0.75, 0.5
    registry = CollectorRegistry()
    registry.register(ServerCollector(list, pauses))
    page = generate_latest(registry).decode().splitlines()
    assert f'inferway_gc_pause_seconds_bucket{{le="{PAUSE_BOUNDS_S[0]}"}} 0.0' in page
    assert 'inferway_gc_pause_seconds_bucket{le="0.1"} 3.0' in page
    assert 'inferway_gc_pause_seconds_bucket{le="+Inf"} 4.0' in page
    assert "inferway_gc_pause_seconds_count 4.0" in page
    assert "inferway_gc_pause_seconds_sum 0.75" in page
    assert "inferway_gc_pause_longest_seconds 0.5" in page
