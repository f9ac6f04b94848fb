"""A simulation that can be looked at: its frame, its figure, its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inferway import twin
from inferway.experiments.shown import shown_as, text
from inferway.twin.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_SHOWN: Final = (
    "task",
    "response_time_s.mean",
    "response_time_s.p50",
    "response_time_s.p95",
    "response_time_s.p99",
    "accuracy.mean",
    "accuracy_target",
    "rejected",
    "dropped",
    "late",
    "rate_per_s",
    "queries",
    "stable",
)


@dataclass(frozen=True)
class SimulationResult(Result):
    """What `inferway.simulate` gives."""

    def plot(self) -> Figure:
        """Draw who answered and how quickly, by variant; of a network, its gain over time."""
        if self.network is not None:
            from inferway.experiments.slots import over_time

            return over_time(self.network, title=self.network.policy)
        from inferway.experiments.bars import Bars, bars

        shown = []
        for name, task in self.tasks.items():
            names = list(task.classes)
            of = task.classes.values()
            busy = {"of the answers": [one.share for one in of]}
            busy["of its time busy"] = [one.utilization for one in of]
            times_s = {
                "mean": [one.response_time_s for one in of],
                "p95": [one.p95_s for one in of],
            }
            shown += [
                Bars(f"task {name}", "share", names, busy),
                Bars("", "response time, s", names, times_s),
            ]
        return bars(shown)

    def _repr_html_(self) -> str:
        frame: pd.DataFrame = self.to_frame()
        if self.network is not None:
            return str(frame.describe().to_html())
        return str(frame[[one for one in _SHOWN if one in frame]].T.to_html(header=False))

    def __str__(self) -> str:
        if self.network is not None:
            from inferway.experiments.events import tables

            return text(*tables(self.network))
        from inferway.experiments import simulated

        return "\n\n".join(text(*simulated.task(name, one)) for name, one in self.tasks.items())


simulate = shown_as(lambda found: SimulationResult(**vars(found)))(twin.simulate)
