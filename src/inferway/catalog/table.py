"""Published tables of variants: facts without models, for placement and simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from inferway.catalog.entry import Entry
from inferway.catalog.zoo import CatalogError
from inferway.spelling import closest


def tables() -> tuple[str, ...]:
    """Name the built-in tables."""
    return ("paper/yolov4", "timm/pareto")


def table(name: str) -> tuple[Entry, ...]:
    """Return a built-in table.

    Raises
    ------
    CatalogError
        If there is none of that name.
    """
    match name:
        case "paper/yolov4":
            from inferway.catalog.paper import YOLOV4

            return YOLOV4
        case "timm/pareto":
            from inferway.catalog.classifiers import CLASSIFIERS

            return CLASSIFIERS
    raise CatalogError(f"there is no catalog {name!r}; there is {' and '.join(tables())}")


def pareto(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Keep the entries that no other beats in both accuracy and speed.

    An entry stays if that holds on some hardware. Of two that are equal in both, the first stays.
    """
    given = list(entries)
    kept: set[int] = set()
    for hardware in {name for entry in given for name in entry.mean_s}:
        fastest_first = sorted(
            (entry.mean_s[hardware], -entry.accuracy, k)
            for k, entry in enumerate(given)
            if hardware in entry.mean_s
        )
        best = -1.0
        for _, negated, k in fastest_first:
            if -negated > best:
                best = -negated
                kept.add(k)
    return tuple(entry for k, entry in enumerate(given) if k in kept)


def chosen(
    entries: Sequence[Entry], variants: Literal["pareto", "all"] | Sequence[str]
) -> tuple[Entry, ...]:
    """Choose among entries as a deployment file says it.

    A name is understood whatever its case, dashes and underscores, so ``EfficientNet-B0`` is
    efficientnet_b0; the entry keeps the name as asked for. Where a table has a model at several
    image sizes, as ``efficientnet_b0-224``, the name without the size is the most accurate of them.

    Raises
    ------
    CatalogError
        If there is no entry of a name.
    """
    if variants == "all":
        return tuple(entries)
    if variants == "pareto":
        return pareto(entries)
    by_name: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.accuracy):
        model, dash, size = entry.name.rpartition("-")
        if dash and size.isdecimal():
            by_name[_plain(model)] = entry
    by_name |= {_plain(entry.name): entry for entry in entries}
    found = []
    for name in variants:
        named = by_name.get(_plain(name))
        if named is None:
            close = closest(_plain(name), by_name)
            hint = f"; did you mean {by_name[close].name}?" if close else ""
            raise CatalogError(f"the catalog has no variant {name}{hint}")
        found.append(Entry(name, named.accuracy, named.size_bytes, named.mean_s))
    return tuple(found)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
