"""Training: ``train``, a scheduler for a deployment, and ``zoo``, the models that ship."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import inferway
from inferway.cli import options, terminal
from inferway.cli.terminal import FAILED, INTERRUPTED, CommandError, failing, says
from inferway.extras import installing

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from inferway.catalog.zoo import Profile, Zoo
    from inferway.learning.deployed import Outages
    from inferway.learning.settings import Settings
    from inferway.learning.training import TrainingProgress

zoo = typer.Typer(
    invoke_without_command=True, help="List the models that ship with Inferway, or remake them."
)

Out = Annotated[
    Path | None, says("Folder to write to.", "--out", show_default="the user's data folder")
]


def train(
    file: options.File,
    policy: Annotated[
        Literal["rl-po", "rl-fo", "rl-po-b", "rl-fo-b"] | None,
        says(
            "fo sees the workload's phase, po does not; b sets batch sizes, too.",
            show_default="the file's, else rl-po",
        ),
    ] = None,
    slots: Annotated[
        int | None,
        says(
            "To train for.",
            parser=options.count("25e6", 1e12),
            metavar="NUMBER",
            show_default="25e6; 250e6 with --paper",
        ),
    ] = None,
    seed: options.Seed = None,
    out: Annotated[
        Path | None,
        says(
            "Folder for policy, checkpoint and curves.",
            metavar="DIR",
            show_default="out/train/POLICY",
        ),
    ] = None,
    task: Annotated[str | None, says("Which, where the file has several.")] = None,
    node: Annotated[str | None, says("Whose instances, where there are several nodes.")] = None,
    paper: Annotated[bool, says("The paper's settings, without what helps.", "--paper")] = False,
    settings: Annotated[
        list[str] | None,
        says(
            "A setting of inferway.learning.settings, such as sigma=0.5. May be repeated.",
            "--set",
            metavar="NAME=VALUE",
        ),
    ] = None,
    accuracies: Annotated[
        list[str] | None,
        says(
            "A variant's accuracy in the reward, on other data than the file's. For each.",
            "--accuracy",
            metavar="VARIANT=VALUE",
        ),
    ] = None,
    late: Annotated[
        Literal["drop", "serve"],
        says("What becomes of late requests; drop leaves servers out that would be late, too."),
    ] = "serve",
    outages: Annotated[
        list[str] | None,
        says(
            "Instances go away EVERY so often FOR so long in the mean, such as 1h/60s; file: as "
            "its node's failures say. The policy is then for any part of them.",
            metavar="[VARIANT=]EVERY/FOR|file",
        ),
    ] = None,
    start: Annotated[Path | None, options.file("A trained policy to begin with.")] = None,
    threads: Annotated[int, says("Threads; one is best.", min=1)] = 1,
    seeds: Annotated[
        int | None,
        says(
            "Train from so many seeds, --seed and those after it, and export the best.",
            min=1,
            show_default="one training",
        ),
    ] = None,
    workers: Annotated[
        str | None,
        says(
            "With --seeds: so many processes; or processes:N, ray, ray://HOST:PORT, "
            "dask://HOST:PORT.",
            metavar="WORKERS",
            show_default="as many as cores",
        ),
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Train a scheduler for the file's fleet, workload and deadline (needs the extra `learn`).

    A folder with a checkpoint of the same training is gone on with; Ctrl-C keeps what is there.
    """
    # Before NumPy and PyTorch are imported: threads that wait actively take the cores from those
    # that compute.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    for module in ("torch", "tensorboard"):
        if importlib.util.find_spec(module) is None:
            raise CommandError(
                f"training needs {module}, which is in the extra `learn`: {installing('learn')}",
                FAILED,
            )
    from inferway.experiments import seeds as several
    from inferway.experiments.trained import lines
    from inferway.learning import deployed, training
    from inferway.scheduling.neural_policy import read

    if workers is not None and seeds is None:
        raise CommandError("--workers is for --seeds; one training stays on one machine")
    who = options.workers(workers, "processes")
    deployment = options.opened(file)
    with failing(ValueError):
        names = deployed.trained_for(deployment, task)
        name, chosen = names[0], deployed.policy_of(deployment, policy)
        control = deployed.control_of(
            deployment,
            task,
            chosen,
            node=node,
            accuracies=_accuracies(accuracies or []),
            late=late,
            outages=_outages(outages or []),
        )
        wanted = _settings(paper, slots, settings or [])
        begun = None if start is None else read(start)
        warnings = deployed.differences(deployment, control, name, chosen, node=node, start=begun)
    if any(part.scenario.fleet.devices is not None for part in control.parts):
        options.recalled(deployment)  # which counts where instances share cores
    number = deployment.seed if seed is None else seed
    folder = out or Path("out/train", chosen)
    options.writable(folder)
    for sentence in warnings:
        terminal.complain(f"warning: {sentence}")
    with terminal.progress() as show:

        def tell(now: TrainingProgress) -> None:
            if now.evaluating:
                show(f"{now.slots:,} of {now.total:,} slots, evaluating", now.share)
                return
            left = timedelta(seconds=round(now.seconds_left))
            show(
                f"{now.slots:,} of {now.total:,} slots, {now.slots_per_s:,.0f}/s, "
                f"goodput {now.goodput:.2%}, violations {now.violations:.2%}, {left} left",
                now.share,
            )

        def command(seed: int) -> str:
            """Say what makes this policy again, as its file does."""
            return " ".join(
                [
                    f"inferway train {file} --policy {chosen}",
                    f"--slots {wanted.slots} --seed {seed}",
                    *(["--paper"] if paper else []),
                    *(f"--set {one}" for one in settings or ()),
                    *(f"--accuracy {one}" for one in accuracies or ()),
                    *([f"--late {late}"] if late != "serve" else []),
                    *(f"--outages '{one}'" for one in outages or ()),
                    *([f"--task {task}"] if task and len(deployment.tasks) > 1 else []),
                    *([f"--start {start}"] if start else []),
                ]
            )

        given: dict[str, Any] = {"task": name, "threads": threads, "start": start, "progress": tell}
        trained: training.Trained | several.TrainedSeeds
        if seeds is None:
            made = training.train(
                control, wanted, folder, seed=number, command=command(number), **given
            )
            trained, shown, slots_done = made, lines(chosen, made), made.slots
        else:
            with failing(ValueError, RuntimeError, code=FAILED):
                every = several.train_seeds(
                    control,
                    wanted,
                    folder,
                    seeds=range(number, number + seeds),
                    who=who,
                    command=command,
                    **given,
                )
            trained, shown = every, every.tables()
            slots_done = sum(one.slots for one in every.seeds)
    # Of one policy for several tasks, what is said is of all of them.
    tasks = {", ".join(names): {**trained.to_json(), "warnings": warnings}}
    terminal.present(json, lambda: {"schema": 1, "tasks": tasks, "network": None}, lambda: shown)
    where = ""
    if isinstance(trained, training.Trained) and trained.tally is None:
        where = f": the policy is {trained.policy}, and it was not evaluated"
    if where or not trained.finished:
        terminal.complain(
            f"interrupted after {slots_done:,} slots{where}; the same command goes on"
        )
        raise typer.Exit(INTERRUPTED)


def _settings(paper: bool, slots: int | None, written: list[str]) -> Settings:
    from inferway.learning.settings import TUNED, Settings, settings_of

    known = {field.name for field in fields(Settings)}
    changes: dict[str, Any] = {} if slots is None else {"slots": slots}
    for one in written:
        name, equals, text = one.partition("=")
        if not equals or name not in known:
            raise ValueError(
                f"--set {one}: expected NAME=VALUE, NAME one of {', '.join(sorted(known))}"
            )
        try:
            changes[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            changes[name] = text
    try:
        return settings_of(Settings() if paper else TUNED, changes)
    except ValueError as error:
        raise ValueError(f"--set: {error}" if written else str(error)) from None


def _accuracies(written: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in written:
        name, _, value = one.rpartition("=")
        if name in found:
            raise ValueError(f"--accuracy {one}: there is another one of {name}")
        with suppress(ValueError):
            found[name] = float(value)
        if not name or not 0 <= found.get(name, -1) <= 1:
            raise ValueError(f"--accuracy {one}: expected VARIANT=VALUE, an accuracy in 0..1")
    return found


def _outages(written: list[str]) -> Outages | None:
    """Read mean times, s: of all variants or by variant, or that they are the file's."""
    from inferway.deployment.units import TIME, QuantityError

    found: dict[str, tuple[float, float]] = {}
    for one in written:
        name, equals, times = one.rpartition("=")
        every, slash, lasting = times.partition("/")
        if one == "file":
            continue
        if name and name in found:
            raise ValueError(f"--outages {one}: there is another one of {name}")
        try:
            found[name] = float(TIME.parse(every.strip())), float(TIME.parse(lasting.strip()))
        except QuantityError:
            slash = ""
        if not slash or bool(equals) != bool(name) or not all(0 < t < inf for t in found[name]):
            raise ValueError(
                f"--outages {one}: expected EVERY/FOR, two times above 0 s such as 1h/60s, "
                "VARIANT=EVERY/FOR, or file"
            )
    if len(written) > 1 and ("file" in written or "" in found):
        raise ValueError("--outages: several are one for each variant, VARIANT=EVERY/FOR")
    if "file" in written:
        return "file"
    return found.get("", found) or None


@zoo.callback()
def list_all(context: typer.Context, json: terminal.Json = False) -> None:
    """List every zoo's variants with their profiles."""
    if context.invoked_subcommand is not None:
        return
    from inferway.catalog.zoo import load, names

    _present([load(name) for name in names()], json)


@zoo.command()
def build(
    out: Out = None,
    seed: Annotated[int, says("Seed of data and training.")] = 1,
    json: terminal.Json = False,
) -> None:
    """Train the digits zoo again, export it to ONNX and measure it (needs the extra `learn`)."""
    from inferway.catalog.zoo import user_folder

    builder = _builder()
    with terminal.progress() as show:
        folder = out or user_folder()
        built = builder(folder, seed=seed, progress=lambda share, what: show(what, share))
    _present([built], json)


@zoo.command()
def profile(
    out: Out = None,
    again: Annotated[bool, says("Measure anew what is known already.", "--again")] = False,
    rounds: Annotated[int, says("Measurements of each service time.", min=1)] = 5,
    json: terminal.Json = False,
) -> None:
    """Measure the digits zoo on this machine, as `inferway profile` does a file's variants.

    The data are the zoo's test set: half of its originals are for accuracies, half for the
    confidence. Accuracies that ship are known already; service times are this machine's.
    """
    from inferway.catalog.zoo import user_folder
    from inferway.profiling.zoo import measure

    with terminal.progress() as show:
        folder = out or user_folder()
        measured = measure(folder=folder, again=again, rounds=rounds, progress=show)
    _present([measured], json)


def _builder() -> Callable[..., Zoo]:
    """Import what builds the zoo: it stands beside the package in a clone, and is not installed."""
    folder = Path(inferway.__file__).parents[2] / "zoo"
    spec = importlib.util.spec_from_file_location(
        "zoo", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None or not (folder / "build.py").is_file():
        raise CommandError(
            "what builds the models is not installed with Inferway: run this in a clone of its "
            "repository, after `pip install -e '.[learn]'` there"
        )
    sys.modules["zoo"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["zoo"])
    from zoo.build import build

    return build


def _profile(one: Profile) -> dict[str, Any]:
    """Write a profile with what people look for first at its top."""
    import msgspec

    times = ["batch", "mean_s", "p50_s", "p99_s", "cpu_s"]
    found: dict[str, Any] = msgspec.to_builtins(one)
    return found | {
        "digest": one.digest,
        "accuracy": one.accuracy,
        "accuracy_interval": list(one.accuracy_interval),
        "size_bytes": one.size_bytes,
        "memory_bytes": one.times.memory_bytes,
        "service": [{name: getattr(each, name) for name in times} for each in one.times.alone],
    }


def _present(zoos: list[Zoo], json: bool) -> None:
    entries = {
        one.name: {"origin": one.origin}
        | {key: part for key, part in one.to_json().items() if key not in {"schema", "zoo"}}
        | {"profiles": [*map(_profile, one.profiles.values())]}
        for one in zoos
    }
    terminal.present(json, lambda: {"schema": 1, "zoos": entries}, lambda: map(_table, zoos))


def _table(zoo: Zoo) -> Table:
    from inferway.experiments.text import accuracy, seconds, table

    columns = ["variant", "accuracy [95 %]", "file", "memory", "p50", "p99", "p50 of 8"]
    rows = []
    for one in zoo.profiles.values():
        memory = one.times.memory_bytes
        alone = {each.batch: each for each in one.times.alone}
        rows.append(
            [
                one.name,
                accuracy(one.accuracy, one.accuracy_interval),
                f"{one.size_bytes / 2**20:.2f} M",
                "" if memory is None else f"{memory / 2**20:.2f} M",
                seconds(alone[1].p50_s),
                seconds(alone[1].p99_s),
                seconds(alone[8].p50_s) if 8 in alone else "",
            ]
        )
    caption = "Sizes in MiB; service times for requests of one row, and of 8. Accuracies by "
    caption += f"{zoo.data.accuracy_rows:,} images, confidence by {zoo.data.bins_rows:,} others."
    return table(f"zoo://{zoo.name} ({zoo.origin})", columns, rows, caption=caption)
