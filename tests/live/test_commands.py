"""`inferway serve` and `inferway drive` as two processes, as people run them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway import catalog
from inferway.cli import main
from inferway.live import Limits, ServeError, ServerOptions

LIMIT_S = 120.0
POLICY = '''
from typing import NamedTuple

class Last(NamedTuple):
    """Always the last server."""
    last: int

    @classmethod
    def build(cls, fleet, *, target, rate_per_s):
        return cls(int(fleet.first[-1]) - 1)

    def choose(self, site, request, draw):
        return self.last
'''


@contextmanager
def served(*arguments: str | Path, cwd: Path) -> Iterator[dict[str, Any]]:
    """Run `inferway serve` on free ports; it must end with 0 and print one line."""
    command = [sys.executable, "-m", "inferway", "serve", *map(str, arguments), "--json"]
    command += ["--http-port", "0", "--admin-port", "0", "--log-level", "error"]
    with subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, process.communicate(timeout=LIMIT_S)[1]
            yield json.loads(line)
        finally:
            process.send_signal(signal.SIGTERM)
            rest, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, rest, errors) == (0, "", "")


def get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S) as answer:
        assert answer.status == 200
        content = answer.read()
        assert isinstance(content, bytes)
        return content


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Serve the file for tests that leave no trace; gives what is said when it is ready."""
    folder = tmp_path_factory.mktemp("served")
    with served(written(folder).name, cwd=folder) as said:
        yield said


def written(folder: Path) -> Path:
    """Write a deployment file with the zoo's fastest and slowest variants."""
    fast, *_, slow = catalog.profiles().values()
    path = folder / "digits.yaml"
    path.write_text(
        "tasks:\n  digits:\n"
        f"    accuracy_target: {(fast.accuracy + slow.accuracy) / 2:.3f}\n"
        "    variants:\n"
        f"      {fast.name}: {{model: zoo://digits/{fast.name}}}\n"
        f"      {slow.name}: {{model: zoo://digits/{slow.name}}}\n"
        "workload:\n  digits: {arrivals: {process: poisson, rate: 100/s}}\n"
    )
    return path


def test_serve_and_drive(ready: dict[str, Any], file: Path) -> None:
    assert ready["schema"] == 1
    assert ready["ready"] is True
    get(ready["http_port"], "/v2/health/ready")
    assert b"inferway_accuracy_target_ratio" in get(ready["admin_port"], "/metrics")
    url = f"http://127.0.0.1:{ready['http_port']}"
    command = [sys.executable, "-m", "inferway", "drive", str(file), "--url", url]
    done = subprocess.run(
        [*command, "--duration", "2", "--json"], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    task = json.loads(done.stdout)["tasks"]["digits"]
    assert task["answered"] + task["rejected"] == task["offered"] > 100
    assert 0 < task["accuracy"] <= 1
    assert sum(task["shares"].values()) == pytest.approx(1)
    words = subprocess.run(
        [*command, "--duration", "0.5"], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert words.returncode == 0, words.stderr
    assert "accuracy, by labels" in words.stdout


def test_a_policy_on_the_command_line_starts_from_the_current_folder(
    file: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.py").write_text(POLICY)
    with served(file, "--policy", "./mine.py:Last", cwd=elsewhere) as ready:
        url = f"http://127.0.0.1:{ready['http_port']}"
        command = [sys.executable, "-m", "inferway", "drive", str(file), "--url", url]
        done = subprocess.run(
            [*command, "--duration", "0.5", "--json"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    (slowest,) = json.loads(done.stdout)["tasks"]["digits"]["shares"]
    variants = inferway.load(file).tasks["digits"].variants.values()
    assert slowest == max(variants, key=lambda one: one.service_on("cpu").mean_s).name


def test_a_taken_port_is_said(ready: dict[str, Any], file: Path) -> None:
    command = [sys.executable, "-m", "inferway", "serve", str(file), "--admin-port", "0"]
    done = subprocess.run(
        [*command, "--http-port", str(ready["http_port"]), "--log-level", "error"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 1
    option = f"--http-port {ready['http_port']} at 127.0.0.1"
    assert done.stderr == f"inferway: {option}: something listens there already\n"


def test_driving_nothing_is_said(file: Path) -> None:
    command = [sys.executable, "-m", "inferway", "drive", str(file)]
    done = subprocess.run(
        [*command, "--url", "http://127.0.0.1:9", "--json"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("inferway: no server answers at http://127.0.0.1:9")


def test_conformance_of_a_served_file(
    ready: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["conformance", f"http://127.0.0.1:{ready['http_port']}"]
    code = main([*command, "--json"])
    said = capsys.readouterr().out
    assert code == 0, said
    assert json.loads(said)["passed"] is True
    assert main(command) == 0
    assert "Open Inference Protocol v2" in capsys.readouterr().out


def test_caps_are_options(monkeypatch: pytest.MonkeyPatch, examples: Path) -> None:
    seen: list[Limits] = []
    monkeypatch.setattr("inferway.live.serve", lambda *_, **given: seen.append(given["limits"]))
    file = str(examples / "digits.yaml")
    caps = ["--max-body", "1", "--max-elements", "5", "--max-connections", "2"]
    caps += ["--max-json", "4", "--max-memory", "9", "--max-bodies", "8"]
    caps += ["--max-queued", "3", "--receive-timeout", "6", "--idle-timeout", "7"]
    for given in ([], caps):
        assert main(["serve", file, *given]) == 0
    mib = 1024**2
    assert seen == [
        Limits(),
        Limits(
            body_bytes=mib,
            json_bytes=4 * mib,
            memory_bytes=9 * mib,
            bodies_bytes=8 * mib,
            elements=5,
            connections=2,
            queued_bytes=3 * mib,
            receive_s=6,
            idle_s=7,
        ),
    ]


NETWORK = """
tasks:
  digits:
    variants:
      tiny: {accuracy: 0.9, service: {mean: 1 ms}, model: "https://models.example/tiny.onnx",
             digest: "sha256:%s", size: 1 MiB}
nodes:
  edge: {limits: {memory: 64 MiB}}
  cloud: {repository: true, instances: {digits/tiny: 1}}
network:
  links: [{between: [edge, cloud], rtt: 1 ms}]
"""


@pytest.mark.parametrize(
    ("command", "given", "expected"),
    [
        ("serve", [], (32, 16, 8)),
        ("serve", ["--max-memory", "9", "--max-json", "3"], (9, 16, 3)),
        ("serve", ["--max-bodies", "7"], (32, 7, 8)),
        ("node", [], (64, 256, 8)),
        ("node", ["--max-memory", "9", "--max-bodies", "7", "--max-json", "3"], (9, 7, 3)),
    ],
)
def test_limits_of_a_node_are_in_the_file(
    monkeypatch: pytest.MonkeyPatch,
    examples: Path,
    tmp_path: Path,
    command: str,
    given: list[str],
    expected: tuple[int, int, int],
) -> None:
    seen: list[Limits] = []

    def serve(*_: object, limits: Limits, **__: object) -> None:
        seen.append(limits)
        raise ServeError("that is all")

    def node(*given: object, **_: object) -> None:
        (options,) = (one for one in given if isinstance(one, ServerOptions))
        serve(limits=options.limits or Limits())

    monkeypatch.setattr("inferway.live.serve", serve)
    monkeypatch.setattr("inferway.live.LiveNode", node)
    if command == "serve":
        file = examples / "digits.yaml"
        limits = "limits: {memory: 32 MiB, bodies: 16 MiB}"
        text = file.read_text().replace("buffer: 64", limits)
    else:
        text, given = NETWORK % ("0" * 64), ["--name", "edge", "--state", str(tmp_path), *given]
    path = tmp_path / "file.yaml"
    path.write_text(text)
    assert main([command, str(path), *given]) != 0
    mib = 1024**2
    (limits,) = seen
    found = (limits.memory_bytes, limits.bodies_bytes, limits.json_bytes)
    assert found == tuple(number * mib for number in expected)


SLOW = '''
import pathlib
import time
from typing import NamedTuple

class Slow(NamedTuple):
    """Takes a minute to be built."""
    last: int

    @classmethod
    def build(cls, fleet, *, target, rate_per_s):
        pathlib.Path("building").touch()
        time.sleep(60)
        return cls(0)

    def choose(self, site, request, draw):
        return self.last
'''


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_policy_is_loaded_ends_it_at_once(
    file: Path, tmp_path: Path, until: Any, number: signal.Signals
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "inferway", "serve", str(file), "--policy", "slow.py:Slow"]
    command += ["--http-port", "0", "--admin-port", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        until(lambda: (tmp_path / "building").exists())
        process.send_signal(number)
        out, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out, errors) == (0, "", "")
