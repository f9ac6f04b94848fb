"""Requests over time: arrival processes as arrays of arrival times."""

from inferway.workload.arrivals import (
    Chunk,
    PhaseCourse,
    Span,
    mean_rate,
    peak_rate,
    phases_of,
    spans,
    stream,
    times,
)

__all__ = [
    "Chunk",
    "PhaseCourse",
    "Span",
    "mean_rate",
    "peak_rate",
    "phases_of",
    "spans",
    "stream",
    "times",
]
