"""``inferway zoo``: the models that ship with Inferway, rebuilt and measured on demand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import inferway
from inferway.cli import terminal
from inferway.cli.failure import CommandError
from inferway.cli.options import says

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from inferway.catalog.zoo import Zoo

app = typer.Typer(
    invoke_without_command=True, help="List the models that ship with Inferway, or remake them."
)

Out = Annotated[
    Path | None,
    says("Folder to write to.", "--out", show_default="the user's data folder"),
]


@app.callback()
def list_all(context: typer.Context, json: terminal.Json = False) -> None:
    """List every zoo's variants with their profiles."""
    if context.invoked_subcommand is not None:
        return
    from inferway.catalog import zoo

    _present([zoo.load(name) for name in zoo.names()], json)


@app.command()
def build(
    out: Out = None,
    seed: Annotated[int, says("Seed of data and training.")] = 1,
    json: terminal.Json = False,
) -> None:
    """Train the digits zoo again, export it to ONNX and measure it (needs the extra `learn`)."""
    from inferway.catalog.zoo import user_folder

    builder = _builder()
    with terminal.progress() as progress:
        built = builder(
            out or user_folder(), seed=seed, progress=lambda share, what: progress(what, share)
        )
    _present([built], json)


@app.command()
def profile(out: Out = None, json: terminal.Json = False) -> None:
    """Measure the digits zoo on this machine: accuracy, service times, memory."""
    from inferway.catalog.evaluation import measure
    from inferway.catalog.zoo import user_folder

    with terminal.progress() as progress:
        measured = measure(
            folder=out or user_folder(), progress=lambda share, what: progress(what, share)
        )
    _present([measured], json)


def _builder() -> Callable[..., Zoo]:
    """Import what builds the zoo: it stands beside the package in a clone, and is not installed."""
    import importlib.util
    import sys

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


def _present(zoos: list[Zoo], json: bool) -> None:
    entries = {one.name: {"origin": one.origin} | one.to_json() for one in zoos}
    for entry in entries.values():
        del entry["schema"], entry["zoo"]
    terminal.present(json, lambda: {"schema": 1, "zoos": entries}, lambda: map(_table, zoos))


def _table(zoo: Zoo) -> Table:
    from inferway.experiments.text import accuracy, seconds, table

    batches = [one.batch for one in next(iter(zoo.profiles.values())).service]
    columns = ["variant", "accuracy [95 %]", "file", "memory", "p50", "p99"]
    columns += [f"p50 of {batch}" for batch in batches[1:]]
    rows = [
        [
            profile.name,
            accuracy(profile.accuracy, profile.accuracy_interval),
            _mebibytes(profile.size_bytes),
            _mebibytes(profile.memory_bytes),
            seconds(profile.service[0].p50_s),
            seconds(profile.service[0].p99_s),
            *(seconds(one.p50_s) for one in profile.service[1:]),
        ]
        for profile in zoo.profiles.values()
    ]
    caption = "Sizes in MiB; service times for requests of one row"
    caption += "".join(f", and of {batch}" for batch in batches[1:]) + "."
    return table(f"zoo://{zoo.name} ({zoo.origin})", columns, rows, caption=caption)


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.2f} M"
