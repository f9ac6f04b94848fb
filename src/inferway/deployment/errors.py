"""Errors of a deployment file, said so that the next edit fixes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from inferway.spelling import closest

Place = tuple[str | int, ...]


def field_name(place: Place) -> str:
    """Write a place in the file as people point at it: ``network.tree[2].rtt``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return "".join(steps).removeprefix(".")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: its line (from 1; 0 is the whole file), its field, and why."""

    line: int
    field: str
    sentence: str

    def __post_init__(self) -> None:
        # A file may hold line breaks and worse in its keys; a problem stays on one line.
        for name in ("field", "sentence"):
            escaped = (c if c.isprintable() else repr(c)[1:-1] for c in getattr(self, name))
            object.__setattr__(self, name, "".join(escaped))

    def __str__(self) -> str:
        return f"{self.field}: {self.sentence}" if self.field else self.sentence


class DeploymentError(ValueError):
    """A deployment file that cannot be used.

    ``str`` of it lists every problem on a line of its own, as ``FILE:LINE: field: sentence``.

    Attributes
    ----------
    path
        The file, as it was named by the caller.
    problems
        All problems found, in the order of the file; how many more there are comes last.
    """

    def __init__(self, path: Path | str, problems: Iterable[Problem], more: int = 0) -> None:
        self.path = Path(path)
        # Problems of another such error may hold the number of those that are not listed.
        ordered = sorted(
            set(problems),
            key=lambda one: (_is_number(one), one.line, one.field, one.sentence),
        )
        rest = [Problem(0, "", f"and {more:,} more problems")] if more else []
        self.problems = (*ordered, *rest)
        super().__init__(self.path, self.problems)

    def __str__(self) -> str:
        return "\n".join(
            f"{self.path}:{p.line}: {p}" if p.line else f"{self.path}: {p}" for p in self.problems
        )


def _is_number(problem: Problem) -> bool:
    return not problem.line and problem.sentence.endswith(" more problems")


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the known word that was probably meant, or list what is known."""
    known = list(known)
    if near := closest(word, known):
        return f"did you mean {near}?"
    return f"known here: {', '.join(known)}" if known else "nothing is known here"


def shown(value: Any, most: int | None = 40) -> str:
    """Write a value of the file in a sentence, shortened to so many characters."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list():
            return "a list"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if most is None or len(text) <= most else text[: most - 3] + "..."


def refuse(sentence: str) -> PydanticCustomError:
    """Build the error that a validator raises; `sentence` reaches the user as it is."""
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})


def refuse_where(*faults: tuple[Any, str]) -> None:
    """Refuse by the first sentence of which the condition beside it holds."""
    for wrong, sentence in faults:
        if wrong:
            raise refuse(sentence)


def must(fit: Callable[[Any], Any], sentence: str) -> Callable[[Any], Any]:
    """Make a validator of what has to fit; ``{0}`` in the sentence stands for the value."""

    def check(value: Any) -> Any:
        if not fit(value):
            raise refuse(sentence.format(value))
        return value

    return check


def parsed(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a validator of what a parser takes without a ValueError."""

    def check(value: Any) -> Any:
        try:
            parse(value)
        except ValueError as error:
            raise refuse(str(error)) from None
        return value

    return check


def refuse_at(key: str, sentence: str) -> ValidationError:
    """Build the error of a key of what is validated."""
    return ValidationError.from_exception_data(
        key, [InitErrorDetails(type=refuse(sentence), loc=(key,), input=None)]
    )


_WHOLE = "expected a whole number, got {value}"
_LIST = "expected a list, got {value}"
_KEYS = "expected keys{such}, got {value}"
# By pydantic's type of an error, of whose context the sentences are made.
_SENTENCES: Final = {
    "refused": "{sentence}",
    "missing": "is needed and not given",
    "greater_than_equal": "must be {ge} or more, not {value}",
    "less_than_equal": "must be {le:,} or less, not {value}",
    "greater_than": "must be above {gt:g}, not {value}",
    "less_than": "must be below {most}, not {value}",
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), _WHOLE),
    "string_type": "expected a word, got {value}",
    **dict.fromkeys(("tuple_type", "list_type"), _LIST),
    "too_short": "needs at least {min_length}, and has {actual_length}",
    "too_long": "takes at most {max_length}, and has {actual_length}",
    "string_too_short": "is empty",
    **dict.fromkeys(("model_type", "dict_type", "dataclass_type", "model_attributes_type"), _KEYS),
}
# Errors that are about a section's keys, which `Section` puts into their context: by type, how far
# below the section they stand.
OF_KEYS: Final = {
    **dict.fromkeys(("extra_forbidden", "unexpected_keyword_argument"), 1),
    **dict.fromkeys(("model_type", "dataclass_type"), 0),
}


def complaints_of(error: ValidationError, data: Any) -> Iterator[tuple[Place, ErrorDetails]]:
    """List what pydantic found wrong, each with its place in the file's data."""
    details = error.errors(include_url=False, include_input=True)
    placed = [(_place(detail, data), detail) for detail in details]
    items = Counter(place[:depth] for place, _ in placed for depth in range(len(place) + 1))
    for place, detail in placed:
        # Of a list that is too short pydantic counts only the items that are in order.
        if detail["type"] != "too_short" or items[place] == 1:
            yield place, detail


def _place(detail: ErrorDetails, data: Any) -> Place:
    """Map pydantic's location, which also names union members, to the keys of the file."""
    place: list[str | int] = []
    for depth, step in enumerate(detail["loc"], 1):
        inside: Any = range(len(data)) if isinstance(data, list) else data
        if isinstance(data, list | dict) and step in inside:
            data = data[step]  # type: ignore[index]
        elif detail["type"] != "missing" or depth < len(detail["loc"]) or isinstance(step, int):
            continue
        place.append(step)
    return tuple(place)


def sentence_of(detail: ErrorDetails) -> str:
    """Say what pydantic finds wrong with a value."""
    value, kind, step = shown(detail["input"]), detail["type"], detail["loc"][-1:]
    limits: dict[str, Any] = detail.get("ctx", {})
    keys = limits.get("keys", ())
    if kind == "missing" and isinstance(step[0], int):
        return f"has too few items: number {step[0] + 1} is missing"
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        return f"unknown key; {nearest(str(step[0]), keys)}"
    if kind == "literal_error":
        words = str(limits["expected"]).replace(" or ", ", ").split(", ")
        known = [word.strip("'") for word in words]
        return f"{value} is not possible; {nearest(str(detail['input']), known)}"
    if kind in _SENTENCES:
        most = limits.get("lt")
        most = f"{most:,}" if isinstance(most, int) else f"{most:g}" if most else ""
        such = f" such as {', '.join(keys[:3])}" if keys else ""
        return _SENTENCES[kind].format(**limits, value=value, most=most, such=such)
    return detail["msg"][:1].lower() + detail["msg"][1:]
