"""A record in a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from inferway.loadgen.access import HOW_TO_GIVE
from inferway.loadgen.record import Record

_LATE_S: Final = 1e-3
_LATE_SHARE: Final = 0.1


@dataclass(frozen=True)
class Summary:
    """What a task's requests met; times in seconds, shares and accuracies in 0..1.

    Attributes
    ----------
    offered, answered, rejected, failed
        Numbers of requests: due, answered, refused by the server (429, 503, 504), and the rest
        (other errors, or no answer).
    rate_per_s
        Offered requests per second, first to last.
    mean_s, p50_s, p95_s, p99_s
        Latency of the answered ones from the intended send time; NaN without answers.
    shares
        Part of the answers that each variant gave.
    profile_accuracy
        Mean accuracy that the answers' variants have by their profiles; None if not known.
    accuracy
        Part of the answers that gave the true class; None without labels.
    send_lag_p99_s
        How late the generator was at sending.
    cpu_per_request_s
        CPU time of the generator per request.
    waited
        Requests that waited for one of the allowed connections.
    warnings
        Sentences about what spoils the measurement.
    failures
        Why requests have no answer, with their numbers; see `Record.failures`.
    """

    offered: int
    answered: int
    rejected: int
    failed: int
    rate_per_s: float
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    shares: dict[str, float]
    profile_accuracy: float | None
    accuracy: float | None
    send_lag_p99_s: float
    cpu_per_request_s: float
    waited: int
    warnings: tuple[str, ...]
    failures: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what is not a number there (no answers, hence no latency) is None."""
        return {
            name: None if isinstance(value, float) and not np.isfinite(value) else value
            for name, value in asdict(self).items()
        }


def summary(record: Record, accuracy: Mapping[str, float] | None = None) -> Summary:
    """Summarize a record.

    Parameters
    ----------
    record
        Of one task.
    accuracy
        Profile accuracy by variant, for the mean profile accuracy of the answers.
    """
    answered = record.answered
    count = int(answered.sum())
    latency = record.latency_s[answered]
    p50, p95, p99 = np.percentile(latency, (50, 95, 99)).tolist() if count else (np.nan,) * 3
    number = np.bincount(record.variant[answered], minlength=len(record.variants))
    shares = {
        name: int(n) / count for name, n in zip(record.variants, number, strict=True) if n > 0
    }
    labelled = answered & (record.label >= 0)
    span = float(np.ptp(record.intended_s)) if len(record) > 1 else 0.0
    rejected = int(record.rejected.sum())
    lag = float(np.percentile(record.lag_s, 99)) if record.lag_s.size else 0.0
    known = accuracy is not None and count > 0 and all(name in accuracy for name in shares)
    return Summary(
        offered=len(record),
        answered=count,
        rejected=rejected,
        failed=len(record) - count - rejected,
        rate_per_s=(len(record) - 1) / span if span > 0 else float("nan"),
        mean_s=float(latency.mean()) if count else float("nan"),
        p50_s=p50,
        p95_s=p95,
        p99_s=p99,
        shares=shares,
        profile_accuracy=(
            sum(share * accuracy[name] for name, share in shares.items())
            if known and accuracy is not None
            else None
        ),
        accuracy=float(record.correct[labelled].mean()) if labelled.any() else None,
        send_lag_p99_s=lag,
        cpu_per_request_s=record.cpu_s / max(record.generated, 1),
        waited=int(record.waited.sum()),
        warnings=tuple(_warnings(record, lag, p50)),
        failures=record.failures(),
    )


def _warnings(record: Record, lag_s: float, p50_s: float) -> list[str]:
    found = []
    refused = int((record.status == 401).sum())
    if refused:
        found.append(
            f"{refused} requests were refused for want of a valid key (401): give one {HOW_TO_GIVE}"
        )
    waited = int(record.waited.sum())
    if waited:
        found.append(
            f"{waited} requests waited for a connection: all allowed ones were in use; "
            "their latency includes that wait (allow more connections)"
        )
    elif lag_s > max(_LATE_S, _LATE_SHARE * (p50_s if np.isfinite(p50_s) else 0.0)):
        found.append(
            f"the generator was late: 1 request in 100 was sent {lag_s * 1e3:.1f} ms or more after "
            "its time, so latencies are partly its own (use a lower rate or a machine of its own)"
        )
    if record.interrupted:
        found.append("the run was stopped before its end")
    return found
