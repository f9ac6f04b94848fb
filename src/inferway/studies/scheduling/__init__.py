"""Paper 003: bursts, deadlines, and schedulers that adapt (shared papers, 003_4728488258718a44)."""

CODE = (
    *("site", "dispatch", "scheduling", "twin", "workload"),
    *("learning/site.py", "learning/evaluation.py", "learning/tally.py"),
    *("studies/scheduling/burst.py", "studies/scheduling/batch_curve.py"),
    *("studies/scheduling/deciders.py", "studies/scheduling/trial.py"),
)
"""What the results of `trial.evaluated` depend on, besides the policy files, which it is given a
digest of."""
