"""Requests over time: arrival processes as arrays of arrival times."""

from inferway.workload.arrivals import mean_rate, peak_rate, times
from inferway.workload.phases import Span, phase_of, spans

__all__ = ["Span", "mean_rate", "peak_rate", "phase_of", "spans", "times"]
