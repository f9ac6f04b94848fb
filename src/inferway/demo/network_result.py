"""What the network demo found: as data, as JSON, and as text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inferway.demo.network_twin import Prediction
from inferway.demo.result import Claim

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["CLOSE", "MOST_CPU", "REPOSITORY", "NetworkDemoResult", "PolicyResult", "claims"]

SCHEMA: Final = 1
REPOSITORY: Final = "repository"
"""The policy that places nothing; its gain is what serving and forwarding cost."""
CLOSE: Final = 0.1
"""How far the measured gain may be from the event twin's."""
MOST_CPU: Final = 0.5
"""Share of the machine's CPU time that nodes and generator may take, for the gain to say much."""
_MIB: Final = 2**20


@dataclass(frozen=True)
class PolicyResult:
    """One policy on the common requests.

    Attributes
    ----------
    policy
        Its name.
    ntag_ms
        Gain per request as measured: the mean over slots of the mean over a slot's answers.
    latency_s
        Mean of the answers, from when a request was due.
    accuracy
        Part of the answers that is right, by true labels.
    profile_accuracy
        Mean accuracy that the answers' variants have by their profiles.
    moved_bytes_per_slot
        What nodes loaded, as they say themselves.
    offered, lost, errors
        Requests; those without an answer; and those of them that no node refused (an error of a
        server, a connection that ended, silence).
    gain_ms, moved_bytes
        By slot.
    cpu_share
        CPU time of all nodes and the generator, of what the machine's cores have, 0..1.
    other_share
        The same of all other programs on this machine; None where nobody says it.
    send_lag_p99_s
        How late the generator sent.
    twin
        What the twins predict; None where they were not run.
    """

    policy: str
    ntag_ms: float
    latency_s: float
    accuracy: float
    profile_accuracy: float
    moved_bytes_per_slot: float
    offered: int
    lost: int
    errors: int
    gain_ms: tuple[float, ...]
    moved_bytes: tuple[float, ...]
    cpu_share: float
    other_share: float | None
    send_lag_p99_s: float
    twin: Prediction | None = None

    @property
    def error(self) -> float | None:
        """By how much the gain is above the event twin's, as a share of that."""
        if self.twin is None or self.policy == REPOSITORY:
            return None
        return self.ntag_ms / self.twin.ntag_ms - 1.0

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return {
            "policy": self.policy,
            "ntag_ms": self.ntag_ms,
            "predicted_ntag_ms": None if self.twin is None else self.twin.ntag_ms,
            "slot_ntag_ms": None if self.twin is None else self.twin.slot_ntag_ms,
            "latency_s": self.latency_s,
            "accuracy": self.accuracy,
            "moved_bytes_per_slot": self.moved_bytes_per_slot,
            "lost": self.lost,
            "errors": self.errors,
        }


@dataclass(frozen=True)
class NetworkDemoResult:
    """Everything; `to_json` and `to_text` show it.

    Attributes
    ----------
    policies
        In the order of the runs; only those that were driven to the end, or to the Ctrl-C.
    slots, slot_s
        How many slots each policy got, and their length.
    rate_per_s
        Mean rate of the requests.
    service_s
        Measured here by variant, from send to answer of one request alone, seconds.
    files
        The figure, PNG and SVG, the requests and the slots, Parquet, and the deployment.
    machine
        Cores, processor, versions.
    seed, seconds
        Of the run, and how long it took.
    interrupted
        Whether Ctrl-C ended it.
    warnings
        What spoils the measurement.
    """

    policies: tuple[PolicyResult, ...]
    slots: int
    slot_s: float
    rate_per_s: float
    service_s: dict[str, float]
    files: tuple[Path, ...]
    machine: dict[str, Any]
    seed: int
    seconds: float
    interrupted: bool = False
    warnings: tuple[str, ...] = ()

    def claims(self) -> list[Claim]:
        """Check what the demo is to show, as far as its policies ran."""
        return claims(self.policies)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "schema": SCHEMA,
            "policies": [one.to_json() for one in self.policies],
            "slots": self.slots,
            "slot_s": self.slot_s,
            "service_s": self.service_s,
            "cpu_share": {one.policy: one.cpu_share for one in self.policies},
            "other_share": {one.policy: one.other_share for one in self.policies},
            "claims": [asdict(claim) for claim in self.claims()],
            "files": [str(path) for path in self.files],
            "machine": self.machine,
            "seed": self.seed,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "warnings": list(self.warnings),
        }

    def to_text(self) -> list[RenderableType]:
        """Return what to print, in order."""
        from rich.text import Text

        parts: list[RenderableType] = [self._gain(), Text(), self._service()]
        found = [f"{'yes' if c.holds else 'NO '}  {c.claim} ({c.measured})" for c in self.claims()]
        if found:
            parts.append(Text("\n".join(["", *found])))
        if self.interrupted:
            parts.append(Text("Ended before its time: this is what is known.", style="yellow"))
        parts += [Text(f"Warning: {warning}", style="yellow") for warning in self.warnings]
        if self.files:
            parts.append(Text("\n" + "\n".join(map(str, self.files))))
        return parts

    def _gain(self) -> Table:
        from inferway.experiments.simulated import relative
        from inferway.experiments.text import milliseconds, table

        rows = []
        for one in self.policies:
            twin = one.twin
            apart = "" if twin is None else f"{one.ntag_ms - twin.ntag_ms:+.1f} ms"
            rows.append(
                [
                    one.policy,
                    f"{one.ntag_ms:.1f}",
                    "-" if twin is None else f"{twin.ntag_ms:.1f}",
                    apart if one.error is None else relative(one.error),
                    "-" if twin is None else f"{twin.slot_ntag_ms:.1f}",
                    milliseconds(one.latency_s),
                    "-" if twin is None else milliseconds(twin.latency_s),
                ]
            )
        return table(
            "Five nodes, live and in the twins: gain per request and latency, in ms",
            ["policy", "gain", "event twin", "apart", "slot twin", "latency", "event twin"],
            rows,
            caption=(
                f"{self.slots} slots of {self.slot_s:g} s for each policy, "
                f"{self.rate_per_s:.0f} requests/s, the same ones. Gain (NTAG): what a request "
                "costs less than the cloud alone would let it cost, a point of inaccuracy "
                "counting as a millisecond."
            ),
        )

    def _service(self) -> Table:
        from inferway.experiments.text import percent, table

        rows = []
        for one in self.policies:
            twin = one.twin
            rows.append(
                [
                    one.policy,
                    percent(one.accuracy),
                    "-" if twin is None else percent(twin.accuracy),
                    f"{one.moved_bytes_per_slot / _MIB:.2f}",
                    "-" if twin is None else f"{twin.moved_bytes_per_slot / _MIB:.2f}",
                    str(one.lost),
                    str(one.errors),
                    percent(one.cpu_share, 0),
                    percent(one.other_share, 0),
                ]
            )
        return table(
            "What was answered, and what it took",
            [
                *("policy", "accuracy", "twin", "MiB/slot", "twin", "lost", "errors"),
                *("CPU", "others'"),
            ],
            rows,
            caption=(
                f"Of {max(one.offered for one in self.policies)} requests each. Accuracy by true "
                "labels, the event twin's by profiles; bytes that nodes loaded; CPU of all nodes "
                f"and the generator, of {self.machine['cores']} cores; others': of all other "
                "programs."
            ),
        )


def claims(policies: Sequence[PolicyResult]) -> list[Claim]:
    """Check what the demo is to show; nothing about policies without a prediction."""
    found = []
    for one in policies:
        if one.error is not None:
            found.append(
                Claim(
                    f"the gain of {one.policy} is within {CLOSE:.0%} of the event twin's",
                    abs(one.error) <= CLOSE,
                    f"{one.error:+.1%}",
                )
            )
        if one.policy == REPOSITORY and one.twin is not None:
            apart = one.ntag_ms - one.twin.ntag_ms
            others = [other.ntag_ms for other in policies if other.policy != REPOSITORY]
            if others:
                found.append(
                    Claim(
                        f"every other policy gains more than {REPOSITORY}",
                        min(others) > one.ntag_ms,
                        f"which is {apart:+.1f} ms from the event twin's",
                    )
                )
    return found
