"""Errors of a deployment file, said so that the next edit fixes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic_core import ErrorDetails

from inferway.spelling import closest

Place = tuple[str | int, ...]


def field_name(place: Place) -> str:
    """Write a place in the file as people point at it: ``network.tree[2].rtt``."""
    return "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in place
    ).removeprefix(".")


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


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the known word that was probably meant, or list what is known."""
    known = list(known)
    near = closest(word, known)
    if near is not None:
        return f"did you mean {near}?"
    return f"known here: {', '.join(known)}" if known else "nothing is known here"


def shown(value: Any) -> str:
    """Write a value of the file in a sentence, shortened."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            text = repr(value) if isinstance(value, str) else str(value)
            return text if len(text) <= 40 else text[:37] + "..."


_SENTENCES: Final = {
    "refused": "{sentence}",
    "missing": "is needed and not given",
    "greater_than_equal": "must be {ge} or more, not {value}",
    "less_than_equal": "must be {le:,} or less, not {value}",
    "greater_than": "must be above {gt:g}, not {value}",
    "less_than": "must be below {most}, not {value}",
    **dict.fromkeys(
        ("int_type", "int_from_float", "int_parsing"), "expected a whole number, got {value}"
    ),
    "string_type": "expected a word, got {value}",
    **dict.fromkeys(("tuple_type", "list_type"), "expected a list, got {value}"),
    "too_short": "needs at least {min_length}, and has {actual_length}",
    "too_long": "takes at most {max_length}, and has {actual_length}",
    "string_too_short": "is empty",
    **dict.fromkeys(
        ("model_type", "dict_type", "dataclass_type", "model_attributes_type"),
        "expected keys{such}, got {value}",
    ),
}
"""By pydantic's type of an error, of whose context the sentences are made."""


def sentence_of(detail: ErrorDetails, key: str, keys: Sequence[str]) -> str:
    """Say what pydantic finds wrong with a value.

    Parameters
    ----------
    detail
        From pydantic.
    key
        The last step of its place in the file.
    keys
        Those that are known at this place; beside it, where the key itself is unknown.
    """
    value, kind, step = shown(detail["input"]), detail["type"], detail["loc"][-1:]
    limits: dict[str, Any] = detail.get("ctx", {})
    if kind == "missing" and isinstance(step[0], int):
        return f"has too few items: number {step[0] + 1} is missing"
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        return f"unknown key; {nearest(key, keys)}"
    if kind == "literal_error":
        words = str(limits["expected"]).replace(" or ", ", ").split(", ")
        known = [word.strip("'") for word in words]
        return f"{value} is not possible; {nearest(str(detail['input']), known)}"
    if kind in _SENTENCES:
        most = limits.get("lt")
        most = f"{most:,}" if isinstance(most, int) else f"{most:g}" if most else ""
        such = f" such as {', '.join(keys[:3])}" if keys else ""
        return _SENTENCES[kind].format(**limits, value=value, most=most, such=such)
    message = detail["msg"]
    return message[:1].lower() + message[1:]
