"""Studies: every published figure, table and example, computed again and held to what it says.

- `STUDIES`, `study`, `named`: what there is.
- `run`: computes what is not stored yet; `stored`: what is.
- `checked`: what claims say of it, with 95 % intervals.
- `Study`, `Point`, `Claim`, `Results`: what one consists of, with `scales` of its settings.
- `grid`: points of every combination of values.
- `claim`: a sentence with its limit in words; `claims`: several, as paragraphs of text.
"""

from inferway.experiments.claim import Claim, claim, claims
from inferway.experiments.results import Measure, Results
from inferway.experiments.runner import Point, grid
from inferway.experiments.study import OUT, SCALES, Progress, Study, checked, run, scales, stored
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
    "claim",
    "claims",
    "grid",
    "named",
    "run",
    "scales",
    "stored",
    "study",
]
