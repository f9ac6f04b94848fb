"""What is wrong with a deployment file, said so that the next edit fixes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

Place = tuple[str | int, ...]


def field_name(place: Place) -> str:
    """Write a place in the file as people point at it: ``network.tree[2].rtt``."""
    name = ""
    for step in place:
        if isinstance(step, int):
            name += f"[{step}]"
        else:
            name += f".{step}" if name else step
    return name


def _on_one_line(text: str) -> str:
    """Escape what a terminal would not print as a character."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: its line (from 1; 0 is the whole file), its field, and why."""

    line: int
    field: str
    sentence: str

    def __post_init__(self) -> None:
        # A file may hold line breaks and worse in its keys; a problem stays on one line.
        object.__setattr__(self, "field", _on_one_line(self.field))
        object.__setattr__(self, "sentence", _on_one_line(self.sentence))

    def __str__(self) -> str:
        return f"{self.field}: {self.sentence}" if self.field else self.sentence


def _order(problem: Problem) -> tuple[bool, int, str, str]:
    # How many more there are stands last, and is of no line.
    rest = not problem.line and problem.sentence.startswith("and ")
    return rest, problem.line, problem.field, problem.sentence


class DeploymentError(ValueError):
    """A deployment file that cannot be used.

    ``str`` of it lists every problem on a line of its own, as ``FILE:LINE: field: sentence``.

    Attributes
    ----------
    path
        The file, as it was named by the caller.
    problems
        All problems found, in the order of the file.
    """

    def __init__(self, path: Path | str, problems: Iterable[Problem]) -> None:
        self.path = Path(path)
        self.problems = tuple(sorted(set(problems), key=_order))
        super().__init__(self.path, self.problems)

    def __str__(self) -> str:
        return "\n".join(
            f"{self.path}:{p.line}: {p}" if p.line else f"{self.path}: {p}" for p in self.problems
        )
