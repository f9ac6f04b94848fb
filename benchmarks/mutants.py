"""Whether tests notice what is broken: small faults set into the code, one at a time.

    python benchmarks/mutants.py [--source DIR] [--count N] [--seed S] [FILE ...]
                                 [--tests PATH ...] [--limit SECONDS] [--json FILE]

Draws so many mutants from the files given (by default the request path and the decisions of a
node) and runs tests on each in a copy of the clone, those that need no servers first. A mutant is
caught where a test fails or does not end within the limit; those that survive are printed with
their lines. A survivor is not always a fault of the tests: some mutants change nothing that anybody
could see.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    ["tests/unit/live"],
    ["tests/live", "--deselect", "tests/live/test_soak.py"],
)
"""Run one after the other, until one fails."""
PATHS = (
    *("live/http/connection.py", "live/http/infer*.py", "live/http/routes.py", "live/site.py"),
    *(
        "live/pool.py",
        "live/servers.py",
        "live/desk.py",
        "live/queues.py",
        "live/service.py",
        "live/settlement.py",
    ),
    *("live/departures.py", "live/reassignment.py", "live/shedding.py", "live/rejection.py"),
    *("live/instance.py", "live/local.py", "live/batch*.py", "live/stats.py", "live/counters.py"),
    *("network/offers.py", "placement/moves.py", "live/node/slots.py", "live/node/offer_table.py"),
    *(
        "live/node/placement.py",
        "live/node/reconciler.py",
        "network/node.py",
        "live/node/fleets.py",
    ),
    *("live/node/demand.py", "live/node/heard.py", "live/hops/breaker.py"),
    *("live/upstream/breaker.py", "network/offers.py"),
)
"""The request path and a node's decisions, by the names of several versions."""
COPIED = ("src", "tests", "examples", "docs", "benchmarks", "deploy", "zoo")
COMPARED = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
COMPUTED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}


@dataclass(frozen=True)
class Mutant:
    """One fault: what stands at a place of a file, and what stands there instead."""

    file: str
    line: int
    start: int
    end: int
    was: str
    becomes: str


def mutants_of(file: Path, name: str) -> Iterator[Mutant]:
    """List every fault that could be set into a file."""
    text = file.read_text(encoding="utf-8")
    starts = [0]
    for row in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(row.encode()))
    raw = text.encode()

    def place(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def source(node: ast.expr | ast.stmt) -> str:
        start, end = place(node)
        return raw[start:end].decode()

    def of(node: ast.expr | ast.stmt, becomes: str) -> Mutant:
        return Mutant(name, node.lineno, *place(node), source(node), becomes)

    tree = ast.parse(text)
    prose = set(_never_run(tree))
    for node in ast.walk(tree):
        if node in prose:
            continue
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
                yield of(node, f"{source(left)} {COMPARED[type(op)]} {source(right)}")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in COMPUTED:
                yield of(node, f"({source(left)}) {COMPUTED[type(op)]} ({source(right)})")
            case ast.BoolOp(op=op, values=[left, *rest]):
                word = "or" if isinstance(op, ast.And) else "and"
                yield of(node, f" {word} ".join(f"({source(one)})" for one in [left, *rest]))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield of(node, f"({source(operand)})")
            case ast.Constant(value=bool(value)):
                yield of(node, str(not value))
            case ast.Constant(value=int(value)):
                yield of(node, str(value + 1))
            case ast.If(test=test) if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                yield of(test, f"not ({source(test)})")
            case ast.Expr(value=ast.Call()):
                yield of(node, "pass")
            case ast.Return(value=value) if value is not None and not isinstance(
                value, ast.Constant
            ):
                yield of(node, "return None")


def _never_run(tree: ast.Module) -> Iterator[ast.AST]:
    """List what is for readers and type checkers alone: annotations, `TYPE_CHECKING`, logging."""
    for node in ast.walk(tree):
        hidden: list[ast.AST | None] = []
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                every = [*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs]
                hidden = [node.returns, *(one.annotation for one in every)]
            case ast.AnnAssign():
                hidden = [node.annotation]
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                hidden = [node]
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=logger))) if "log" in ast.unparse(
                logger
            ):
                hidden = [node]
            case ast.Raise() | ast.Assert():
                hidden = [node]
        for one in hidden:
            if one is not None:
                yield from ast.walk(one)


def drawn(source: Path, files: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw mutants of all files together, the same for the same code and seed."""
    package = source / "src" / "inferway"
    found = [
        mutant
        for pattern in files
        for file in sorted(package.glob(pattern))
        for mutant in mutants_of(file, str(file.relative_to(source)))
    ]
    return random.Random(seed).sample(found, min(count, len(found)))


def copied(source: Path, folder: Path) -> Path:
    """Copy what tests need of a clone."""
    clone = folder / "clone"
    skipped = shutil.ignore_patterns("__pycache__", "*.pyc", "out")
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, clone / name, ignore=skipped)
    for file in source.iterdir():
        if file.is_file() and file.name != ".git":
            shutil.copy2(file, clone / file.name)
    shared = source.parent / "shared"
    if shared.exists():
        (folder / "shared").symlink_to(shared.resolve())
    return clone


def failing(clone: Path, tests: Sequence[str], limit_s: float) -> str | None:
    """Run tests until the first that fails; its name, or None where all pass."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "--tb=no"),
            *("-p", "no:cacheprovider", "--reruns", "0", *tests),
        ],
        cwd=clone,
        env=os.environ | {"PYTHONPATH": str(clone / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"no end within {limit_s:g} s"
    if process.returncode == 0:
        return None
    rows = [row for row in output.splitlines() if row.startswith(("FAILED", "ERROR"))]
    return rows[0][:160] if rows else f"pytest ended with {process.returncode}"


def main() -> None:
    """Draw, try and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="below src/inferway; may have *")
    parser.add_argument("--source", type=Path, default=ROOT, help="the clone (default: this one)")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="+", help="in place of those of the live server")
    parser.add_argument("--limit", type=float, default=900.0, help="of one run of tests, s")
    parser.add_argument("--json", type=Path, help="keep what is known here, and go on from it")
    arguments = parser.parse_args()
    source = arguments.source.resolve()
    mutants = drawn(source, arguments.files or PATHS, arguments.count, arguments.seed)
    known: dict[str, str | None] = {}
    if arguments.json and arguments.json.is_file():
        known = {row["key"]: row["caught_by"] for row in json.loads(arguments.json.read_text())}
    rows, caught = [], 0
    with tempfile.TemporaryDirectory() as folder:
        clone = copied(source, Path(folder))
        for number, mutant in enumerate(mutants, 1):
            key = f"{mutant.file}:{mutant.start}:{mutant.becomes}"
            began = time.perf_counter()
            if key not in known:
                file = clone / mutant.file
                whole = file.read_bytes()
                file.write_bytes(
                    whole[: mutant.start] + mutant.becomes.encode() + whole[mutant.end :]
                )
                runs = [arguments.tests] if arguments.tests else TESTS
                reasons = (failing(clone, tests, arguments.limit) for tests in runs)
                known[key] = next((reason for reason in reasons if reason), None)
                file.write_bytes(whole)
            caught += known[key] is not None
            rows.append({"key": key, "caught_by": known[key], **asdict(mutant)})
            print(
                f"{number:3} {mutant.file}:{mutant.line}  {mutant.was[:50]!r} -> "
                f"{mutant.becomes[:50]!r}\n    {known[key] or 'SURVIVES'} "
                f"({time.perf_counter() - began:.0f} s)",
                flush=True,
            )
            if arguments.json:
                arguments.json.write_text(json.dumps(rows, indent=1))
    print(f"{caught} of {len(mutants)} mutants caught")


if __name__ == "__main__":
    main()
