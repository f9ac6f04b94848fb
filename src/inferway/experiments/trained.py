"""A training in words and pictures."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from inferway.experiments.text import Drawing, Frame, Shown, frame, shown_as
from inferway.learning import deployed
from inferway.learning.training import Trained


@dataclass(frozen=True)
class TrainingResult(Trained, Shown):
    """The training that `inferway.train` gives."""

    def to_frame(self) -> Frame:
        """One row per phase of the workload."""
        return frame(self.to_json()["phases"]).rename_axis("phase").reset_index()

    def plot(self) -> Drawing:
        """Draw what came of the requests in each phase; ValueError where it was not evaluated."""
        if self.tally is None:
            raise ValueError(f"{self.policy} was not evaluated, so there is nothing to draw")
        from inferway.experiments.figure import Bars, bars

        rows = self.to_frame()
        names = [f"phase {phase}" for phase in rows["phase"]]
        parts = {"goodput": "goodput", "violation_ratio": "violations"}
        heights = {label: rows[key].tolist() for key, label in parts.items()}
        return bars([Bars("without noise", "share of requests", names, heights)])

    def tables(self) -> list[Text]:
        """The lines that say it all."""
        return lines(self.policy.parent.name, self)


train = shown_as(TrainingResult, deployed.train)


def lines(policy: str, trained: Trained) -> list[Text]:
    """Say where it is, what it came to, and how quick it was."""
    tally, figures = trained.tally, [Text("  not evaluated")]
    if tally is not None:
        phases = zip(tally.goodput, tally.violations, tally.heavy, strict=True)
        figures = [
            Text(
                f"  goodput {tally.overall_goodput:.2%}, violations {tally.overall_violations:.2%} "
                f"(without noise, over {trained.evaluated:,} slots)"
            ),
            *(
                Text(
                    f"  phase {place}: goodput {goodput:.2%}, violations {violations:.2%}, "
                    f"most accurate variant {heavy:.2%}"
                )
                for place, (goodput, violations, heavy) in enumerate(phases)
            ),
        ]
    quick = trained.slots_per_cpu_s == trained.slots_per_cpu_s  # some were trained now
    speed = f"  {trained.slots_per_cpu_s:,.0f} slots per CPU second"
    return [
        Text.assemble((policy, "bold"), f" after {trained.slots:,} slots: {trained.policy}"),
        *figures,
        *([Text(speed, style="dim")] if quick else []),
    ]
