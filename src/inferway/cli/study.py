"""``inferway study``: the papers' figures, computed again; ``demo``: policies on real models."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from inferway.cli import dashboard as page
from inferway.cli import options, terminal
from inferway.cli.options import writable
from inferway.cli.terminal import FAILED, INTERRUPTED, CommandError, failing, says

if TYPE_CHECKING:
    from rich.text import Text

    from inferway.studies import Progress, Study
    from inferway.studies.live import SeenServer

app = typer.Typer(
    no_args_is_help=True, help="Compute the papers' figures again, and check what they say."
)

Scale = Annotated[
    Literal["smoke", "quick", "paper"],
    says("Seconds; the third digit; or the paper's own run lengths."),
]
Out = Annotated[Path, says("Folder for results, one folder below it per study.")]
Seed = Annotated[int, says("The first of the seeds: S, S+1, ... in place of 1, 2, ...", min=1)]


@app.command("list")
def list_all(json: terminal.Json = False) -> None:
    """List all studies: what each shows, how many points it has, about how long they take."""
    from inferway.studies import SCALES, named

    studies = named()
    entries = {
        one.name: {
            "source": one.source,
            "shows": one.shows,
            "departures": list(one.departures),
            "scales": {
                scale: {
                    "points": len(one.points(one.scales[scale])),
                    "core_seconds": one.seconds(scale),
                }
                for scale in SCALES
            },
        }
        for one in studies
    }
    terminal.present(
        json, lambda: {"schema": 1, "studies": entries}, lambda: _listing(studies, entries)
    )


@app.command()
def run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="As `study list` has them.")
    ] = None,
    everything: Annotated[bool, says("Every study.", "--all")] = False,
    scale: Scale = "quick",
    out: Out = Path("out/studies"),
    seed: Seed = 1,
    workers: options.Workers = None,
    json: terminal.Json = False,
) -> None:
    """Run studies; what is stored is not computed again, and Ctrl-C loses nothing finished."""
    from rich.text import Text

    from inferway.experiments.claim import as_text
    from inferway.experiments.figure import save
    from inferway.experiments.study import place

    if bool(names) == everything:
        raise typer.BadParameter("name studies, or say --all")
    chosen = _named(names)
    options.workers(workers, "processes")
    writable(out)
    documents: dict[str, Any] = {}
    failed: list[str] = []
    for one in chosen:
        with terminal.progress() as show:

            def tell(now: Progress, show: Callable[[str, float], None] = show) -> None:
                left = "" if now.done == 0 else f", {_minutes(now.seconds_left)} left"
                show(f"{now.study}: {now.done} of {now.total} points{left}", now.share)

            try:
                with failing(ValueError, code=FAILED):
                    found = one.run(scale, out=out, seed=seed, workers=workers, progress=tell)
            except RuntimeError as error:  # which keeps no other study from its run
                failed.append(str(error))
                continue
        claims = found.claims
        image, _ = save(found.figure, out / one.name / place(scale, seed) / one.name)
        if json:
            documents[one.name] = {
                "source": one.source,
                "scale": scale,
                "seed": seed,
                "points": len(found.results),
                "figure": str(image),
                "claims": [claim.to_json() for claim in claims],
            }
        else:
            title = Text(f"{one.name} ({one.source}): {image}", style="bold")
            terminal.show(title, *as_text(claims), Text())
    if json and (documents or not failed):
        terminal.document({"schema": 1, "studies": documents})
    if failed:
        raise CommandError("; ".join(failed), FAILED)


@app.command()
def report(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; all by default.")
    ] = None,
    scale: Scale = "quick",
    out: Out = Path("out/studies"),
    seed: Seed = 1,
    json: terminal.Json = False,
) -> None:
    """Write all figures and claims to one HTML page that needs no other file."""
    from inferway.experiments.report import report as write
    from inferway.experiments.study import place

    chosen = _named(names)
    writable(out)
    content = write(chosen, scale, out=out, seed=seed)
    page = out / f"report-{place(scale, seed)}.html"
    page.write_text(content, encoding="utf-8")
    told = {"schema": 1, "page": str(page), "bytes": len(content.encode())}
    terminal.present(json, lambda: told, lambda: [str(page)])


@app.command()
def tables(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; all by default.")
    ] = None,
    scale: Scale = "quick",
    out: Annotated[
        Path, says("Folder of the pages: queueing.md, placement.md, scheduling.md.")
    ] = Path("docs/studies"),
    results: Annotated[Path, says("Folder with results, as of `study run --out`.")] = (
        Path("out/studies")
    ),
    seed: Seed = 1,
    json: terminal.Json = False,
) -> None:
    """Write the tables of claims, and how many reproduce, into Markdown pages between markers."""
    from inferway.experiments.report import write

    chosen = _named(names)
    writable(out)
    pages = write(chosen, scale, pages=out, out=results, seed=seed)
    unrun = "; without results, left as they were: "
    terminal.present(
        json,
        lambda: {
            "schema": 1,
            "scale": scale,
            "seed": seed,
            "pages": {str(page.file): page.to_json() for page in pages},
        },
        lambda: [
            f"{page.file}: {len(page.studies)} tables"
            f"{unrun * bool(page.left)}{', '.join(page.left)}. {page.counts}"
            for page in pages
        ],
    )


def _named(names: list[str] | None) -> list[Study[Any]]:
    from inferway.studies import named

    with failing(ValueError):
        return named(names or ())


def _listing(studies: list[Study[Any]], entries: Mapping[str, Any]) -> list[Text]:
    from rich.text import Text

    from inferway.machine import cores

    lines = []
    for one in studies:
        parts = [
            f"{scale} {of['points']} points, {_minutes(of['core_seconds'] / cores())}"
            for scale, of in entries[one.name]["scales"].items()
        ]
        line = Text.assemble((one.name, "bold"), f"  {one.source}\n    {one.shows}\n")
        lines.append(line.append(f"    {'; '.join(parts)}", style="dim"))
    return [*lines, Text(f"Times are estimates, on {cores()} cores.")]


def _minutes(seconds: float) -> str:
    """A duration for people: `40 s`, `3:20 min`, `5.2 h`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def demo(
    what: Annotated[
        Literal["policies", "burst", "network"],
        typer.Argument(
            help="Dispatch policies, schedulers under bursts with a deadline, or placement "
            "policies on a network of five nodes."
        ),
    ] = "policies",
    out: Annotated[Path, says("Folder for figures and files.")] = Path("out"),
    seed: Annotated[int, says("Seed of arrivals and images.", min=0)] = 1,
    checkpoint: Annotated[
        Path | None, says("For burst: a policy trained for what it leaves in --out, as rl-po.")
    ] = None,
    dashboard: page.Dashboard = False,
    dashboard_host: page.DashboardHost = page.HOST,
    dashboard_port: page.DashboardPort = page.PORT,
    json: terminal.Json = False,
) -> None:
    """Serve real models here and compare policies on one stream of real images."""
    from inferway.studies.live import compare_placements, compare_policies, compare_schedulers

    if checkpoint is not None and what != "burst":
        raise CommandError("--checkpoint is for `inferway demo burst`")
    writable(out)
    # Told to end, it takes its servers with it, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options: dict[str, Any] = {"checkpoint": checkpoint} if what == "burst" else {}
    comparisons: dict[str, Callable[..., Any]] = {
        "policies": compare_policies,
        "burst": compare_schedulers,
        "network": compare_placements,
    }
    beside = page.PageBeside(dashboard_host, dashboard_port) if dashboard else None
    with nullcontext() if beside is None else closing(beside):
        seen: Sequence[SeenServer] = ()
        if beside is not None:
            beside.start(doing="starting")
            (terminal.complain if json else print)(f"a page shows it at {beside.url}")

        def look(doing: str, servers: Sequence[SeenServer]) -> None:
            nonlocal seen
            seen = servers
            if beside is not None:
                beside.show(doing, [one._asdict() for one in servers])

        with terminal.progress() as progress:
            result = comparisons[what](out=out, seed=seed, progress=progress, look=look, **options)
        look("the demo has ended", seen)
        terminal.present(json, result.to_json, result.to_text)
        if result.interrupted:
            raise typer.Exit(INTERRUPTED)
        if json:
            return
        if beside is None:
            print(watching(what))
            return
        with suppress(KeyboardInterrupt):
            print(f"The page at {beside.url} shows how it ended; Ctrl-C closes it", flush=True)
            beside.wait()


def watching(what: str) -> str:
    """Say how the demo is watched on a page, and what that needs."""
    from inferway.extras import installing
    from inferway.studies.live import own_command

    command = " ".join([own_command(), "demo", *([] if what == "policies" else [what])])
    needed = f"{installing('dashboard')}, then " if page.missing() else ""
    return f"To watch it on a page in the browser: {needed}{command} --dashboard"
