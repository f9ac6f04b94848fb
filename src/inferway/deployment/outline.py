"""The deployment file's JSON Schema, and what it allows at a place in a file."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from inferway.deployment.errors import Place, nearest, sentence_of, shown
from inferway.deployment.section import Section
from inferway.deployment.source import Source


@functools.cache
def outline(root: type[Section]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a whole file, made once, for those who read it."""
    plain = TypeAdapter(root).json_schema(by_alias=True)
    tidy: dict[str, Any] = _tidy(plain)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Inferway deployment",
        **tidy,
    }


# Limits that pydantic leaves under its own names where a validator of ours comes first.
_KEYWORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def _says(key: str, node: dict[str, Any]) -> bool:
    """Tell whether a keyword tells an editor anything: titles and nulls do not, nor 60.0 for 60
    s.
    """
    value = node[key]
    match key:
        case "title":
            return not isinstance(value, str)
        case "discriminator":
            return "oneOf" not in node
        case "default":
            return value is not None and not ("pattern" in node and isinstance(value, float))
        case _:
            return True


def _tidy(node: Any) -> Any:
    """Drop what pydantic adds for its own use: titles, and null for keys that are left out."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {
        _KEYWORDS.get(key, key): _tidy(value) for key, value in node.items() if _says(key, node)
    }
    members = [member for member in kept.get("anyOf", ()) if member != {"type": "null"}]
    if len(members) == 1:
        del kept["anyOf"]
        # What is said at the key itself (its description) wins over what its type says.
        return {**members[0], **kept}
    if members:
        kept["anyOf"] = members
    return kept


def complain(error: ValidationError, source: Source, schema: dict[str, Any]) -> list[Place]:
    """Note each error of `error` at its place in `source`; return the places.

    There may be one for each value of a large file, and a sentence takes a while to find, so that
    only as many get one as are shown.
    """
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
        elif detail["type"] in {"union_tag_invalid", "union_tag_not_found"}:
            source.note(*_unknown_kind(place, detail, source.data, schema))
        else:
            beside = detail["type"] in {"extra_forbidden", "unexpected_keyword_argument"}
            nodes = _allowed(source.data, schema, place[:-1] if beside else place)
            keys = list(dict.fromkeys(key for node in nodes for key in node.get("properties", {})))
            source.note(place, sentence_of(detail, str(place[-1]) if place else "", keys))
    return places


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


def _unknown_kind(
    place: Place, detail: ErrorDetails, data: Any, schema: dict[str, Any]
) -> tuple[Place, str]:
    """Say that no member of a tagged union (a policy, an arrival process) was named."""
    key = "process" if "arrivals" in place else "policy"
    nodes = _allowed(data, schema, place, narrow_last=False)
    values = [node.get("properties", {}).get(key, {}) for node in nodes]
    # The fixed words that the key may take, in any member of the union.
    words = [value.get("enum", [value["const"]] if "const" in value else []) for value in values]
    known = list(dict.fromkeys(word for some in words for word in some))
    given = detail["input"]
    if not isinstance(given, dict):
        return place, f"expected keys such as {{{key}: {known[0]}}}, got {shown(given)}"
    if key not in given:
        return place, f"`{key}` is needed, one of {', '.join(known)}"
    name = given[key]
    if not isinstance(name, str):
        return (*place, key), f"expected one of {', '.join(known)}, got {shown(name)}"
    return (*place, key), f"there is no {key} {name}; {nearest(name, known)}"


def _allowed(
    data: Any, schema: dict[str, Any], place: Place, *, narrow_last: bool = True
) -> list[dict[str, Any]]:
    """Walk the JSON Schema along the data to what is allowed at a place."""

    def members(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if "$ref" in node:
            yield from members(schema["$defs"][node["$ref"].rsplit("/", 1)[-1]])
            return
        inner = node.get("anyOf", []) + node.get("oneOf", []) + node.get("allOf", [])
        for member in inner:
            yield from members(member)
        if not inner:
            yield node

    nodes = list(members(schema))
    for step in place:
        inner: list[dict[str, Any]] = []
        for node in _narrowed(nodes, data):
            if isinstance(step, int):
                inner += [node["items"]] if "items" in node else node.get("prefixItems", [])[:1]
            elif step in node.get("properties", {}):
                inner.append(node["properties"][step])
            elif isinstance(node.get("additionalProperties"), dict):
                inner.append(node["additionalProperties"])
        nodes = [member for node in inner for member in members(node)]
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            data = None
    return _narrowed(nodes, data) if narrow_last else nodes


def _narrowed(nodes: list[dict[str, Any]], data: Any) -> list[dict[str, Any]]:
    """Keep the union members whose fixed words agree with the data, if any do."""
    if not isinstance(data, dict):
        return nodes

    def agrees(node: dict[str, Any], key: str) -> bool:
        value = node.get("properties", {}).get(key)
        if not value or key not in data:
            return True
        if "pattern" in value:
            return ".py:" in str(data[key])
        return data[key] in value.get("enum", [value.get("const")])

    kept = [node for node in nodes if all(agrees(node, key) for key in ("policy", "process"))]
    return kept or nodes
