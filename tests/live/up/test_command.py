"""``inferway up`` as a person runs it, over stand-ins for nodes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inferway.deployment import Deployment

LIMIT_S = 60.0
STAND_IN = Path(__file__).parent / "stand_in.py"
PROGRAM = """\
import json, os, signal, sys
from inferway.cli import main
from inferway.lab import LocalCluster
whims = json.loads(os.environ.get("WHIMS", "{}"))
if "HEARS" in os.environ:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
class Last:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
def wait(self, timeout_s=None, wait=LocalCluster.wait):
    Last()
    return wait(self, timeout_s)
if "up" in whims:
    LocalCluster.wait = wait
LocalCluster.node_command = lambda self, name: [
    sys.executable, "-S", "-u", os.environ["STAND_IN"], name, str(self.addresses_file),
    whims.get(name, ""),
]
sys.exit(main(sys.argv[1:]))
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(deployment: Deployment, tmp_path: Path) -> Iterator[Start]:
    """Give a function that starts ``inferway up FILE``; it ends with the test."""
    made: list[subprocess.Popen[str]] = []

    def begin(
        *options: str,
        whims: dict[str, str] | None = None,
        out: int = subprocess.PIPE,
        deaf: str = "",
    ) -> subprocess.Popen[str]:
        arguments = ["up", str(deployment.path), "--run", str(tmp_path / "run"), *options]
        environment = {
            **os.environ,
            "STAND_IN": str(STAND_IN),
            "WHIMS": json.dumps(whims or {}),
            "TERM": "xterm",
        }
        if not deaf:  # though nohup may have started these tests
            environment["HEARS"] = "1"
        process = subprocess.Popen(
            # As a shell's background starts it.
            [*("sh", "-c", f'trap "" {deaf}; exec "$@"', "sh")] * bool(deaf)
            + [sys.executable, "-c", PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        made.append(process)
        return process

    yield begin
    for process in made:
        process.terminate()
        process.communicate(timeout=LIMIT_S)


def lines_until(process: subprocess.Popen[str], wanted: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or wanted not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    return lines


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_says_where_requests_enter_and_stops_when_asked(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    process = start()
    said = "".join(lines_until(process, "Ctrl-C stops"))
    addresses = tmp_path / "run" / "addresses.json"
    edge = json.loads(addresses.read_text())["edge"]
    assert f"requests enter at edge: http://{edge['http']}\n" in said
    assert f"--addresses {addresses}\n" in said
    process.send_signal(number)
    out, errors = process.communicate(timeout=LIMIT_S)
    assert (out, errors, process.returncode) == ("stopping\n", "", 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_in_a_shell_s_background_as_well(start: Start, number: signal.Signals) -> None:
    process = start(deaf="INT TERM")
    lines_until(process, "Ctrl-C stops")
    process.send_signal(number)
    out, errors = process.communicate(timeout=LIMIT_S)
    assert (out, errors, process.returncode) == ("stopping\n", "", 0)


def test_the_end_of_its_terminal_is_ignored_where_nohup_says_so(start: Start) -> None:
    process = start("--for", "3", deaf="HUP")
    lines_until(process, "Ctrl-C stops")
    process.send_signal(signal.SIGHUP)
    out, errors = process.communicate(timeout=LIMIT_S)
    assert (out, errors, process.returncode) == ("", "", 0)


def test_the_document_comes_when_all_are_ready(start: Start) -> None:
    process = start("--json")
    assert process.stdout is not None
    found = json.loads(process.stdout.readline())
    assert found["schema"] == 1
    assert found["tasks"] == {"digits": {"entries": ["edge"]}}
    assert set(found["network"]["nodes"]) == {"edge", "metro", "cloud"}
    assert re.fullmatch(r"http://127.0.0.1:\d+", found["network"]["nodes"]["edge"]["url"])
    assert found["network"]["nodes"]["edge"]["reach"] == []
    process.terminate()
    out, errors = process.communicate(timeout=LIMIT_S)
    assert (out, errors, process.returncode) == ("", "", 0)


def test_it_stops_by_itself(start: Start) -> None:
    process = start("--for", "0.2")
    out, errors = process.communicate(timeout=LIMIT_S)
    assert (errors, process.returncode) == ("", 0)
    assert "requests enter at edge" in out


def test_a_lost_node_is_an_error_in_the_end(start: Start) -> None:
    process = start("--json")
    assert process.stdout is not None
    assert process.stderr is not None
    admin = json.loads(process.stdout.readline())["network"]["nodes"]["metro"]["admin"]
    import urllib.request

    with urllib.request.urlopen(f"{admin}/v2/node") as answer:
        os.kill(json.load(answer)["pid"], signal.SIGKILL)
    assert process.stderr.readline().startswith("inferway: node metro was ended by SIGKILL; its")
    process.terminate()
    _, errors = process.communicate(timeout=LIMIT_S)
    assert errors.startswith("inferway: not all nodes ran to the end")
    assert process.returncode == 1


def test_an_interruption_that_is_lost_in_a_finalizer_ends_it_all_the_same(start: Start) -> None:
    process = start(whims={"up": "is interrupted there"})
    out, errors = process.communicate(timeout=LIMIT_S)
    assert "KeyboardInterrupt" in errors
    assert out.endswith("\nstopping\n")
    assert process.returncode == 0


def test_a_node_that_cannot_start_is_one_sentence(start: Start) -> None:
    process = start(whims={"cloud": "fails"})
    out, errors = process.communicate(timeout=LIMIT_S)
    assert (out, process.returncode) == ("", 1)
    assert errors == "inferway: node cloud ended with exit code 3: the model is not there\n"


def test_a_second_one_in_the_same_folder_is_refused(start: Start, tmp_path: Path) -> None:
    first = start("--json")
    lines_until(first, "{")
    addresses = (tmp_path / "run" / "addresses.json").read_bytes()
    second = start()
    out, errors = second.communicate(timeout=LIMIT_S)
    assert (out, second.returncode) == ("", 1)
    assert errors.startswith(f"inferway: another `up` runs in {tmp_path / 'run'}: stop it first")
    assert (tmp_path / "run" / "addresses.json").read_bytes() == addresses
    assert first.poll() is None


def test_a_file_without_a_network_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("tasks: {t: {variants: {a: {accuracy: 0.8, service: {rate: 3/s}}}}}\n")
    done = subprocess.run(
        [sys.executable, "-m", "inferway", "up", str(path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.startswith(f"inferway: {path}: network: there is none")


def test_a_terminal_shows_a_table(start: Start) -> None:
    here, there = pty.openpty()
    process = start("--for", "3", out=there)
    os.close(there)
    shown = ""
    end_s = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < end_s:
        if select.select([here], [], [], 0.1)[0]:
            try:
                shown += os.read(here, 1 << 16).decode()
            except OSError:  # the other end is closed
                break
    process.wait(LIMIT_S)
    os.close(here)
    assert process.returncode == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    rows = [line.split() for line in plain.splitlines() if line.startswith("edge")]
    # node, state, slot, asked/s, sent on/s, served/s, CPU, neighbors, memory, runs, degraded
    row = rows[-1]
    assert row[:3] == ["edge", "ready", "7"]
    assert 50 < float(row[3]) < 200
    assert row[4] == "0.0"
    assert row[6].endswith("%")
    assert " ".join(row[7:]) == "1 of 1 3.0 of 4.0 MiB 3 tiny the cloud is away"
    assert sum(line.startswith("cloud") for line in plain.splitlines()) >= 2
