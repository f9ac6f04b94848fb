"""Confidences of a task by its profiles: bins of a variant, and joint tables of two.

The file's own profile counts more than a zoo's. Either is used while it is of the same model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from inferway.catalog import zoo
from inferway.catalog.profile import ConfidenceBins, PairBins, TaskProfile, VariantProfile
from inferway.deployment.profile import function_digest
from inferway.deployment.tasks import Variant


def bins_of(
    profiles: Iterable[VariantProfile | None], kind: str | None, folder: Path
) -> ConfidenceBins | None:
    """Return the first bins that are of what was measured still.

    Parameters
    ----------
    profiles
        Of the same model, the one that counts most first; None for what there is not.
    kind
        As the variant's key `confidence`; None asks for what it was without one being named.
    folder
        Where the file of a function is named from.
    """
    for one in profiles:
        bins = None if one is None else one.confidence
        if bins is None or kind not in (None, bins.kind):
            continue
        if bins.digest == function_digest(kind, folder):
            return bins
    return None


def pairs_of(variants: Mapping[str, Variant], measured: TaskProfile | None) -> tuple[PairBins, ...]:
    """Find the joint tables of a task's variants, in their order.

    A table is used where its profile is of the same two models, and the bins of the first one are
    those that the variant has.

    Parameters
    ----------
    variants
        With their bins.
    measured
        The task in the file's profile; where it has no table of two models of one zoo, the zoo's
        stands in.
    """
    sources = list(_sources(variants, measured))
    found = (
        next(filter(None, (source.pair(variants, first, second) for source in sources)), None)
        for first in variants
        for second in variants
        if second != first
    )
    return tuple(pair for pair in found if pair is not None)


class _Source(NamedTuple):
    """A profile, and the names that it has for variants of the task."""

    profile: TaskProfile
    names: Mapping[str, str]

    def pair(self, variants: Mapping[str, Variant], first: str, second: str) -> PairBins | None:
        known = self.profile.variants
        one, other = (known.get(self.names.get(name, "")) for name in (first, second))
        if (
            one is None
            or other is None
            or one.confidence is None
            or one.confidence != variants[first].confidence_bins
            or one.model != variants[first].identity
            or other.model != variants[second].identity
        ):
            return None
        key = self.names[first], self.names[second]
        pair = next((each for each in self.profile.pairs if (each.first, each.second) == key), None)
        return pair and msgspec.structs.replace(pair, first=first, second=second)


def _sources(variants: Mapping[str, Variant], measured: TaskProfile | None) -> Iterator[_Source]:
    """Give what may hold tables, the file's profile first, then that of each zoo."""
    if measured is not None:
        yield _Source(measured, {name: name for name in variants})
    zoos: dict[str, dict[str, str]] = {}
    for name, variant in variants.items():
        if variant.model is not None and variant.model.uri.startswith(zoo.SCHEME):
            which, _, of_zoo = variant.model.uri.removeprefix(zoo.SCHEME).partition("/")
            zoos.setdefault(which, {})[name] = of_zoo
    for which, names in zoos.items():
        yield _Source(zoo.load(which).measured, names)
