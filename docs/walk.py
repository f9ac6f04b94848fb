"""Run every command and every piece of Python of the README, the tutorial and the guides.

    python docs/walk.py [--page NAME ...] [--json]

Each page has a copy of this checkout of its own, and caches of its own. Its commands run as they
are written, in its order and in one shell's folder; files that it names are written, and Python
that it does not name runs as a script, after the blocks before it whose names it uses. Servers go
on until the page ends or starts another in their place, as a reader would. Ports are those of the
page, so nothing else may listen there. What is not run is in `SKIPPED`, with its reason.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from page import Code, Command, steps

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs/tutorial.md", *sorted(ROOT.glob("docs/guides/*.md")))
LIMIT_S = 600.0
STOP_S = 60.0
# `demo --dashboard` shows how it ended until Ctrl-C.
SERVER = re.compile(r"inferway (?:(serve|up|node|dashboard)\b|demo\b.* --dashboard)")
READY = re.compile(r"Ctrl-C (?:stops|closes it)|^ready ", re.MULTILINE)
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "out", "dist", "build", "*.egg-info"
)


class Skipped(NamedTuple):
    """Parts that are not run: everything of a page (`*` for any) that has these words; and why."""

    page: str
    words: str
    why: str
    instead: str | None = None
    """A command that is run in its place."""
    unless: str | None = None
    """A module with which it is run after all."""


INDEX = "installs from a package index: the network"
ROOT_ONLY = "as root, with network namespaces; tests/live/emulation runs it"
MACHINES = "of several machines"
KEYS = "needs keys and certificates of one's own"
TORCH = "needs the extra `learn`"
SKIPPED = (
    Skipped("*", "git clone ", "the network; the page's folder is such a clone"),
    Skipped("*", "make demo", f"{INDEX}; what it runs then does run", "inferway demo"),
    Skipped("*", "make test", "the tests: `make test` runs them"),
    Skipped("*", "pip install", INDEX),
    Skipped(
        "README", "inferway train examples/edge-burst.yaml", "trains for ten minutes of CPU time"
    ),
    Skipped("README", "inferway node ", f"a node {MACHINES}, by addresses that the file lacks"),
    Skipped("conformance", "benchmarks/mlserver.py", "needs MLServer in an environment of its own"),
    Skipped("describe-a-network", "Interoute.gml", "needs a file of the Internet Topology Zoo"),
    Skipped("dashboard", "http://10.0.0.7:8002", MACHINES),
    Skipped("digits-zoo", "inferway zoo build", "trains the zoo: eight minutes of CPU time"),
    Skipped("digits-zoo", "inferway zoo profile", "measures all seven models for minutes"),
    Skipped("drive", "--keys keys.txt", KEYS),
    Skipped("drive", "--key-file keys.txt", KEYS),
    Skipped("drive", "Access(key=key", KEYS),
    Skipped("emulate-a-network", "", ROOT_ONLY),
    Skipped("kubernetes", "", "needs a cluster, with Helm and an image"),
    Skipped("run-a-network", "netns=True", ROOT_ONLY),
    Skipped("run-a-network", "/v2/models/digits-2/infer", "asks the network that root broke"),
    Skipped("run-a-network", "systemctl", "as root, with systemd"),
    Skipped("run-a-network", "--name base-7", MACHINES),
    Skipped("serve-on-ray", "", "needs the extra `ray-serve`; tests/live runs its example"),
    Skipped("train-a-scheduler", "final_sigma=0.3", "trains for ten minutes of CPU time"),
    Skipped("train-a-scheduler", "--outages 1h/60s", "trains for ten minutes of CPU time"),
    Skipped("train-a-scheduler", "benchmarks/training.py", "measures for many minutes"),
    Skipped("train-a-scheduler", "", TORCH, unless="torch"),
    Skipped("train-with-gymnasium", "stable_baselines3", TORCH, unless="stable_baselines3"),
    Skipped("export-a-model", "net.py", TORCH, unless="torch"),
    Skipped("export-a-model", "digits", f"{TORCH}, for one of its models", unless="torch"),
    Skipped("ten-minutes", "net.py", TORCH, unless="torch"),
    Skipped("ten-minutes", " digits.yaml", f"{TORCH}, for one of its models", unless="torch"),
)


class Step(NamedTuple):
    """One command or piece of Python, and how it ended: `code` is None where it was skipped."""

    page: str
    line: int
    text: str
    code: int | None
    took_s: float
    note: str = ""
    output: str = ""

    @property
    def failed(self) -> bool:
        """Tell whether it ran and did not end with 0."""
        return self.code not in (0, None)

    def __str__(self) -> str:
        first, *more = self.text.splitlines()
        ended = "skipped" if self.code is None else f"{self.code:>3} {self.took_s:8.1f} s"
        line = f"{self.page:26} {ended:>14}  {first}{' ...' if more else ''}"
        return f"{line}   [{self.note}]" if self.note else line


class Server:
    """A server that a page started, which goes on."""

    def __init__(self, command: Command, text: str, reader: Reader) -> None:
        self.command = command
        self.places = places(command.text)
        self._begin_s = time.monotonic()
        self._log = reader.scratch / f"server-{command.line}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", f"exec {text}"],
                cwd=reader.folder,
                env=reader.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        while self._process.poll() is None and not READY.search(self.output):
            if time.monotonic() - self._begin_s > LIMIT_S:
                break
            time.sleep(0.05)
        self.ready = self._process.poll() is None and bool(READY.search(self.output))
        self.took_s = time.monotonic() - self._begin_s

    @property
    def output(self) -> str:
        """All that it has printed."""
        return self._log.read_text(errors="replace")

    def stop(self, page: str) -> Step:
        """Interrupt it and say how it ended."""
        ended_before = self._process.poll() is not None
        if not ended_before:
            self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        note = "" if self.ready else "never ready"
        if self.ready:
            note = "ended by itself" if ended_before else "server, stopped"
        failed = not self.ready or ended_before
        return Step(
            page,
            self.command.line,
            self.command.text,
            code or int(failed),
            self.took_s,
            note,
            self.output,
        )


def places(command: str) -> set[str]:
    """Name what a server holds that another one cannot have beside it: its ports, its folder."""
    kind = SERVER.search(command)
    assert kind is not None
    held = set()
    if kind[1] == "serve":
        port = re.search(r"--http-port (\d+)", command)
        held.add(port[1] if port else "8000")
    elif kind[1] == "up":
        held.add("the nodes")
    if kind[1] == "dashboard" or "--dashboard" in command:
        held.add("8004")
    return held


class Reader:
    """Somebody who does what a page says, in a copy of this checkout."""

    def __init__(self, page: Path, scratch: Path, tell: Callable[[Step], None]) -> None:
        self.page = page
        self.scratch = scratch
        self.folder = scratch / "inferway"
        self.environment = environment(scratch)
        self._tell = tell
        self._servers: list[Server] = []
        self._codes: list[Code] = []
        self._addresses: dict[str, str] = {}
        shutil.copytree(ROOT, self.folder, ignore=NOT_COPIED, symlinks=True)
        (self.folder / ".venv").symlink_to(sys.prefix)

    def read(self) -> None:
        """Do all of it, from the top down."""
        try:
            for step in steps(self.page):
                if isinstance(step, Command):
                    self._do(step)
                elif step.file is not None:
                    file = self.folder / step.file
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(step.text, encoding="utf-8")
                elif step.language == "python":
                    self._run_code(step)
        finally:
            self._stop(self._servers)

    def _do(self, command: Command) -> None:
        skipped = self._skipped(command.text, root=command.root)
        if skipped is not None:
            self._tell(Step(self.page.stem, command.line, command.text, None, 0.0, skipped.why))
            if skipped.instead is None:
                return
            command = command._replace(text=skipped.instead)
        text = command.text
        for shown, real in self._addresses.items():
            text = text.replace(shown, real)
        if SERVER.search(text):
            self._stop([one for one in self._servers if one.places & places(text)])
            server = Server(command, text, self)
            self._servers.append(server)
            self._addresses |= addresses(command.prints, server.output)
            if not server.ready:
                self._stop([server])
            return
        # The next command is typed where this one has left the shell.
        where = self.scratch / "where"
        script = f"{text}\ncode=$?; pwd > {where}; exit $code"
        self._tell(self._run(command.line, command.text, ["bash", "-c", script]))
        if where.exists():
            self.folder = Path(where.read_text().strip())

    def _run_code(self, code: Code) -> None:
        parts = [*before(code, self._codes), code]
        self._codes.append(code)
        skipped = self._skipped(code.text)
        text = f"python, {len(code.text.splitlines())} lines from line {code.line}"
        if skipped is not None:
            self._tell(Step(self.page.stem, code.line, text, None, 0.0, skipped.why))
            return
        file = self.scratch / f"line_{code.line}.py"
        file.write_text("\n".join(textwrap.dedent(one.text) for one in parts), encoding="utf-8")
        self._tell(self._run(code.line, text, [sys.executable, str(file)]))

    def _run(self, line: int, text: str, command: list[str]) -> Step:
        begin_s = time.monotonic()
        # A group of its own: what it has started ends with it.
        with (self.scratch / "output").open("w+") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            note = ""
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code, note = process.wait(), f"not done after {LIMIT_S:.0f} s"
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            output.seek(0)
            printed = output.read()
        return Step(self.page.stem, line, text, code, time.monotonic() - begin_s, note, printed)

    def _stop(self, servers: Sequence[Server]) -> None:
        for server in list(servers):
            self._servers.remove(server)
            self._tell(server.stop(self.page.stem))

    def _skipped(self, text: str, *, root: bool = False) -> Skipped | None:
        for one in SKIPPED:
            if one.page not in ("*", self.page.stem) or one.words not in text:
                continue
            if one.unless is None or find_spec(one.unless) is None:
                return one
        return Skipped(self.page.stem, text, "as root") if root else None


def environment(scratch: Path) -> dict[str, str]:
    """Give what a page's commands see: this interpreter's programs, and caches that start empty.

    Compiled code alone is the user's: its names say all that is in it.
    """
    compiled = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "inferway/compiled"
    compiled.mkdir(parents=True, exist_ok=True)
    (scratch / "cache/inferway").mkdir(parents=True)
    (scratch / "cache/inferway/compiled").symlink_to(compiled)
    # An answer that is an error is a failure of curl's, too.
    (scratch / ".curlrc").write_text("fail-with-body\n")
    return os.environ | {
        "CURL_HOME": str(scratch),
        "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "XDG_DATA_HOME": str(scratch / "data"),
        "XDG_STATE_HOME": str(scratch / "state"),
        "MPLBACKEND": "Agg",
    }


def addresses(shown: str, printed: str) -> dict[str, str]:
    """Pair the addresses that a page shows with those that a server has, by what is beside them."""
    pairs = {}
    for line in shown.splitlines():
        for port in re.findall(r"127\.0\.0\.1:(\d+)", line):
            likewise = re.escape(line).replace(port, r"(\d+)")
            found = re.search(likewise, printed)
            if found is not None and found[1] != port:
                pairs[f"127.0.0.1:{port}"] = f"127.0.0.1:{found[1]}"
    return pairs


def before(code: Code, earlier: Sequence[Code]) -> list[Code]:
    """Find the blocks that a block goes on with: those that bind the names that it leaves open."""
    needed, found = free_names(code.text), []
    for one in reversed(earlier):
        if needed & bound_names(one.text):
            found.append(one)
            needed = needed - bound_names(one.text) | free_names(one.text)
    return found[::-1]


def bound_names(code: str) -> set[str]:
    """Find the names that a block assigns, defines or imports, at whatever depth."""
    names = set()
    for node in ast.walk(ast.parse(textwrap.dedent(code))):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names.add((other or name).partition(".")[0])
    return names


def free_names(code: str) -> set[str]:
    """Find the names that a block uses and does not bind."""
    tree = ast.parse(textwrap.dedent(code))
    used = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}
    return used - bound_names(code) - set(dir(builtins))


def walk(pages: Sequence[Path], tell: Callable[[Step], None]) -> None:
    """Read pages one after the other, each in a folder of its own that goes when it ends."""
    for page in pages:
        with tempfile.TemporaryDirectory(prefix=f"walk-{page.stem}-") as scratch:
            Reader(page, Path(scratch), tell).read()


def main() -> int:
    """Read them; 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [page.stem for page in PAGES]
    parser.add_argument("--page", action="append", choices=names, metavar="NAME", help="only this")
    parser.add_argument("--json", action="store_true", help="all of it at the end, as JSON")
    options = parser.parse_args()
    done: list[Step] = []

    def tell(step: Step) -> None:
        done.append(step)
        if options.json:
            return
        print(step, flush=True)
        if step.failed:
            print(textwrap.indent("\n".join(step.output.splitlines()[-20:]), "    | "), flush=True)

    # In a shell's background Ctrl-C is ignored, by all that is started from here, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pages = [page for page in PAGES if not options.page or page.stem in options.page]
    walk(pages, tell)
    skipped = sum(step.code is None for step in done)
    failed = sum(step.failed for step in done)
    counts = {
        "pages": len(pages),
        "ended as they should": len(done) - skipped - failed,
        "failed": failed,
        "skipped": skipped,
    }
    if options.json:
        print(json.dumps({"counts": counts, "steps": [step._asdict() for step in done]}, indent=2))
    else:
        print(", ".join(f"{count} {what}" for what, count in counts.items()))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
