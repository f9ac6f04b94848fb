"""From tasks as written to tasks as used: models found, profiles filled in, claims checked."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from inferway.deployment.catalogs import variants_of
from inferway.deployment.column import ColumnError, read_column
from inferway.deployment.deployment import ANY_HARDWARE, Batch, ServiceTime, Task, Variant
from inferway.deployment.error import Place
from inferway.deployment.models import ModelError, find, signature_of
from inferway.deployment.quantities import ENERGY
from inferway.deployment.remote import remote_of
from inferway.deployment.services import WrittenBatch, WrittenService, WrittenServices
from inferway.deployment.source import Source
from inferway.deployment.tasks import WrittenTask, WrittenVariant

if TYPE_CHECKING:
    from inferway.protocol import Signature

PROFILE_HARDWARE = "cpu"  # what the zoo's profiles are measured on


def task_of(name: str, written: WrittenTask, source: Source) -> Task:
    """Resolve a task; what is wrong with it is noted in `source`, and that variant left out."""
    place: Place = ("tasks", name)
    variants: Mapping[str, Variant | None] = {
        key: _variant((*place, "variants", key), key, variant, source)
        for key, variant in (written.variants or {}).items()
    }
    resolved = {key: variant for key, variant in variants.items() if variant is not None}
    _check_signatures(place, resolved, source)
    if written.catalog is not None:
        resolved = variants = variants_of((*place, "catalog"), written.catalog, source)
    if len(resolved) == len(variants):
        budget = written.energy_budget
        if budget is None or _check_energies(place, budget, resolved.values(), source):
            check_target(
                (*place, "accuracy_target"),
                written.accuracy_target,
                resolved.values(),
                source,
                budget,
            )
    return Task(
        name=name,
        variants=resolved,
        accuracy_target=written.accuracy_target,
        deadline_s=written.deadline,
        count=written.count,
        max_instances=written.max_instances,
        dispatch=written.dispatch.spec() if written.dispatch else None,
        catalog=written.catalog,
        energy_budget=written.energy_budget,
        idempotent=(
            all(variant.remote is None for variant in resolved.values())
            if written.idempotent is None
            else written.idempotent
        ),
    )


def check_target(
    place: Place,
    target: float | None,
    variants: Collection[Variant],
    source: Source,
    energy_budget: float | None = None,
) -> None:
    """Refuse a target that no mix of the variants reaches, within the energy budget if any."""
    best = max(variants, key=lambda variant: variant.accuracy, default=None)
    if target is None or best is None:
        return
    if target > best.accuracy:
        source.note(
            place,
            f"{target:g} is above the best variant, {best.name}, whose accuracy is "
            f"{best.accuracy:g}",
        )
    elif energy_budget is not None:
        reached = _best_accuracy(variants, energy_budget)
        if reached is not None and target > reached * (1 + 1e-12):
            source.note(
                place,
                f"no mix of the variants reaches {target:g} within the energy budget, "
                f"{ENERGY.write(energy_budget)} per request; the best reaches {reached:.4g}",
            )


def _check_energies(
    place: Place, budget: float, variants: Collection[Variant], source: Source
) -> bool:
    """Whether every variant says its energy, and one at least fits the budget."""
    silent = [variant.name for variant in variants if variant.energy is None]
    for name in silent:
        source.note(
            (*place, "variants", name), "needs `energy`, as the task has an `energy_budget`"
        )
    least = min(variants, key=lambda variant: variant.energy or 0.0, default=None)
    if silent or least is None or least.energy is None:
        return False
    if least.energy > budget:
        source.note(
            (*place, "energy_budget"),
            f"{ENERGY.write(budget)} is less than any variant takes; the least is {least.name} "
            f"with {ENERGY.write(least.energy)}",
        )
    return least.energy <= budget


def _best_accuracy(variants: Collection[Variant], energy_budget: float) -> float | None:
    """Greatest mean accuracy within a mean energy: of one variant, or a mix of two.

    None where a variant does not say its energy, or none fits.
    """
    best = None
    for one in variants:
        if one.energy is None:
            return None
        if one.energy > energy_budget:
            continue
        for other in variants:
            if other.energy is None:
                return None
            part = 1.0
            if other.energy > energy_budget:
                part = (energy_budget - one.energy) / (other.energy - one.energy)
            reached = one.accuracy + part * (other.accuracy - one.accuracy)
            best = reached if best is None else max(best, reached)
    return best


def _variant(place: Place, name: str, written: WrittenVariant, source: Source) -> Variant | None:
    model = profile = None
    service: dict[str, ServiceTime] = {}
    accuracy, size = written.accuracy, written.size
    remote = None if written.remote is None else remote_of(written.remote)
    if written.model is not None and remote is not None:
        source.note((*place, "remote"), "a variant has a `model` here or one at a server, not both")
        return None
    if written.model is not None:
        try:
            model, profile = find(written.model, source.folder, written.digest)
        except ModelError as error:
            source.note((*place, "model"), str(error))
            return None
    elif written.digest is not None:
        source.note((*place, "digest"), "a digest belongs to a `model`, and none is given")
    if profile is not None:
        accuracy = profile.accuracy if accuracy is None else accuracy
        size = profile.size_bytes if size is None else size
        service[PROFILE_HARDWARE] = ServiceTime("deterministic", profile.mean_s)
    elif model is not None and model.path is not None and size is None:
        size = model.path.stat().st_size
    if written.service is not None:
        stated = _services((*place, "service"), written.service, source)
        service = stated if ANY_HARDWARE in stated else {**service, **stated}
    missing = [] if accuracy is not None else ["accuracy"]
    elsewhere = model is not None and model.path is None
    if elsewhere and size is None:
        missing.append("size")
    if (elsewhere or (model is None and remote is None)) and written.service is None:
        missing.append("service")
    if missing or accuracy is None:
        source.note(place, _needs(missing, elsewhere=elsewhere))
        return None
    return Variant(
        name,
        accuracy,
        size,
        written.price,
        model,
        service,
        _batch(written.batch),
        written.energy,
        remote,
    )


def _needs(missing: list[str], *, elsewhere: bool) -> str:
    *others, last = (f"`{key}`" for key in missing)
    needs = f"{', '.join(others)} and {last}" if others else last
    them = "them" if others else "it"
    if elsewhere:
        return f"needs {needs}, as the model is on another host and nothing else says {them}"
    return f"needs {needs}, as no zoo's profile gives {them}"


def _services(place: Place, written: WrittenServices, source: Source) -> dict[str, ServiceTime]:
    """Resolve one service time (for any hardware) or one per hardware."""
    if isinstance(written, WrittenService):
        return {ANY_HARDWARE: _service(place, written, source)}
    return {name: _service((*place, name), one, source) for name, one in written.items()}


def _service(place: Place, written: WrittenService, source: Source) -> ServiceTime:
    mean = 1.0 / written.rate if written.rate is not None else written.mean
    if written.distribution == "empirical":
        samples = written.samples
        if written.file is not None:
            samples = _samples((*place, "file"), written.file, source)
        return _empirical(samples or (1.0,), mean)
    assert mean is not None  # held by WrittenService
    stages = written.stages or 1
    cv = {"deterministic": 0.0, "exponential": 1.0, "erlang": stages**-0.5}
    return ServiceTime(
        written.distribution, mean, cv.get(written.distribution, written.cv or 0.0), stages
    )


def _empirical(samples: tuple[float, ...], mean: float | None) -> ServiceTime:
    """Measured times, scaled to `mean` if one is stated."""
    measured = math.fsum(samples) / len(samples)
    scale = 1.0 if mean is None else mean / measured
    variance = math.fsum((sample - measured) ** 2 for sample in samples) / len(samples)
    return ServiceTime(
        "empirical",
        measured * scale,
        math.sqrt(variance) / measured,
        samples_s=tuple(sample * scale for sample in samples),
    )


def _samples(place: Place, path: Path, source: Source) -> tuple[float, ...] | None:
    try:
        values = read_column(path)
        if not (values > 0).all():
            raise ColumnError(f"{path}: {values.min():g} is not a service time above 0 s")
    except ColumnError as error:
        source.note(place, str(error))
        return None
    return tuple(float(value) for value in values)


def _batch(written: WrittenBatch | None) -> Batch | None:
    if written is None:
        return None
    return Batch(
        written.sizes,
        written.service,
        written.min if written.min is not None else written.sizes[0],
        written.max if written.max is not None else written.sizes[-1],
    )


def _check_signatures(place: Place, variants: Mapping[str, Variant], source: Source) -> None:
    """Check model files, and that all variants of a task look alike from outside.

    A zoo's models are tested where they are built, so a task of those alone opens no file here.
    """
    models = {
        name: v.model
        for name, v in variants.items()
        if v.model is not None and v.model.path is not None
    }
    if all(model.uri.startswith("zoo://") for model in models.values()):
        return
    signatures: dict[str, Signature] = {}
    for name, model in models.items():
        try:
            signatures[name] = signature_of(model)
        except ModelError as error:
            source.note((*place, "variants", name, "model"), str(error))
    first = next(iter(signatures), "")
    for name, signature in signatures.items():
        if signature != signatures[first]:
            source.note(
                (*place, "variants", name, "model"),
                f"all variants of a task share one signature, but {name} is {signature} "
                f"and {first} is {signatures[first]}",
            )
