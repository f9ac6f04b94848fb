"""Dispatch under an accuracy target: [Anonymous]."""

CODE = ("site", "dispatch", "twin", "workload", "studies/queueing/system.py")
"""What the results of calls that simulate a scenario of `system` depend on."""
