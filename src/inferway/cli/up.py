"""All nodes of a network on this machine: ``up`` runs them, ``certs`` lets them know each other."""

from __future__ import annotations

import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import inferway
from inferway.cli import dashboard as page
from inferway.cli import options, terminal
from inferway.cli.terminal import FAILED, CommandError, failing, says

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from inferway.lab import LocalCluster, NodeStatus

_REFRESH_S: Final = 1.0


def up(
    file: options.File,
    netns: Annotated[
        bool, says("A network namespace per node, with real delays; as root.", "--netns")
    ] = False,
    certs: Annotated[
        Path | None,
        options.folder("Certificates of `inferway certs`, by which nodes know each other."),
    ] = None,
    state: Annotated[
        Path | None,
        options.folder("What nodes keep for the next time; in the run folder if not given."),
    ] = None,
    run: Annotated[
        Path | None, options.folder("For addresses and logs; a new temporary folder if not given.")
    ] = None,
    record: Annotated[
        Path | None,
        options.folder("Record every event and decision, a folder per node, for `replay`."),
    ] = None,
    restart: Annotated[bool, says("Start a node again that ends unasked.", "--restart")] = False,
    for_: Annotated[float | None, says("Stop then.", "--for", min=0, metavar="SECONDS")] = None,
    dashboard: page.Dashboard = False,
    dashboard_host: page.DashboardHost = page.HOST,
    dashboard_port: page.DashboardPort = page.PORT,
    json: terminal.Json = False,
) -> None:
    """Run all nodes of a network on this machine, a process each; Ctrl-C stops them."""
    from rich.console import Console

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

    deployment = inferway.load(options.existing(file))
    if netns and dashboard:
        raise CommandError("a page cannot reach nodes in namespaces: leave --netns or --dashboard")
    beside = page.PageBeside(dashboard_host, dashboard_port) if dashboard else None
    with failing(ClusterError):
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
    with (
        nullcontext() if beside is None else closing(beside),
        _interrupted() as interrupted,
        failing(ClusterError, code=FAILED),
    ):
        try:
            with terminal.progress() as progress:
                total = len(nodes.topology.nodes)
                progress("starting the nodes", 0.0)
                nodes.begin(
                    ready=lambda names: progress(f"{names[-1]} is ready", len(names) / total)
                )
            try:
                if beside is not None:
                    urls = [f"http://{at.admin}" for at in nodes.addresses.values()]
                    beside.start(urls, folder=deployment.folder)
                (_document if json else _say)(nodes, None if beside is None else beside.url)
                _watch(nodes, board, for_, interrupted)
            except KeyboardInterrupt:
                if not json:
                    with terminal.unheard():
                        print("stopping")
        finally:
            nodes.stop()
    if lost and not restart:
        raise CommandError(
            f"not all nodes ran to the end; what they said is in {nodes.run}", FAILED
        )


@contextmanager
def _interrupted() -> Iterator[Callable[[], bool]]:
    """Have SIGTERM and SIGHUP interrupt as Ctrl-C does; tell whether one of them has come.

    An exception in the middle of anything may come in the middle of a finalizer, and is lost there.
    """
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    # Ignored or not before: these are meant for whoever runs the nodes. But the end of a terminal
    # is not, where `nohup` has said so.
    kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    meant = [signal.SIGINT, signal.SIGTERM, *([] if kept else [signal.SIGHUP])]
    before = {one: signal.signal(one, interrupt) for one in meant}
    try:
        yield lambda: bool(came)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@terminal.unheard()
def _document(nodes: LocalCluster, shown_at: str | None) -> None:
    reached = {
        name: {
            "url": at.url,
            "peer": at.peer,
            "control": at.control,
            "admin": f"http://{at.admin}",
            "reach": nodes.command_at(name),
            "log": str(process.log),
        }
        for name, process in nodes.nodes.items()
        for at in (nodes.addresses[name],)
    }
    terminal.document(
        {
            "schema": 1,
            "tasks": {task: {"entries": names} for task, names in nodes.entries.items()},
            "network": {
                "nodes": reached,
                "addresses": str(nodes.addresses_file),
                "run": str(nodes.run),
                "state": str(nodes.state),
            },
            **({} if shown_at is None else {"dashboard": shown_at}),
        },
        indent=None,
    )


@terminal.unheard()
def _say(nodes: LocalCluster, shown_at: str | None) -> None:
    entries = dict.fromkeys(name for names in nodes.entries.values() for name in names)
    for name in entries:
        print(f"requests enter at {name}: {nodes.url(name)}")
    if nodes.emulation is not None:
        first = next(iter(entries))
        inside = ["nsenter", f"--net={nodes.emulation.namespace(first)}", "curl", nodes.url(first)]
        print(f"from inside its namespace only: {shlex.join(inside)}/v2")
    else:
        drive = ["inferway", "drive", str(nodes.deployment.path)]
        drive += ["--addresses", str(nodes.addresses_file)]
        print(f"to load them all: {shlex.join(drive)}")
    if shown_at is not None:
        print(f"a page shows them at {shown_at}")
    print(f"addresses and logs are in {nodes.run}; Ctrl-C stops", flush=True)


def _watch(
    nodes: LocalCluster, board: Console | None, for_s: float | None, interrupted: Callable[[], bool]
) -> None:
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
    with closing(StatusPoller(nodes)) as poller, Live(console=board, auto_refresh=False) as live:
        live.update(_table(nodes, poller.poll()), refresh=True)
        while not ended():
            live.update(_table(nodes, poller.poll()), refresh=True)


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
        memory = [
            f"{told[key] / 2**20:,.1f}"
            for key in ("used_bytes", "budget_bytes")
            if told.get(key) is not None
        ]
        # The variants that run, over all tasks, with their copies.
        copies: Counter[str] = Counter()
        for key, count in told.get("running", {}).items():
            copies[key.rpartition("/")[2]] += count
        table.add_row(
            one.node,
            one.state,
            str(told.get("slot", "")),
            *rates,
            f"{per_s['cpu_s']:.0%}" if "cpu_s" in per_s else "",
            f"{len(told['alive'])} of {links.count(index)}" if "alive" in told else "",
            f"{' of '.join(memory)} MiB" if memory else "",
            ", ".join(f"{count} {variant}" for variant, count in sorted(copies.items())),
            told.get("degraded", ""),
        )
    return table


def certs(
    file: options.File,
    out: Annotated[Path, options.folder("Folder for the certificates and keys.")] = Path("certs"),
    days: Annotated[int, says("How long a new certificate holds.", min=1, metavar="N")] = 90,
    json: terminal.Json = False,
) -> None:
    """Make a test authority and a certificate per node, or renew those that need it."""
    from rich.table import Table

    from inferway.live.security.authority import issue
    from inferway.network import topology_of

    issued = issue(topology_of(inferway.load(options.existing(file))).nodes, out, days=days)
    if json:
        entries = [
            {name: str(value) for name, value in one._asdict().items()}
            | {"expires": one.expires.isoformat(timespec="seconds")}
            for one in issued
        ]
        places = {"folder": str(out), "certificates": entries}
        terminal.document({"schema": 1, "tasks": {}, "network": None, **places})
        return
    table = Table("name", "certificate", "key", "until", "", box=None, pad_edge=False)
    for one in issued:
        state = f"{one.state}: {one.reason}" if one.reason else one.state
        until = f"{one.expires:%Y-%m-%d}"
        table.add_row(one.name, one.certificate.name, one.key.name, until, state)
    authority, *nodes = issued
    terminal.show(table)
    print(f"In {out}. Give each node its own two files and {authority.certificate.name}.")
    print(f"{authority.key.name} makes certificates: keep it off the nodes.")
    if any(one.state == "renewed" for one in nodes):
        print("A running node takes renewed files on SIGHUP; its control port, at the next start.")
