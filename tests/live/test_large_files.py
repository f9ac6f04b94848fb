"""Deployment files that ask for more than a machine has: refused fast, with the limit."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inferway.cli import main
from prepared import limited, prepared

BILLION = 1_000_000_000
LIMIT_S = 10.0
"""Of processor time, whatever else the machine does; a refusal takes a tenth of it."""
GIB = 2**30
ONE = "{v: {accuracy: 0.9, size: 1 MB, service: {mean: 1 ms}}}"
TREE = "[{tier: top, nodes: 1, repository: true}, {tier: base, nodes: %d, rtt: 4 ms}]"
LOAD = "{t: {arrivals: {process: poisson, rate: 1/s}, entries: {tier: base}}}"


def whole(**parts: Any) -> str:
    text = {"tasks": f"{{t: {{variants: {ONE}}}}}"} | parts
    return "".join(f"{key}: {value}\n" for key, value in text.items())


def network(nodes: int = 3, task: str = "", load: str = LOAD) -> str:
    return whole(
        tasks=f"{{t: {{{task}variants: {ONE}}}}}",
        network=f"{{tree: {TREE % nodes}}}",
        placement="{policy: infida}",
        workload=load,
    )


FILES = {
    "nodes": (network(BILLION), "network.tree[1].nodes: must be 1,000,000 or less, not 1000000000"),
    "nodes together": (network(1_000_000), "tiers have 1,000,001 nodes together, and 1,000,000"),
    "tasks": (network(task=f"count: {BILLION}, "), "tasks.t.count: must be 1,000,000 or less"),
    "tasks together": (
        network(task="count: 100001, "),
        "there are 100,001 tasks by `count`, and 100,000 are the most",
    ),
    "types": (
        network(200_000, "count: 100000, "),
        "100,000 tasks that enter at 200,000 nodes each are 20,000,000,000 request types",
    ),
    "copies": (network(task=f"max_instances: {BILLION}, "), "must be 1,000 or less"),
    "entries": (
        network(load=LOAD.replace("tier: base", f"tier: base, per_task: {BILLION}")),
        "per_task: must be 1,000,000 or less",
    ),
    "instances": (whole(nodes=f"{{here: {{instances: {{t/v: {BILLION}}}}}}}"), "t/v: must be "),
    "buffer": (whole(nodes=f"{{here: {{buffer: {BILLION}}}}}"), "nodes.here.buffer: must be "),
    "batch": (
        whole(
            tasks="{t: {variants: {v: {accuracy: 0.9, size: 1 MB, service: {mean: 1 ms}, "
            f"batch: {{sizes: [1, {BILLION}], service: [1 ms, 2 ms]}}}}}}}}}}"
        ),
        "batch.sizes[1]: must be 1,000,000 or less",
    ),
    "stages": (
        whole(
            tasks="{t: {variants: {v: {accuracy: 0.9, size: 1 MB, service: "
            f"{{distribution: erlang, stages: {BILLION}, mean: 1 ms}}}}}}}}}}"
        ),
        "service.stages: must be 1,000 or less",
    ),
    "bytes": ("tasks: [" + "x, " * 1_700_000 + "]\n", "5100010 bytes are too many"),
    "words": ("tasks: [" + "x" * 18 + ", x" * 500_000 + "]\n", "500,002 lines, commas and"),
    "lines": ("tasks:\n" + "- x\n" * 60_000, "60,001 lines, commas and brackets are too many"),
    "returns": ("tasks:\r" + "- x\r" * 60_000, "60,001 lines, commas and brackets are too many"),
    "aliases": (
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghi")),
        "more than 200000 values once aliases",
    ),
    "wrong items": (
        whole(network="{links: [" + "x, " * 40_000 + "]}"),
        "and 39,900 more problems",
    ),
    "wrong keys": (
        whole(nodes="\n" + "".join(f"  n{i}: {{a: 1, b: 2, c: 3}}\n" for i in range(8_000))),
        "and 23,900 more problems",
    ),
    "keys twice": ("a: 1\n" * 40_000, "more problems"),
    "no values": ("".join(f"k{i}:\n" for i in range(40_000)), "more problems"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_check_refuses_it_with_the_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text, part = FILES[name]
    file = tmp_path / "served.yaml"
    file.write_text(text, newline="")
    begun_s = time.process_time()
    assert main(["check", str(file)]) == 1
    took_s = time.process_time() - begun_s
    printed = capsys.readouterr()
    assert printed.err == ""
    assert part in printed.out
    assert printed.out.count("\n") <= 102
    assert took_s < LIMIT_S


def test_memory_stays_bounded(tmp_path: Path) -> None:
    for name in ("nodes", "tasks", "types", "words", "aliases", "wrong keys"):
        (tmp_path / f"{name}.yaml").write_text(FILES[name][0])
    # `ru_maxrss` would count this process, too: what it had before the program began stays in it.
    script = (
        "import sys; from inferway.cli import main; "
        "codes = [main(['check', file]) for file in sys.argv[1:]]; "
        "status = dict(line.split(':', 1) for line in open('/proc/self/status')); "
        "print(codes, status['VmHWM'].split()[0])"
    )
    files = sorted(map(str, tmp_path.glob("*.yaml")))
    ended = subprocess.run(
        prepared(limited("RLIMIT_AS", 8 * GIB), sys.executable, "-c", script, *files),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    codes, _, kib = ended.stdout.splitlines()[-1].rpartition(" ")
    assert json.loads(codes) == [1] * len(files)
    assert int(kib) < 1024**2


def test_what_there_is_no_memory_for_is_no_bug(tmp_path: Path) -> None:
    file = tmp_path / "served.yaml"
    nodes = "{here: {instances: {t/v: 1000000}, buffer: 1000000}}"
    load = "{t: {arrivals: {process: poisson, load: 0.5}}}"
    file.write_text(whole(nodes=nodes, workload=load))
    command = (sys.executable, "-m", "inferway", "simulate", str(file), "--queries", "1000")
    ended = subprocess.run(
        prepared(limited("RLIMIT_AS", 8 * GIB), *command),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "this needs more memory than there is" in ended.stderr
    assert "bug" not in ended.stderr


def test_a_large_file_that_is_right_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    links = ", ".join(f"{{between: [n{i}, n{i + 1}], rtt: 1 ms}}" for i in range(5_000))
    file = tmp_path / "served.yaml"
    file.write_text(whole(nodes="{n0: {repository: true}}", network=f"{{links: [{links}]}}"))
    assert main(["check", str(file)]) == 0
    assert "and 9799 warnings more" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("graph", "part"),
    [
        ("graph [\n" + " " * (33 << 20) + "]", "is larger than the limit of 33,554,432 bytes"),
        ("\n" * 200_000 + "grap [ ]", "is not a GML file"),
        (
            "graph [\nnode [ id 0 hyperedge 1 ]\n"
            + "".join(f"node [ id {i} ] edge [ source 0 target {i} ]\n" for i in range(1, 4_000))
            + "]",
            "stand for more than 2,000,000 links",
        ),
        ("graph [\n" + "a [ " * 5_000 + "] " * 5_000 + "]", "is not a GML file"),
    ],
    ids=["bytes", "lines", "hyperedges", "nested"],
)
def test_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str], graph: str, part: str) -> None:
    (tmp_path / "g.gml").write_text(graph)
    file = tmp_path / "served.yaml"
    file.write_text(
        whole(network="{gml: g.gml}", workload="{t: {arrivals: {process: poisson, rate: 1/s}}}")
    )
    begun_s = time.process_time()
    assert main(["check", str(file)]) == 1
    assert time.process_time() - begun_s < LIMIT_S
    printed = capsys.readouterr()
    assert part in printed.out + printed.err
    assert "bug" not in printed.err
