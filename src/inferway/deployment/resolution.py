"""Fills in what a file leaves to models, catalogs and defaults, and checks how its parts agree.

What is wrong is noted in the `Source`, so that all of it is said at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from inferway.catalog.profile import PROFILE_HARDWARE, MachineTimes, VariantProfile
from inferway.deployment.column import ColumnError, time_pieces
from inferway.deployment.confidence import bins_of, pairs_of
from inferway.deployment.devices import (
    may_run,
    runs_on,
    spread,
    too_large,
    wrong_copies,
)
from inferway.deployment.errors import Place, nearest
from inferway.deployment.models import ModelError, Python, located, signature_of
from inferway.deployment.nodes import Network, Node, written
from inferway.deployment.overhead import MeasuredOverhead, recall_overhead
from inferway.deployment.policies import DISPATCH, ESCALATE, FOLLOWING, PolicySpec
from inferway.deployment.profile import DeploymentProfile, ProfileError, read_profile
from inferway.deployment.source import Source
from inferway.deployment.targets import JointTarget
from inferway.deployment.tasks import (
    ANY_HARDWARE,
    Batch,
    Drift,
    PublishedCatalog,
    ServiceTime,
    Task,
    Variant,
)
from inferway.deployment.units import ENERGY, SIZE, TIME
from inferway.deployment.workloads import PhasedArrivals, TraceArrivals, Workload

T = TypeVar("T")
Pair = tuple[str, str]


class Resolution:
    """The tasks of a file, filled in, and what is checked against them.

    Attributes
    ----------
    tasks
        Those that are in order, without the variants that are not.
    """

    def __init__(self, stated: Mapping[str, Task], source: Source) -> None:
        self._source, self._note = source, source.note
        self._profile = self._read_profile()
        # All as written, with their variants (None where a catalog gives them): a reference to one
        # that is wrong elsewhere is not a second mistake.
        written_ = source.data.get("tasks")
        self._written = {
            name: one.get("variants") if isinstance(one, dict) else None
            for name, one in (written_ if isinstance(written_, dict) else {}).items()
        }
        self.tasks: dict[str, Task] = {}
        self.tasks = {name: self._task(name, task) for name, task in stated.items()}
        self._note_all(
            (
                ("tasks", name),
                f"{name} is also one of the tasks that {name.rpartition('-')[0]} counts",
            )
            for name in self.tasks
            if self._counts(name)
        )

    def _read_profile(self) -> DeploymentProfile:
        """Read the profile beside the file; nothing where there is none."""
        source = self._source
        try:
            known = read_profile(source.path) if source.profiled else None
        except ProfileError as error:
            self._note((), str(error))
            known = None
        return known or DeploymentProfile()

    def _note_all(self, problems: Iterable[tuple[Place, str]]) -> None:
        for place, sentence in problems:
            self._note(place, sentence)

    def _task(self, name: str, task: Task) -> Task:
        place: Place = ("tasks", name)
        variants = {
            key: variant
            for key, stated in task.variants.items()
            if (variant := self._variant((*place, "variants", key), key, stated)) is not None
        }
        self._check_signatures(place, variants)
        whole = len(variants) == len(task.variants)
        if task.catalog is not None:
            variants, whole = self._published((*place, "catalog"), task.catalog), True
        stated = "idempotent" in self._source.data["tasks"][name]
        twice = task.idempotent if stated else all(one.remote is None for one in variants.values())
        pairs = pairs_of(variants, self._profile.tasks.get(name))
        resolved = replace(task, name=name, variants=variants, idempotent=twice, pairs=pairs)
        if task.difficulty is not None:
            self._note_all(
                (
                    (*place, "difficulty"),
                    f"it stands for what is not measured, but {key} has a model, of which "
                    "`inferway profile` measures how sure it is",
                )
                for key, one in variants.items()
                if one.runnable
            )
        if task.measured and task.feedback is None:
            self._note(
                (*place, "accuracy_target", "by"),
                "`measured` goes by feedback, and the task keeps no answers for it; give the task "
                "`feedback: {}`",
            )
        if task.shadow is not None:
            self._check_shadow((*place, "shadow"), resolved, whole)
        if task.canary is not None:
            self._check_canary((*place, "canary"), resolved, whole)
        if task.drift is not None and not task.drift.falls and task.feedback is None:
            self._note(
                (*place, "drift"),
                "it goes by feedback, and the task keeps no answers for it; give the task "
                "`feedback: {}`",
            )
        if task.drift is not None and task.drift.falls and whole:
            self._check_drift((*place, "drift"), task.drift, resolved)
        if whole and self._energies_fit(place, resolved):
            self._check_target((*place, "accuracy_target"), task.accuracy_target, resolved)
        return resolved

    def _variant(self, place: Place, name: str, stated: Variant) -> Variant | None:
        model, profile = stated.model, None
        if stated.python is not None and (model is not None or stated.remote is not None):
            self._note((*place, "python"), "a variant has one of `model`, `remote` and `python`")
            return None
        if model is not None and stated.remote is not None:
            self._note(
                (*place, "remote"), "a variant has a `model` here or one at a server, not both"
            )
            return None
        if model is not None:
            try:
                model, profile = located(model, self._source.folder, stated.digest)
            except ModelError as error:
                self._note((*place, "model"), str(error))
                return None
        elif stated.digest is not None:
            self._note((*place, "digest"), "a digest belongs to a `model`, and none is given")
        if model is None and stated.providers:
            sentence = "execution providers run a `model`, and none is given"
            self._note((*place, "providers"), sentence)
        accuracy, size, service = stated.accuracy, stated.size_bytes, stated.service
        elsewhere = model is not None and model.path is None
        this = replace(stated, name=name, model=model)
        own = self._profiled(str(place[1]), this)
        if own is not None and own.accuracy is not None and math.isnan(accuracy):
            accuracy = own.accuracy.value
        zoo_s = None
        if profile is not None:
            accuracy = profile.accuracy if math.isnan(accuracy) else accuracy
            size = profile.size_bytes if size is None else size
            zoo_s = None if stated.providers else profile.mean_s
        elif model is not None and model.path is not None and size is None:
            size = model.path.stat().st_size
        known = _measured_by_hardware(own, alone=profile is None and not service)
        timed_by = dict.fromkeys(service, "file")
        if ANY_HARDWARE not in service:
            measured = {
                kind: time_s
                for kind, one in known.items()
                if kind not in service and (time_s := one.service_s.get(1)) is not None
            }
            timed_by |= dict.fromkeys(measured, "profile")
            here = service.keys() | measured.keys()
            if zoo_s is not None and not here & {ANY_HARDWARE, PROFILE_HARDWARE}:
                measured[PROFILE_HARDWARE], timed_by[PROFILE_HARDWARE] = zoo_s, "zoo"
            found = {kind: ServiceTime("deterministic", s) for kind, s in measured.items()}
            service = {**found, **service}
        batches = self._batches(place, stated, known, service)
        missing = {
            "`size`": elsewhere and size is None,
            "`service`": not service and (elsewhere or not stated.runnable),
        }
        if needed := [key for key, lacks in missing.items() if lacks]:
            needs = " and ".join(filter(None, (", ".join(needed[:-1]), needed[-1])))
            them = "them" if len(needed) > 1 else "it"
            host = "the model is on another host and nothing else says"
            why = host if elsewhere else "no zoo's profile gives"
            self._note(place, f"needs {needs}, as {why} {them}")
            return None
        for kind in batches.keys() - service.keys() - {ANY_HARDWARE}:
            if service and ANY_HARDWARE not in service and self._is_timed(stated):
                timed = replace(this, service=service)
                sentence = timed.untimed_on(kind, file=self._source.path.name)
                self._note((*place, "batch", kind), sentence)
        zoos = profile.measured if profile and profile.digest == this.identity else None
        return replace(
            this,
            accuracy=accuracy,
            size_bytes=size,
            service=service,
            batches=batches,
            python=None if stated.python is None else self._described(stated.python, own),
            confidence_bins=bins_of((own, zoos), stated.confidence, self._source.folder),
            timed_by=timed_by,
            loads_s={k: s for k, one in known.items() if (s := one.load_s) is not None},
        )

    def _profiled(self, task: str, variant: Variant) -> VariantProfile | None:
        """Find what the file's profile says of a variant, if that is the same model still."""
        measured = self._profile.tasks.get(task)
        own = None if measured is None else measured.variants.get(variant.name)
        return own if own is not None and own.model == variant.identity else None

    def _described(self, python: Python, own: VariantProfile | None) -> Python:
        """Give a class the signature that its profile has found; one that it says counts more."""
        return python if own is None else replace(python, signature=own.signature.tensors)

    def _batches(
        self,
        place: Place,
        stated: Variant,
        known: Mapping[str, MachineTimes],
        service: Mapping[str, ServiceTime],
    ) -> dict[str, Batch]:
        """Fill in the times of batches that the file leaves to the profile, by hardware."""
        found: dict[str, Batch] = {}
        for hardware, batch in stated.batches.items():
            filled = {hardware: batch}
            if not batch.service_s:
                times_s = {kind: one.service_s for kind, one in known.items()}
                if hardware != ANY_HARDWARE:
                    # What is measured where nothing else is said holds for any hardware.
                    one_s = times_s.get(hardware, times_s.get(ANY_HARDWARE, {}))
                    times_s = {hardware: one_s}
                elif PROFILE_HARDWARE in times_s:
                    times_s[ANY_HARDWARE] = times_s.pop(PROFILE_HARDWARE)
                filled = {
                    kind: replace(batch, service_s=tuple(one_s[size] for size in batch.sizes))
                    for kind, one_s in times_s.items()
                    if set(batch.sizes) <= one_s.keys()
                }
                enough = hardware in filled or (service and service.keys() <= filled.keys())
                if not enough:
                    self._note_unmeasured(place, hardware, batch, times_s.get(hardware, {}))
                    filled[hardware] = replace(batch, service_s=(1.0,) * len(batch.sizes))
            found |= filled
        return found

    def _note_unmeasured(
        self, place: Place, hardware: str, batch: Batch, times_s: Mapping[int, float]
    ) -> None:
        """Refuse a table of batches whose times nobody says."""
        missing = ", ".join(str(size) for size in batch.sizes if size not in times_s)
        named = hardware not in (ANY_HARDWARE, PROFILE_HARDWARE)
        whose = f"hardware {hardware}" if named else "this machine"
        option = f" --hardware {hardware}" if named else ""
        self._note(
            (*place, "batch", *([] if hardware == ANY_HARDWARE else [hardware])),
            f"needs `service`, one time per size, as no profile of this model on {whose} gives "
            f"that of {missing}; write them here, or measure them with `inferway profile "
            f"{self._source.path.name} --data TEST{option} --write`",
        )

    def _published(self, place: Place, catalog: PublishedCatalog) -> dict[str, Variant]:
        from inferway.catalog import CatalogError
        from inferway.catalog.published import chosen, read_timm, table

        try:
            entries = chosen(
                table(catalog.name or "")
                if catalog.timm is None
                else read_timm(catalog.timm, catalog.hardware),
                catalog.variants,
            )
        except CatalogError as error:
            self._note(place, str(error))
            return {}
        return {
            entry.name: Variant(
                entry.name,
                accuracy=entry.accuracy,
                size_bytes=entry.size_bytes,
                service={k: ServiceTime("deterministic", mean) for k, mean in entry.mean_s.items()},
            )
            for entry in entries
        }

    def _asks_twice(self, task: Task) -> bool:
        """Tell whether a second variant may be asked, by a confidence that is known."""
        above = self._source.data.get("dispatch")
        named = above.get("policy") if isinstance(above, dict) else None
        policy = named if task.dispatch is None else task.dispatch.policy
        return policy == ESCALATE and task.sure

    def _check_target(self, place: Place, target: float | None, task: Task) -> None:
        """Refuse a target that no mix of the variants reaches, within the energy budget if any."""
        if target is None or self.lacks_accuracies(place, "a target", task):
            return
        if self._asks_twice(task):
            return  # may reach more, within less; the fleet says what
        best = max(task.variants.values(), key=lambda variant: variant.accuracy, default=None)
        if best is None:
            return
        if target > best.accuracy:
            whose = f"{best.name}, whose accuracy is {best.accuracy:g}"
            self._note(place, f"{target:g} is above the best variant, {whose}")
            return
        # Of one variant, or of a mix of two; None where one does not say its energy, or none fits.
        budget = task.energy_budget
        known = [(one, v.accuracy) for v in task.variants.values() for one in v.energies.values()]
        if budget is None or not all(v.energies for v in task.variants.values()):
            return
        mixes = (
            accuracy
            + (better - accuracy) * (1.0 if more <= budget else (budget - energy) / (more - energy))
            for energy, accuracy in known
            if energy <= budget
            for more, better in known
        )
        reached = max(mixes, default=None)
        if reached is not None and target > reached * (1 + 1e-12):
            self._note(
                place,
                f"no mix of the variants reaches {target:g} within the energy budget, "
                f"{ENERGY.write(budget)} per request; the best reaches {reached:.4g}",
            )

    def lacks_accuracies(self, place: Place, who: str, task: Task) -> bool:
        """Refuse what has to know the accuracy of each variant where one has none; tell whether."""
        if blank := [name for name, variant in task.variants.items() if not variant.graded]:
            self._note(
                place, f"{who} needs every accuracy, but {unmeasured(blank, self._source.path)}"
            )
        measured = self._profile.tasks.get(task.name)
        known = {} if measured is None else measured.variants
        for name in blank:
            if (own := known.get(name)) is not None:
                same = own.model == task.variants[name].identity
                sentence = (
                    "the profile beside the file has no accuracy of it yet; the same `inferway "
                    "profile` goes on"
                    if same
                    else "the profile beside the file was measured on another model of it"
                )
                self._note(("tasks", task.name, "variants", name), sentence)
        return bool(blank)

    def _energies_fit(self, place: Place, task: Task) -> bool:
        """Tell whether there is no energy budget, or each variant says its energy, and one fits."""
        budget = task.energy_budget
        if budget is None:
            return True
        known = {
            name: min(one.energies.values()) for name, one in task.variants.items() if one.energies
        }
        self._note_all(
            ((*place, "variants", name), "needs `energy`, as the task has an `energy_budget`")
            for name in task.variants.keys() - known
        )
        if not known or len(known) < len(task.variants):
            return False
        least = min(known, key=known.__getitem__)
        if known[least] > budget:
            self._note(
                (*place, "energy_budget"),
                f"{ENERGY.write(budget)} is less than any variant takes; the least is {least} "
                f"with {ENERGY.write(known[least])}",
            )
        return known[least] <= budget

    def _check_signatures(self, place: Place, variants: Mapping[str, Variant]) -> None:
        """Check model files, and that all variants of a task look alike from outside.

        A zoo's models are tested where they are built, so a task of those alone opens no file here.
        """
        models = {
            name: one.model
            for name, one in variants.items()
            if one.model is not None and one.model.path is not None
        }
        if all(model.uri.startswith("zoo://") for model in models.values()):
            return
        signatures = {}
        for name, model in models.items():
            try:
                signatures[name] = signature_of(model)
            except ModelError as error:
                self._note((*place, "variants", name, "model"), str(error))
        first = next(iter(signatures), "")
        self._note_all(
            (
                (*place, "variants", name, "model"),
                f"all variants of a task share one signature, but {name} is {signature} "
                f"and {first} is {signatures[first]}",
            )
            for name, signature in signatures.items()
            if signature != signatures[first]
        )

    def _counts(self, name: str) -> bool:
        """Tell whether a name is one of those that a task counts, as digits counts digits-1."""
        stem, _, index = name.rpartition("-")
        task = self.tasks.get(stem)
        return task is not None and task.count > 1 and index.isdecimal() and int(index) < task.count

    def _base(self, task: str) -> str | None:
        """Name the entry of the file that `task` comes from: digits for digits-3 of a count."""
        if task in self._written:
            return task
        return task.rpartition("-")[0] if self._counts(task) else None

    def _variant_of(self, key: Pair) -> Variant | None:
        task = self.tasks.get(self._base(key[0]) or "")
        return task.variants.get(key[1]) if task else None

    def _one_of_each(self) -> dict[Pair, int]:
        """Count one instance of each variant, or as many as a remote one's server takes."""
        return {
            (task.name, name): (variant.remote.concurrency if variant.remote else None) or 1
            for task in self.tasks.values()
            for name, variant in task.variants.items()
        }

    def default_node(self) -> Node:
        """Return the node of a file that names none: one instance of each variant, on ``cpu``."""
        instances = self._one_of_each()
        for task, name in list(instances):
            variant = self.tasks[task].variants[name]
            if variant.runs_on("cpu"):
                continue
            # What a catalog lists runs where it was measured; that is seldom all of it, or on this
            # node.
            if self.tasks[task].catalog is not None:
                del instances[task, name]
            elif variant.service:
                self._note(
                    ("tasks", task, "variants", name, "service"),
                    "no service time for hardware cpu, which the default node has; give one or "
                    "describe the node under `nodes`",
                )
        return Node("here", instances=instances)

    def node(self, name: str, node: Node, *, fill: bool) -> Node:
        """Check what a node says of variants, and whether its instances fit.

        With `fill` a node that names no instances runs one of each variant; where placement decides
        instead, what will run here is not known.
        """
        place: Place = ("nodes", name)

        def named(stated: Mapping[Pair, T], *steps: str | int) -> dict[Pair, T]:
            """Keep what names a variant; note the rest."""
            problems = {key: self._problem_with(key) for key in stated}
            self._note_all(
                ((*place, *steps, written(key)), problem)
                for key, problem in problems.items()
                if problem is not None
            )
            return {key: value for key, value in stated.items() if problems[key] is None}

        devices = {
            key: replace(device, hardware=device.hardware or key)
            for key, device in node.devices.items()
        }
        node = replace(node, devices=devices)
        kinds = node.kinds
        stated, pinned = named(node.instances, "instances"), named(node.pinned, "pinned")
        if fill and "instances" not in self._source.data["nodes"][name]:
            stated = {
                key: {fit[0]: count} if (fit := runs_on(devices, variant)) else count
                for key, count in self._one_of_each().items()
                if any(may_run(variant := self._variant_of(key), one) for one in kinds)
            } | pinned
        self._check_devices(place, node, stated)
        instances = {
            key: sum(one.values()) if isinstance(one, Mapping) else one
            for key, one in stated.items()
        }
        for field, copies in (("instances", instances), ("pinned", pinned)):
            self._note_all(
                ((*place, field, written(key)), sentence)
                for key, count in copies.items()
                for sentence in self._wrong_copies(key, count, kinds)
            )
        failures = named(node.failures, "failures")
        outages = tuple(
            replace(outage, instances=named(outage.instances, "outages", index, "instances"))
            for index, outage in enumerate(node.outages)
        )
        self._note_all(
            ((*place, "failures", written(key)), "no instance of it runs here")
            for key in failures
            if fill and key not in instances
        )
        self._note_all(
            (
                (*place, "outages", index, "instances", written(key)),
                f"{count} cannot fail: the node runs {instances.get(key) or 'none'} of it",
            )
            for index, outage in enumerate(outages)
            for key, count in outage.instances.items()
            if fill and count > instances.get(key, 0)
        )
        resolved = replace(
            node,
            name=name,
            measured_overhead=self._overhead(node),
            hardware=kinds[0],
            instances=instances,
            placed={key: spread(one, devices, self._variant_of(key)) for key, one in stated.items()}
            if devices
            else {},
            pinned=pinned,
            failures=failures,
            outages=outages,
        )
        self._check_budget(place, resolved)
        self._check_memory(place, resolved)
        return resolved

    def _overhead(self, node: Node) -> MeasuredOverhead | None:
        """Recall what a server has measured, where the file leaves it out and it counts."""
        if node.overhead_s is not None or not node.leading:
            return None
        return recall_overhead(self.tasks)

    def _check_devices(self, place: Place, node: Node, stated: Mapping[Pair, Any]) -> None:
        """Refuse copies on devices that there are not, or that cannot run them."""
        for key, one in stated.items():
            variant = self._variant_of(key)
            if variant is None or not (node.devices or isinstance(one, Mapping)):
                continue
            where = (*place, "instances", written(key))
            self._note_all(
                ((*where, device) if device else where, sentence)
                for device, sentence in wrong_copies(
                    one,
                    node.devices,
                    variant,
                    file=self._source.path.name,
                    timed=self._is_timed(variant),
                )
            )

    def _check_memory(self, place: Place, node: Node) -> None:
        for name, device in node.devices.items():
            copies = {
                written(key): (count, variant.size_bytes)
                for key, placed in node.placed.items()
                if (count := placed.get(name)) and (variant := self._variant_of(key)) is not None
            }
            self._note_all(
                ((*place, "devices", name, "memory"), sentence)
                for sentence in too_large(device, name, copies)
            )

    def _problem_with(self, key: Pair) -> str | None:
        task, variant = key
        if not variant:
            return f"{task} is not of the form TASK/VARIANT"
        if (name := self._base(task)) is None:
            return f"there is no task {task}; {nearest(task, self._written)}"
        variants = self._written[name]
        if isinstance(variants, dict) and variant not in variants:
            return f"task {task} has no variant {variant}; {nearest(variant, sorted(variants))}"
        return None

    def _wrong_copies(self, key: Pair, count: int, kinds: Sequence[str]) -> Iterator[str]:
        if (variant := self._variant_of(key)) is None:
            return
        most = self.tasks[self._base(key[0]) or ""].max_instances
        if most is not None and count > most:
            yield f"{count} instances are more than max_instances, {most}"
        if variant.remote is not None and count > (variant.remote.concurrency or count):
            yield (
                f"{count} instances would send so many requests at once, and `concurrency` of "
                f"{variant.name} is {variant.remote.concurrency}"
            )
        if self._is_timed(variant) and not any(may_run(variant, kind) for kind in kinds):
            yield variant.untimed_on(*kinds, file=self._source.path.name)

    def _is_timed(self, variant: Variant) -> bool:
        """Tell whether all service times are known that will be, and none is measured yet."""
        return self._source.profiled or not variant.runnable

    def _check_budget(self, place: Place, node: Node) -> None:
        if node.budget_bytes is None:
            return
        running = {
            key: max(node.instances.get(key, 0), node.pinned.get(key, 0))
            for key in {**node.instances, **node.pinned}
        }
        for what, copies in (("is pinned", node.pinned), ("runs", running)):
            total = 0
            for key, count in copies.items():
                variant = self._variant_of(key)
                if variant is None or (variant.remote is not None and variant.size_bytes is None):
                    continue  # what a server holds elsewhere takes nothing here
                if variant.size_bytes is None:
                    self._note(
                        ("tasks", self._base(key[0]) or "", "variants", key[1]),
                        f"needs `size`, as node {place[1]} has a budget and runs it",
                    )
                total += count * (variant.size_bytes or 0)
            if total > node.budget_bytes:
                self._note(
                    (*place, "budget"),
                    f"{SIZE.write(node.budget_bytes)} cannot hold what {what} here, which takes "
                    f"{SIZE.write(total)}",
                )
                return

    def check_workload(self, name: str, workload: Workload, network: Network | None) -> None:
        """Refuse requests for no task, at no tier, and targets and traces that cannot be."""
        base, place, arrivals = self._base(name), ("workload", name), workload.arrivals
        if base is None:
            self._note(place, f"there is no task {name}; {nearest(name, self._written)}")
            return
        phases = arrivals.phases if isinstance(arrivals, PhasedArrivals) else ()
        for index, phase in enumerate(phases if base in self.tasks else ()):
            field = (*place, "arrivals", "phases", index, "accuracy_target")
            self._check_target(field, phase.accuracy_target, self.tasks[base])
        if isinstance(arrivals, TraceArrivals):
            try:
                for _ in time_pieces(arrivals.file):
                    pass  # read to find what is wrong, not kept: a trace may be long
            except ColumnError as error:
                self._note((*place, "arrivals", "file"), str(error))
        tier = None if workload.entries is None else workload.entries.tier
        tiers = [] if network is None else [one.tier for one in network.tree or ()]
        if tier is not None and tiers and tier not in tiers:
            sentence = f"there is no tier {tier}; {nearest(tier, tiers)}"
            self._note((*place, "entries", "tier"), sentence)

    def check_probabilities(self, place: Place, spec: PolicySpec, task: Task) -> None:
        """Refuse routing to variants that there are not."""
        routed = spec.options["probabilities"] or () if spec.policy == "alias" else ()
        self._note_all(
            (
                (*place, "probabilities"),
                f"task {task.name} has no variant {name}; {nearest(name, task.variants)}",
            )
            for name in routed
            if name not in task.variants
        )

    def _check_shadow(self, place: Place, task: Task, whole: bool) -> None:
        """Refuse to compare answers where that is not kept, or there is nothing to compare."""
        if task.feedback is None:
            self._note(
                place,
                "what answers agree in is kept with what feedback says, and the task keeps no "
                "answers for it; give the task `feedback: {}`",
            )
        if whole and sum(one.graded for one in task.variants.values()) < 2:
            self._note(
                place,
                "answers are compared with those of the most accurate of several variants, and "
                "the task has no two with an accuracy",
            )

    def _check_canary(self, place: Place, task: Task, whole: bool) -> None:
        """Refuse a canary that nothing could decide on, or beside which there is nothing."""
        canary = task.canary
        assert canary is not None
        if task.feedback is None:
            self._note(
                place,
                "feedback decides on it, and the task keeps no answers for it; give the task "
                "`feedback: {}`",
            )
        if whole and canary.variant not in task.variants:
            near = nearest(canary.variant, task.variants)
            self._note((*place, "variant"), f"there is no variant {canary.variant}; {near}")
        elif whole and len(task.variants) == 1:
            self._note(
                (*place, "variant"),
                f"{canary.variant} is the only variant, and who is no canary answers the others",
            )

    def check_scheduled(self, names: Sequence[str]) -> None:
        """Refuse tasks for one policy that there are not, or that would be scheduled besides."""
        place: Place = ("scheduling", "tasks")
        for index, name in enumerate(names):
            task = self.tasks.get(name)
            if name not in self._written:
                self._note(
                    (*place, index), f"there is no task {name}; {nearest(name, self._written)}"
                )
            elif name in names[:index]:
                self._note((*place, index), f"{name} is named twice")
            elif task is not None and task.count > 1:
                self._note(
                    (*place, index),
                    f"{name} counts {task.count} tasks, and one policy schedules single ones; list "
                    "them under names of their own",
                )
            elif task is not None and task.dispatch is not None:
                self._note(
                    (*place, index),
                    f"{name} has a `dispatch` of its own, so nothing schedules it; leave out one "
                    "of the two",
                )
        others = [
            name for name, task in self.tasks.items() if name not in names and task.dispatch is None
        ]
        if names and others:
            self._note(
                place,
                f"{', '.join(others)} would be scheduled, too: name all that are, or give a task a "
                "`dispatch` of its own",
            )

    def check_joint_target(self, target: JointTarget) -> None:
        """Refuse a target over tasks that there are not, or that none of their variants reaches."""
        place: Place = ("targets", target.name)
        for index, name in enumerate(target.tasks):
            if name not in self._written:
                sentence = f"there is no task {name}; {nearest(name, self._written)}"
                self._note((*place, "tasks", index), sentence)
            elif name in self.tasks and self.tasks[name].count > 1:
                self._note(
                    (*place, "tasks", index),
                    f"{name} counts {self.tasks[name].count} tasks, and a target is over single "
                    "ones; list them under names of their own",
                )
        tasks = [self.tasks[name] for name in target.tasks if name in self.tasks]
        if len(tasks) < len(target.tasks):
            return
        variants = [(task.name, one) for task in tasks for one in task.variants.values()]
        if target.accuracy is not None:
            lacking = [
                self.lacks_accuracies((*place, "accuracy"), f"a target over {task.name}", task)
                for task in tasks
            ]
            if any(lacking) or not variants:
                return
            of, best = max(variants, key=lambda one: one[1].accuracy)
            if target.accuracy > best.accuracy:
                self._note(
                    (*place, "accuracy"),
                    f"{target.accuracy:g} is above the best variant of its tasks, "
                    f"{of}/{best.name}, whose accuracy is {best.accuracy:g}",
                )
        if target.energy is not None:
            blank = [(of, one) for of, one in variants if not one.energies]
            self._note_all(
                (
                    ("tasks", of, "variants", one.name),
                    f"needs `energy`, as the target {target.name} limits it",
                )
                for of, one in blank
            )
            if blank or not variants:
                return
            least, of, name = min(
                (min(one.energies.values()), of, one.name) for of, one in variants
            )
            if least > target.energy:
                self._note(
                    (*place, "energy"),
                    f"{ENERGY.write(target.energy)} is less than any variant of its tasks takes; "
                    f"the least is {of}/{name} with {ENERGY.write(least)}",
                )

    def check_keeps(self, target: JointTarget, task: str, policy: str) -> None:
        """Refuse a target over a task whose policy cannot keep it."""
        if ".py:" not in policy and not (policy in DISPATCH and DISPATCH[policy].joint):
            keep = ", ".join(name for name, row in DISPATCH.items() if row.joint)
            self._note(
                ("targets", target.name),
                f"{policy}, which dispatches {task}, keeps no target over several tasks; {keep} "
                "does",
            )

    def _check_drift(self, place: Place, drift: Drift, task: Task) -> None:
        """Refuse the drift of what is no variant, or to an accuracy that there is not."""
        if drift.variant not in task.variants:
            near = nearest(drift.variant, task.variants)
            self._note((*place, "variant"), f"there is no variant {drift.variant}; {near}")
        elif not task.variants[drift.variant].graded:
            self._note((*place, "variant"), f"{drift.variant} has no accuracy that could change")
        elif not 0.0 <= (then := task.variants[drift.variant].accuracy + drift.accuracy) <= 1.0:
            known = task.variants[drift.variant].accuracy
            self._note(
                (*place, "accuracy"),
                f"{drift.variant} has {known:g}, so that it would have {then:g}, which is not in "
                "0..1",
            )

    def check_following(self, task: Task, policy: PolicySpec | None, scheduled: bool) -> None:
        """Refuse a promise on what is measured under a policy that does not follow that."""
        name = "scheduling" if policy is None and scheduled else getattr(policy, "policy", "priced")
        if task.measured and name not in FOLLOWING and ".py:" not in name:
            self._note(
                ("tasks", task.name, "accuracy_target", "by"),
                f"{name} does not go by the accuracies of the moment, so that it does not follow "
                f"what is measured; {', '.join(sorted(FOLLOWING))} do",
            )

    def check_deadline(self, task: Task, nodes: Mapping[str, Node], scheduled: bool) -> None:
        """Refuse a deadline that no service time meets, unless a server may measure better ones."""
        running = [
            variant
            for name, variant in task.variants.items()
            if any((task.name, name) in node.instances for node in nodes.values())
        ]
        times = [time.mean_s for variant in running for time in variant.service.values()]
        if task.deadline_s is None or not times or task.deadline_s >= min(times):
            return
        if scheduled or not any(variant.runnable for variant in running):
            self._note(
                ("tasks", task.name, "deadline"),
                f"{TIME.write(task.deadline_s)} is shorter than every service time, so no request "
                f"could be answered in time; the shortest mean is {TIME.write(min(times))}",
            )


def _measured_by_hardware(own: VariantProfile | None, *, alone: bool) -> dict[str, MachineTimes]:
    """Tell what was measured of a variant, by hardware.

    What this machine has measured is of `PROFILE_HARDWARE`, or of any where it stands `alone`:
    neither the file nor a zoo says times, and none were measured of hardware by name.
    """
    if own is None:
        return {}
    found: dict[str, MachineTimes] = {**own.hardware}
    if (here := own.times_on(PROFILE_HARDWARE)) is not None:
        found[ANY_HARDWARE if alone and not found else PROFILE_HARDWARE] = here
    return found


def unmeasured(variants: Sequence[str], path: Path) -> str:
    """Say of variants of a file that they have no accuracy, and what measures it."""
    has = "have" if len(variants) > 1 else "has"
    return (
        f"{', '.join(variants)} {has} no `accuracy`, which `inferway profile {path} --data TEST "
        "--write` measures"
    )
