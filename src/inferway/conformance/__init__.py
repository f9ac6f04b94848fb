"""Does a server speak the Open Inference Protocol v2? One check for each thing that it asks.

    from inferway import conformance

    report = conformance.run("http://127.0.0.1:8000", task="digits")
    assert report.passed, report.failures

Any server can be checked, not only Inferway's.
"""

from inferway.conformance.report import Check, CheckOutcome, Finding, Report
from inferway.conformance.suite import CHECKS, run
from inferway.conformance.target import ConformanceError

__all__ = ["CHECKS", "Check", "CheckOutcome", "ConformanceError", "Finding", "Report", "run"]
