"""Studies: every published figure, table and example, computed again and held to what it says.

- `STUDIES`, `study`, `named`: what there is.
- `run`: computes what is not stored yet; `stored`: what is.
- `checked`: what claims say of it, with 95 % intervals.
- `Study`, `Point`, `Claim`, `Results`: what one consists of.
"""

from inferway.experiments.claim import Claim
from inferway.experiments.results import Measure, Results
from inferway.experiments.runner import Point
from inferway.experiments.study import OUT, SCALES, Progress, Study, checked, run, stored
from inferway.studies.table import STUDIES, named, study

__all__ = [
    "OUT",
    "SCALES",
    "STUDIES",
    "Claim",
    "Measure",
    "Point",
    "Progress",
    "Results",
    "Study",
    "checked",
    "named",
    "run",
    "stored",
    "study",
]
