"""A study that was run: its figure, its claims, its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from inferway.experiments.intervals import checked
from inferway.experiments.results import Results
from inferway.experiments.study import Claim, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["StudyResult"]


@dataclass(frozen=True)
class StudyResult:
    """The results of a study at a scale."""

    study: Study[Any]
    scale: str
    results: Results

    @cached_property
    def figure(self) -> Figure:
        """As the paper draws it."""
        return self.study.figure(self.study.scales[self.scale], self.results)

    @cached_property
    def claims(self) -> Sequence[Claim]:
        """Each sentence that is checked, with what was measured and its interval."""
        return checked(self.study, self.study.scales[self.scale], self.results)

    def plot(self) -> Figure:
        """`figure`, as all results have it."""
        return self.figure

    def to_frame(self) -> pd.DataFrame:
        """One row per point."""
        import pandas as pd

        return pd.DataFrame(list(self.results.rows))

    def _repr_html_(self) -> str:
        return str(self._table().to_html(index=False))

    def __str__(self) -> str:
        return str(self._table().to_string(index=False))

    def _table(self) -> pd.DataFrame:
        import pandas as pd

        rows = [
            {
                "claim": claim.says,
                "measured": claim.measured,
                "reproduces": claim.tolerance,
                "": claim.verdict,
            }
            for claim in self.claims
        ]
        return pd.DataFrame(rows)
