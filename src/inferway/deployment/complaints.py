"""Turns what pydantic finds wrong into sentences that name the place and what would be right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from inferway.deployment.error import Place
from inferway.deployment.schema import outline
from inferway.deployment.source import Source
from inferway.spelling import closest


def complain(error: ValidationError, source: Source) -> list[Place]:
    """Note each error of `error` at its place in `source`; return the places.

    There may be one for each value of a large file, and a sentence takes a while to find, so that
    only as many get one as are shown.
    """
    allowed = _Allowed(source.data)
    errors = error.errors(include_url=False, include_input=True)
    details = [(_place(d, source.data), d) for d in errors]
    items = Counter(place[:depth] for place, _ in details for depth in range(len(place) + 1))
    places = []
    for place, detail in details:
        if detail["type"] == "too_short" and items[place] > 1:
            continue  # pydantic counts only the items that are in order
        places.append(place)
        if source.full:
            source.more += 1
            continue
        if detail["type"] in {"union_tag_invalid", "union_tag_not_found"}:
            place, sentence = _unknown_kind(place, detail, allowed)
        else:
            sentence = _sentence(place, detail, allowed)
        source.note(place, sentence)
    return places


def nearest(word: str, known: list[str]) -> str:
    """Suggest the known word that was probably meant, or list what is known."""
    near = closest(word, known)
    if near is not None:
        return f"did you mean {near}?"
    return f"known here: {', '.join(known)}" if known else "nothing is known here"


def _place(detail: ErrorDetails, data: Any) -> Place:
    """Map pydantic's location, which also names union members, to the keys of the file."""
    place: list[str | int] = []
    last = detail["loc"][-1] if detail["loc"] else None
    for step in detail["loc"]:
        known = isinstance(data, list) and isinstance(step, int) and step < len(data)
        if known or (isinstance(data, dict) and step in data):
            data = data[step]
        elif detail["type"] == "missing" and step is last and isinstance(step, str):
            data = None
        else:
            continue
        place.append(step)
    return tuple(place)


def _unknown_kind(place: Place, detail: ErrorDetails, allowed: _Allowed) -> tuple[Place, str]:
    """Say that no member of a tagged union (a policy, an arrival process) was named."""
    key = "process" if "arrivals" in place else "policy"
    known = allowed.words(place, key)
    given = detail["input"]
    if not isinstance(given, dict):
        return place, f"expected keys such as {{{key}: {known[0]}}}, got {_shown(given)}"
    if key not in given:
        return place, f"`{key}` is needed, one of {', '.join(known)}"
    name = given[key]
    if not isinstance(name, str):
        return (*place, key), f"expected one of {', '.join(known)}, got {_shown(name)}"
    return (*place, key), f"there is no {key} {name}; {nearest(name, known)}"


def _sentence(place: Place, detail: ErrorDetails, allowed: _Allowed) -> str:
    given = detail["input"]
    limits: Mapping[str, Any] = detail.get("ctx", {})
    match detail["type"]:
        case "refused":
            return str(limits["sentence"])
        case "missing" if isinstance(detail["loc"][-1], int):
            return f"has too few items: number {detail['loc'][-1] + 1} is missing"
        case "missing":
            return "is needed and not given"
        case "extra_forbidden":
            return f"unknown key; {nearest(str(place[-1]), allowed.keys(place[:-1]))}"
        case "literal_error":
            known = [str(word).strip("'") for word in _words(limits["expected"])]
            return f"{_shown(given)} is not possible; {nearest(str(given), known)}"
        case "greater_than_equal":
            return f"must be {limits['ge']} or more, not {_shown(given)}"
        case "less_than_equal":
            return f"must be {limits['le']:,} or less, not {_shown(given)}"
        case "greater_than":
            return f"must be above {limits['gt']:g}, not {_shown(given)}"
        case "less_than":
            most = limits["lt"]
            most = f"{most:,}" if isinstance(most, int) else f"{most:g}"
            return f"must be below {most}, not {_shown(given)}"
        case "int_type" | "int_from_float" | "int_parsing":
            return f"expected a whole number, got {_shown(given)}"
        case "string_type":
            return f"expected a word, got {_shown(given)}"
        case "model_type" | "dict_type" | "model_attributes_type" | "mapping_type":
            keys = allowed.keys(place)
            such = f" such as {', '.join(keys[:3])}" if keys else ""
            return f"expected keys{such}, got {_shown(given)}"
        case "tuple_type" | "list_type":
            return f"expected a list, got {_shown(given)}"
        case "too_short":
            wanted = limits["min_length"]
            return f"needs at least {wanted}, and has {limits['actual_length']}"
        case "too_long":
            return f"takes at most {limits['max_length']}, and has {limits['actual_length']}"
        case "string_too_short":
            return "is empty"
        case _:
            message = detail["msg"]
            return message[:1].lower() + message[1:]


def _words(expected: str) -> list[str]:
    return expected.replace(" or ", ", ").split(", ")


def _shown(value: Any) -> str:
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


class _Allowed:
    """The published JSON Schema, walked along the data to see what is allowed at a place."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.schema = outline()

    def keys(self, place: Place) -> list[str]:
        """List the keys known at `place`."""
        return list(
            dict.fromkeys(k for node in self._at(place) for k in node.get("properties", {}))
        )

    def words(self, place: Place, key: str) -> list[str]:
        """List the fixed words that `key` may take at `place`, in any member of a union."""
        found: list[str] = []
        for node in self._at(place, narrow_last=False):
            value = node.get("properties", {}).get(key, {})
            found += value.get("enum", [value["const"]] if "const" in value else [])
        return list(dict.fromkeys(found))

    def _at(self, place: Place, *, narrow_last: bool = True) -> list[dict[str, Any]]:
        data, nodes = self.data, list(self._members(self.schema))
        for step in place:
            nodes = self._narrowed(nodes, data)
            inner: list[dict[str, Any]] = []
            for node in nodes:
                if isinstance(step, int):
                    inner += [node["items"]] if "items" in node else node.get("prefixItems", [])[:1]
                elif step in node.get("properties", {}):
                    inner.append(node["properties"][step])
                elif isinstance(node.get("additionalProperties"), dict):
                    inner.append(node["additionalProperties"])
            nodes = [member for node in inner for member in self._members(node)]
            try:
                data = data[step]
            except (KeyError, IndexError, TypeError):
                data = None
        return self._narrowed(nodes, data) if narrow_last else nodes

    def _members(self, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if "$ref" in node:
            yield from self._members(self.schema["$defs"][node["$ref"].rsplit("/", 1)[-1]])
            return
        members = node.get("anyOf", []) + node.get("oneOf", []) + node.get("allOf", [])
        for member in members:
            yield from self._members(member)
        if not members:
            yield node

    @staticmethod
    def _narrowed(nodes: list[dict[str, Any]], data: Any) -> list[dict[str, Any]]:
        """Keep the union members whose fixed words agree with the data, if any do."""
        if not isinstance(data, dict):
            return nodes

        def agrees(node: dict[str, Any]) -> bool:
            for key in ("policy", "process"):
                value = node.get("properties", {}).get(key)
                if value and key in data:
                    words = value.get("enum", [value.get("const")])
                    if "pattern" not in value and data[key] not in words:
                        return False
                    if "pattern" in value and ".py:" not in str(data[key]):
                        return False
            return True

        return [node for node in nodes if agrees(node)] or nodes
