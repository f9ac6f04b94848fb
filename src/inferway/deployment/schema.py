"""The deployment file's JSON Schema, with which editors complete and check while one types."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from inferway.deployment.document import Document
from inferway.deployment.section import Section


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that ``docs/deployment.schema.json`` publishes."""
    return copy.deepcopy(outline())


@functools.cache
def outline() -> dict[str, Any]:
    """Return the schema itself, made once, for those who only read it."""
    plain = Document.model_json_schema(by_alias=True)
    sections = {section.__name__: section for section in _below(Section)}
    for name, node in {Document.__name__: plain, **plain["$defs"]}.items():
        if name in sections:
            _describe(node, sections[name])
    tidy: dict[str, Any] = _tidy(plain)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Inferway deployment",
        **tidy,
    }


def _below(section: type[Section]) -> Iterator[type[Section]]:
    for inner in section.__subclasses__():
        yield inner
        yield from _below(inner)


def _describe(node: dict[str, Any], section: type[Section]) -> None:
    """Add to each property the string that the code has below its field."""
    texts: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if issubclass(base, Section):
            texts |= _descriptions(base.__module__).get(base.__name__, {})
    for field, info in section.model_fields.items():
        if field in texts and info.description is None:
            key = info.alias or field
            described = node["properties"][key] | {"description": texts[field]}
            node["properties"][key] = dict(sorted(described.items()))


@functools.cache
def _descriptions(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the strings below the fields of a module's classes: class -> field -> text."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {}
            for field, below in zip(node.body, node.body[1:], strict=False):
                match field, below:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(text))),
                    ):
                        found[node.name][name] = inspect.cleandoc(text)
    return found


# Limits that pydantic leaves under its own names where a validator of ours comes first.
_KEYWORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def _says(key: str, node: dict[str, Any]) -> bool:
    """Whether a keyword tells an editor anything: titles and nulls do not, nor 60.0 for 60 s."""
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
