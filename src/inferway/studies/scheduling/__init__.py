"""Bursts, deadlines, and schedulers that adapt: [Tan24]."""

# What the results of `trial.evaluated` depend on, besides the policy files, which it is given a
# digest of.
CODE = (
    *("site", "dispatch", "scheduling", "twin", "workload"),
    *("learning/arrivals.py", "learning/by_events.py", "learning/control.py"),
    *("learning/routed.py", "learning/site.py"),
    "studies/scheduling/burst.py",
    "studies/scheduling/trial.py",
)
