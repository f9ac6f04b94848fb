"""The reference page: its examples load, and it leaves no key out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferway.deployment import Caution, load, schema

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "deployment-file.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)

# What an example that shows one part of a file stands in.
TASKS = "tasks: {digits: {variants: {a: {accuracy: 0.9, service: {rate: 100/s}}}}}\n"


@pytest.mark.parametrize("example", EXAMPLES, ids=[text.split()[0] for text in EXAMPLES])
def test_every_example_loads(write: Callable[..., Path], example: str) -> None:
    write("class Model: ...\n", "mine.py")
    write("", "weights.npz")
    load(write(example if example.startswith("tasks:") else TASKS + example))


def test_every_key_is_described() -> None:
    keys: set[str] = set(schema()["properties"])
    for section in schema()["$defs"].values():
        keys |= set(section["properties"])
    described = set(re.findall(r"`([a-z0-9_]+)`", TEXT))
    assert keys - described == set()


def test_every_word_that_a_key_takes_is_described() -> None:
    def words(node: Any) -> set[str]:
        if isinstance(node, dict):
            own = set(node.get("enum", [])) | ({node["const"]} if "const" in node else set())
            return own.union(*(words(value) for value in node.values()))
        return set().union(*map(words, node)) if isinstance(node, list) else set()

    described = set(re.findall(r"`([a-z0-9-]+)`", TEXT))
    assert words(schema()) - described == set()


def test_every_kind_of_advice_is_described() -> None:
    listed = set(re.findall(r"``([a-z-]+)``", inspect.getdoc(Caution) or ""))
    table = set(re.findall(r"^\| `([a-z-]+)` \|", TEXT.split("## Advice")[1], re.MULTILINE))
    assert table == listed
