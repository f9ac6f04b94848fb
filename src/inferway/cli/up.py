"""``inferway up``: all nodes of a network on this machine."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from inferway.cli import terminal
from inferway.cli.failure import FAILED, REFUSED, CommandError
from inferway.cli.file import File, existing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from inferway.lab import LocalCluster, NodeStatus

_REFRESH_S: Final = 1.0


def up(
    file: File,
    netns: Annotated[
        bool,
        typer.Option("--netns", help="A network namespace per node, with real delays; as root."),
    ] = False,
    certs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Certificates of `inferway certs`, by which nodes know each other.",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="What nodes keep for the next time; in the run folder if not given.",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="For addresses and logs; a new temporary folder if not given.",
            show_default=False,
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Record every event and decision, a folder per node, for `replay`.",
            show_default=False,
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start a node again that ends unasked.")
    ] = False,
    for_: Annotated[
        float | None,
        typer.Option("--for", min=0, metavar="SECONDS", help="Stop then.", show_default=False),
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Run all nodes of a network on this machine, a process each; Ctrl-C stops them."""
    from rich.console import Console

    import inferway
    from inferway.lab import ClusterError, LocalCluster

    console = Console(highlight=False)
    board = console if console.is_terminal and not json else None
    lost: list[str] = []

    def tell(sentence: str) -> None:
        lost.append(sentence)
        if board is None:
            terminal.complain(sentence)
        else:  # above the table
            board.print(sentence, soft_wrap=True)

    deployment = inferway.load(existing(file))
    try:
        nodes = LocalCluster(
            deployment,
            netns=netns,
            certs=certs,
            state=state,
            run=run,
            record=record,
            restart=restart,
            tell=tell,
        )
    except ClusterError as error:
        raise CommandError(str(error), REFUSED) from error
    with _interrupted() as interrupted:
        try:
            _begin(nodes)
            try:
                with terminal.unheard():
                    (_document if json else _say)(nodes)
                _watch(nodes, board, for_, interrupted)
            except KeyboardInterrupt:
                if not json:
                    with terminal.unheard():
                        print("stopping")
        except ClusterError as error:
            raise CommandError(str(error), FAILED) from error
        finally:
            nodes.stop()
    if lost and not restart:
        raise CommandError(f"not all nodes ran to the end; what they said is in {nodes.run}")


@contextmanager
def _interrupted() -> Iterator[Callable[[], bool]]:
    """Have SIGTERM and SIGHUP interrupt as Ctrl-C does; tell whether one of them has come.

    An exception in the middle of anything may come in the middle of a finalizer, and is lost there.
    """
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    # Ignored or not before: these are meant for whoever runs the nodes.
    meant = [signal.SIGINT, signal.SIGTERM]
    # But the end of a terminal is not, where `nohup` has said so.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        meant.append(signal.SIGHUP)
    before = {one: signal.signal(one, interrupt) for one in meant}
    try:
        yield lambda: came
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _begin(nodes: LocalCluster) -> None:
    with terminal.progress() as progress:
        total = len(nodes.topology.nodes)
        progress("starting the nodes", 0.0)
        nodes.begin(ready=lambda names: progress(f"{names[-1]} is ready", len(names) / total))


def _document(nodes: LocalCluster) -> None:
    """Print where everything is, in one line: who reads it need not wait for the end."""
    found: dict[str, Any] = {}
    for name, process in nodes.nodes.items():
        addresses = nodes.addresses[name]
        found[name] = {
            "url": addresses.url,
            "peer": addresses.peer,
            "control": addresses.control,
            "admin": f"http://{addresses.admin}",
            "reach": nodes.command_at(name),
            "log": str(process.log),
        }
    terminal.document(
        {
            "schema": 1,
            "tasks": {task: {"entries": names} for task, names in nodes.entries.items()},
            "network": {
                "nodes": found,
                "addresses": str(nodes.addresses_file),
                "run": str(nodes.run),
                "state": str(nodes.state),
            },
        },
        indent=None,
    )


def _say(nodes: LocalCluster) -> None:
    """Tell how to reach what runs."""
    entries = dict.fromkeys(name for names in nodes.entries.values() for name in names)
    for name in entries:
        print(f"requests enter at {name}: {nodes.url(name)}")
    if nodes.emulation is not None:
        first = next(iter(entries))
        inside = ["nsenter", f"--net={nodes.emulation.namespace(first)}"]
        print(
            f"from inside its namespace only: {shlex.join([*inside, 'curl', nodes.url(first)])}/v2"
        )
    else:
        drive = ["inferway", "drive", str(nodes.deployment.path)]
        drive += ["--addresses", str(nodes.addresses_file)]
        print(f"to load them all: {shlex.join(drive)}")
    print(f"addresses and logs are in {nodes.run}; Ctrl-C stops", flush=True)


def _watch(
    nodes: LocalCluster, board: Console | None, for_s: float | None, interrupted: Callable[[], bool]
) -> None:
    """Show how the nodes are until time is up, or none is left."""
    from rich.live import Live

    from inferway.lab import StatusPoller

    end_s = None if for_s is None else time.monotonic() + for_s

    def ended() -> bool:
        left_s = _REFRESH_S if end_s is None else min(end_s - time.monotonic(), _REFRESH_S)
        if left_s <= 0.0 or nodes.wait(left_s):
            return True
        if interrupted():
            raise KeyboardInterrupt
        return False

    if board is None:
        while not ended():
            pass
        return
    poller = StatusPoller(nodes)
    try:
        with Live(console=board, auto_refresh=False) as live:
            live.update(_table(nodes, poller.poll()), refresh=True)
            while not ended():
                live.update(_table(nodes, poller.poll()), refresh=True)
    finally:
        poller.close()


def _table(nodes: LocalCluster, glances: list[NodeStatus]) -> Table:
    from rich.table import Table

    table = Table("node", "", box=None, pad_edge=False)
    for name in ("slot", "asked/s", "sent on/s", "served/s", "CPU", "neighbors"):
        table.add_column(name, justify="right")
    for name in ("memory", "runs", ""):
        table.add_column(name, overflow="fold" if name else "ellipsis")
    links = [name for link in nodes.topology.links for name in link]
    for index, one in enumerate(glances):
        told, per_s = one.told, one.per_s
        rates = [
            f"{per_s[key]:,.1f}" if key in per_s else ""
            for key in ("arrived", "forwarded", "served")
        ]
        table.add_row(
            one.node,
            one.state,
            str(told.get("slot", "")),
            *rates,
            f"{per_s['cpu_s']:.0%}" if "cpu_s" in per_s else "",
            f"{len(told['alive'])} of {links.count(index)}" if "alive" in told else "",
            _memory(told),
            _running(told.get("running", {})),
            told.get("degraded", ""),
        )
    return table


def _memory(told: dict[str, Any]) -> str:
    if "used_bytes" not in told:
        return ""
    used = f"{told['used_bytes'] / 2**20:,.1f}"
    budget = told.get("budget_bytes")
    return f"{used} MiB" if budget is None else f"{used} of {budget / 2**20:,.1f} MiB"


def _running(copies: dict[str, int]) -> str:
    """Name the variants that run, over all tasks, with their copies."""
    variants: dict[str, int] = {}
    for key, count in copies.items():
        variant = key.rpartition("/")[2]
        variants[variant] = variants.get(variant, 0) + count
    return ", ".join(f"{count} {variant}" for variant, count in sorted(variants.items()))
