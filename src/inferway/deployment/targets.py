"""Targets over several tasks together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import model_validator

from inferway.deployment.errors import refuse_where
from inferway.deployment.section import UNWRITTEN, Name, Section, says
from inferway.deployment.units import PositiveJoules, Ratio


@dataclass(frozen=True)
class JointTarget(Section):
    """A mean promised over the answers of several tasks, beside what each of them promises."""

    tasks: Annotated[tuple[Name, ...], says("Tasks whose answers the mean is of, each as one.")]
    accuracy: Annotated[Ratio | None, says("Mean accuracy promised, over their answers.")] = None
    energy: Annotated[
        PositiveJoules | None, says("Most energy that one of their requests may take on average.")
    ] = None
    name: Annotated[str, *UNWRITTEN] = ""

    @model_validator(mode="after")
    def _is_over_several(self) -> JointTarget:
        twice = next((one for one in self.tasks if self.tasks.count(one) > 1), None)
        own = "`accuracy_target`" if self.energy is None else "`energy_budget`"
        refuse_where(
            (
                (self.accuracy is None) == (self.energy is None),
                "a target has either `accuracy` or `energy`",
            ),
            (twice is not None, f"{twice} is named twice among its tasks"),
            (
                len(self.tasks) < 2,
                f"a target is over two tasks or more; what one task promises is its own {own}",
            ),
        )
        return self
