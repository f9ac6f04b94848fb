"""Requests over time: arrival processes as arrays of arrival times."""

from inferway.workload.arrivals import Chunk, mean_rate, peak_rate, stream, times
from inferway.workload.phases import PhaseCourse, Span, phase_of, phases_of, spans

__all__ = [
    "Chunk",
    "PhaseCourse",
    "Span",
    "mean_rate",
    "peak_rate",
    "phase_of",
    "phases_of",
    "spans",
    "stream",
    "times",
]
