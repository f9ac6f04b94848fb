"""From a catalog as the file names it to a task's variants."""

from __future__ import annotations

from inferway.catalog.entry import Entry
from inferway.catalog.table import chosen, table
from inferway.catalog.zoo import CatalogError
from inferway.deployment.deployment import ServiceTime, Variant
from inferway.deployment.error import Place
from inferway.deployment.source import Source
from inferway.deployment.tasks import WrittenCatalog


def variants_of(place: Place, written: WrittenCatalog, source: Source) -> dict[str, Variant]:
    """Look variants up; what is wrong is noted in `source`, and none returned."""
    try:
        entries = chosen(_entries(written), written.variants)
    except CatalogError as error:
        source.note(place, str(error))
        return {}
    return {entry.name: _variant(entry) for entry in entries}


def _entries(written: WrittenCatalog) -> tuple[Entry, ...]:
    if written.timm is not None:
        from inferway.catalog import timm

        return tuple(timm.read(written.timm, written.hardware))
    return table(written.name or "")


def _variant(entry: Entry) -> Variant:
    service = {name: ServiceTime("deterministic", mean) for name, mean in entry.mean_s.items()}
    return Variant(entry.name, entry.accuracy, entry.size_bytes, service=service)
