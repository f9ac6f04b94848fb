"""``inferway simulate FILE --events``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inferway.cli import main
from inferway.deployment.nodes import MAX_HOPS

ROOT = Path(__file__).parents[3]
TREE = ROOT / "examples" / "topology-2.yaml"
SLOW = "rate: 7500/s"


@pytest.fixture
def quiet(tmp_path: Path) -> Path:
    file = tmp_path / "quiet.yaml"
    text = TREE.read_text().replace(SLOW, "rate: 40/s").replace("slot: 60 s", "slot: 20 s")
    file.write_text(text)
    return file


def test_json_has_the_slot_twin_s_keys_and_those_of_queues(quiet, capsys) -> None:
    command = ["simulate", str(quiet), "--slots", "3", "--policy", "static-greedy", "--json"]
    assert main(command) == 0
    slots = json.loads(capsys.readouterr().out)
    assert main([*command, "--events"]) == 0
    events = json.loads(capsys.readouterr().out)
    assert set(slots) == set(events)
    assert set(slots["network"]) < set(events["network"])
    assert set(slots["tasks"]) == set(events["tasks"])
    network = events["network"]
    assert network["ntag_ms"] == pytest.approx(slots["network"]["ntag_ms"], rel=0.02)
    assert network["lost"] == 0
    assert network["answered"] == 40 * 60
    assert 0 < network["p50_s"] <= network["p99_s"]
    assert sum(network["series"]["requests"]) == 40 * 60


def test_words_and_figures(quiet, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    options = ["--slots", "2", "--events", "--fetch-rate", "1 GB", "--out", str(out)]
    assert main(["simulate", str(quiet), *options]) == 0
    words = capsys.readouterr().out
    for told in ("gain per request (NTAG)", "latency, p99", "Answers by variant and place", "base"):
        assert told in words
    assert (out / "latency.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("file", "options", "words"),
    [
        (TREE, ["--events", "--regret"], "--regret is of whole slots"),
        (TREE, ["--fetch-rate", "1 GB"], "--fetch-rate needs --events"),
        (TREE, ["--events", "--fetch-rate", "fast"], 'such as "16 GiB"'),
        (TREE, ["--events", "--fetch-rate", "0 GB"], "not above 0"),
        (TREE, ["--events", "--queries", "10"], "--queries is of one site's queues"),
        (ROOT / "examples" / "paper-fleet.yaml", ["--events"], "does not take --events"),
    ],
)
def test_what_makes_no_sense_is_said(capsys, file, options, words) -> None:
    assert main(["simulate", str(file), *options]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert words in output.err


def test_ctrl_c_prints_what_is_known() -> None:
    # Says on standard error when requests run, and then waits for the signal between two blocks.
    code = (
        "import sys, inferway.twin.network.engine as engine\n"
        "from inferway.cli import main\n"
        "run, seen = engine.Engine.run, []\n"
        "def told(self, *arguments):\n"
        "    run(self, *arguments)\n"
        "    seen.append(1)\n"
        "    if len(seen) == 2:\n"
        "        print('running', file=sys.stderr, flush=True)\n"
        "        sys.stdin.readline()\n"
        "engine.Engine.run = told\n"
        f"sys.exit(main(['simulate', {str(TREE)!r}, '--events', '--slots', '2', '--policy', "
        "'static-greedy', '--json']))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stdin is not None
        assert process.stderr.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        process.stdin.write("on\n")
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    found = json.loads(output)
    assert found["network"]["answered"] >= 2 * 8192
    assert found["network"]["slots"] == 1
    assert "interrupted" in found["notes"][0]


CHAIN = """
tasks:
  digits:
    variants:
      small: {model: zoo://digits/small}
      large: {model: zoo://digits/large}
network:
  tree:
    - {tier: cloud, nodes: 1, repository: true}
"""
DEMAND = """
placement: {policy: static-greedy, slot: 5 s}
workload:
  digits: {arrivals: {process: poisson, rate: 20/s}}
"""


def chain(folder: Path, nodes: int) -> Path:
    """Nodes in a row; requests enter at the one end, and the other is the repository."""
    tiers = "".join(
        f"    - {{tier: n{i}, nodes: 1, rtt: 1 ms, budget: 10 kB}}\n" for i in range(1, nodes)
    )
    file = folder / "chain.yaml"
    file.write_text(CHAIN + tiers + DEMAND)
    return file


@pytest.mark.parametrize("nodes", [20, 64, MAX_HOPS + 1])
def test_a_long_chain_is_answered_from_its_other_end(nodes, tmp_path, capsys) -> None:
    file = chain(tmp_path, nodes)
    assert main(["check", str(file)]) == 0
    capsys.readouterr()
    assert main(["simulate", str(file), "--events", "--slots", "1", "--json"]) == 0
    network = json.loads(capsys.readouterr().out)["network"]
    assert network["lost"] == 0
    assert network["answered"] == network["series"]["requests"][0] > 0
    # There and back.
    assert network["p50_s"] > (nodes - 1) * 1e-3


@pytest.mark.parametrize("command", [["check"], ["simulate", "--events", "--slots", "1"]])
def test_a_longer_chain_is_refused(command, tmp_path, capsys) -> None:
    file = chain(tmp_path, MAX_HOPS + 2)
    assert main([command[0], str(file), *command[1:]]) != 0
    said = "".join(capsys.readouterr())
    assert "network: the way from n65 to the repository cloud goes over 65 links" in said
    assert "over 64 at most" in said
    assert "Traceback" not in said
