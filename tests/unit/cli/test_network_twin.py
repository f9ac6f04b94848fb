"""``inferway simulate`` on a file with a network."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import inferway
from inferway.cli import main

ROOT = Path(__file__).parents[3]
TREE = ROOT / "examples" / "topology-1.yaml"
KEYS = {
    "ntag_ms",
    "mu_bytes_per_slot",
    "latency_s",
    "inaccuracy",
    "slots",
    "cpu_s_per_slot",
    "tiers",
}


def document(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return json.loads(output.out)


def sentence(capsys, *arguments):
    assert main([*map(str, arguments)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


def test_json_has_the_network_s_numbers(capsys) -> None:
    found = document(capsys, "simulate", TREE, "--slots", 240)
    network = found["network"]
    assert set(network) == KEYS
    assert network["slots"] == 240
    assert network["ntag_ms"] == pytest.approx(59.4, abs=0.2)
    assert network["mu_bytes_per_slot"] < 2 * 2**30
    assert found["policy"] == "infida"
    assert len(found["tasks"]) == 20
    served = sum(one["share"] for one in network["tiers"].values())
    assert served == pytest.approx(1)


def test_another_policy_and_the_regret(capsys) -> None:
    found = document(capsys, "simulate", TREE, "--slots", 3, "--policy", "olag", "--regret")
    assert found["policy"] == "olag"
    regret = found["network"]["regret"]
    assert regret["discounted"] < regret["plain"] < regret["bound"]


def test_words_and_figures(tmp_path, capsys) -> None:
    assert main(["simulate", str(TREE), "--slots", "5", "--out", str(tmp_path)]) == 0
    words = capsys.readouterr().out
    for told in ("gain per request (NTAG)", "By tier", "office", "By task", "detection-19"):
        assert told in words
    for name in ("gain", "allocation", "map"):
        assert str(tmp_path / f"{name}.png") in words.replace("\n", "")
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        assert (tmp_path / f"{name}.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("file", "options", "words"),
    [
        ("topology-1.yaml", ["--queries", "1e5"], "--queries is of one site's queues"),
        ("topology-1.yaml", ["--replications", "2"], "--replications is of one site's"),
        ("topology-1.yaml", ["--policy", "infda"], "did you mean 'infida'?"),
        ("topology-1.yaml", ["--policy", "tad-op"], "no placement policy 'tad-op'; there is"),
        ("paper-fleet.yaml", ["--slots", "5"], "has no `network`"),
        ("paper-fleet.yaml", ["--regret"], "has no `network`"),
    ],
)
def test_what_makes_no_sense_is_said(capsys, file, options, words) -> None:
    assert words in sentence(capsys, "simulate", ROOT / "examples" / file, *options)


def test_the_python_api_says_the_same() -> None:
    deployment = inferway.load(TREE)
    told: list[tuple[str, int]] = []
    result = inferway.simulate(
        deployment, slots=4, progress=lambda name, done: told.append((name, done))
    )
    assert told == [("infida", 1)] * 4
    assert result.tasks == {}
    assert len(result.to_frame()) == 4
    assert result.to_json()["network"]["slots"] == 4
    with pytest.raises(ValueError, match="`warmup` is of one site's queues"):
        inferway.simulate(deployment, warmup=5)
    alone = inferway.load(ROOT / "examples" / "paper-fleet.yaml")
    with pytest.raises(ValueError, match="no `network`"):
        inferway.simulate(alone, placement="olag")
    with pytest.raises(ValueError, match=r"dispatch.policy: .*olag"):
        inferway.simulate(alone, policy="olag")


def test_a_run_that_is_stopped_gives_what_is_known() -> None:
    stop = threading.Event()

    def after_three(name: str, done: int) -> None:
        seen.append(done)
        if len(seen) == 3:
            stop.set()

    seen: list[int] = []
    result = inferway.simulate(inferway.load(TREE), slots=50, stop=stop, progress=after_three)
    found = result.network
    assert found is not None
    assert found.slots == len(found.gain) == len(found.requests) == 3
    assert "interrupted" in found.notes[0]
    whole = inferway.simulate(inferway.load(TREE), slots=3).network
    assert whole is not None
    assert found.ntag_ms == whole.ntag_ms
    with pytest.raises(KeyboardInterrupt):
        inferway.simulate(inferway.load(TREE), slots=50, stop=stop)


def test_ctrl_c_prints_what_is_known() -> None:
    # Says on standard error when slots run, and then waits for the signal between two of them.
    code = (
        "import sys, inferway.twin.slots as slots\n"
        "from inferway.cli import main\n"
        "run, seen = slots.run_slots, []\n"
        "def told(more):\n"
        "    seen.append(more)\n"
        "    if len(seen) == 2:\n"
        "        print('running', file=sys.stderr, flush=True)\n"
        "        sys.stdin.readline()\n"
        "slots.run_slots = lambda *a, **k: run(*a, **{**k, 'progress': told})\n"
        f"sys.exit(main(['simulate', {str(TREE)!r}, '--slots', '100000', '--json']))\n"
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
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    found = json.loads(output)
    assert 2 <= found["network"]["slots"] < 100_000
    assert "interrupted" in found["notes"][0]
