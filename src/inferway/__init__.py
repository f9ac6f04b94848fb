"""Inferway: the accuracy or the deadline promised, at the least latency, from edge to cloud."""

__version__ = "0.1.0"
