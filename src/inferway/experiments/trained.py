"""A training in words and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from inferway.experiments.text import shown_as, text
from inferway.learning import deployed
from inferway.learning.training import Trained

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class TrainingResult(Trained):
    """The training that `inferway.train` gives."""

    def to_frame(self) -> pd.DataFrame:
        """One row per phase of the workload."""
        import pandas as pd

        return pd.DataFrame(self.to_json()["phases"]).rename_axis("phase").reset_index()

    def plot(self) -> Figure:
        """Draw what came of the requests in each phase."""
        from inferway.experiments.figure import Bars, bars

        frame = self.to_frame()
        names = [f"phase {phase}" for phase in frame["phase"]]
        parts = {"goodput": "goodput", "violation_ratio": "violations"}
        heights = {label: frame[key].tolist() for key, label in parts.items()}
        return bars([Bars("without noise", "share of requests", names, heights)])

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False))

    def __str__(self) -> str:
        return text(*lines(self.policy.parent.name, self))


train = shown_as(lambda found: TrainingResult(**vars(found)))(deployed.train)


def lines(policy: str, trained: Trained) -> list[Text]:
    """Say where it is, what it came to, and how quick it was."""
    tally = trained.tally
    phases = zip(tally.goodput, tally.violations, tally.heavy, strict=True)
    quick = trained.slots_per_cpu_s == trained.slots_per_cpu_s  # some were trained now
    speed = f"  {trained.slots_per_cpu_s:,.0f} slots per CPU second"
    return [
        Text.assemble((policy, "bold"), f" after {trained.slots:,} slots: {trained.policy}"),
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
        *([Text(speed, style="dim")] if quick else []),
    ]
