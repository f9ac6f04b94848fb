"""Paper 002: dispatch under an accuracy target (shared papers, 002_50fc0f7194b16398)."""

CODE = ("site", "dispatch", "twin", "workload", "studies/queueing/system.py")
"""What the results of calls that simulate a scenario of `system` depend on."""
