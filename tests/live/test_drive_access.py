"""The generator against real servers with keys and with certificates of an own authority."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from certificates import issue

import inferway
from inferway import loadgen
from inferway.cli import main
from inferway.live import Certificate, Keys

KEY = "a-key-of-enough-length"
_VARIANTS = "variants: {tiny: {model: zoo://digits/tiny}, large: {model: zoo://digits/large}}"
_FILE = f"""
tasks:
  digits: {{accuracy_target: 0.9, {_VARIANTS}}}
nodes:
  here: {{instances: {{digits/tiny: 1, digits/large: 1}}}}
workload:
  digits: {{arrivals: {{process: poisson, rate: 100/s}}}}
"""
_NETWORK = f"""
tasks:
  digits: {{{_VARIANTS}}}
nodes:
  edge-1: {{budget: 20 MB}}
  edge-2: {{budget: 20 MB}}
  cloud: {{repository: true}}
network:
  links:
    - {{between: [edge-1, cloud], rtt: 300 ms}}
    - {{between: [edge-2, cloud], rtt: 300 ms}}
placement: {{policy: infida, slot: 500 ms}}
workload:
  digits: {{arrivals: {{process: poisson, rate: 100/s}}}}
"""


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority and a certificate of it for localhost."""
    folder = tmp_path_factory.mktemp("certs")
    issue(["localhost", "elsewhere"], folder)
    return folder


@pytest.fixture
def certificate(certs: Path) -> Certificate:
    return Certificate(certs / "localhost.pem", certs / "localhost.key")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "digits.yaml"
    path.write_text(_FILE)
    return path


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The key in a file, and none in the environment."""
    monkeypatch.delenv("INFERWAY_KEY", raising=False)
    path = tmp_path / "keys.txt"
    path.write_text(f"{KEY}\n")
    return path


def secure(running: Any) -> str:
    return f"https://localhost:{running.server.http_port}"


def test_the_command_shows_the_key_of_a_file_or_of_the_environment(
    start: Any, file: Path, key_file: Path, monkeypatch: Any, capsys: Any, tmp_path: Path
) -> None:
    running = start(deployment=inferway.load(file), keys=Keys([KEY]))
    url = f"http://{running.url}"
    command = ["drive", str(file), "--url", url, "--duration", "0.5", "--json"]
    assert main(command) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert f"the server at {url} asks for a key: give one with --key-file FILE" in captured.err
    monkeypatch.setenv("INFERWAY_KEY", "")  # an empty variable is none
    assert main(command) == 1
    assert "asks for a key" in capsys.readouterr().err

    out = tmp_path / "out"
    assert main([*command, "--key-file", str(key_file), "--out", str(out)]) == 0
    captured = capsys.readouterr()
    task = json.loads(captured.out)["tasks"]["digits"]
    assert task["answered"] == task["offered"] == sum(running.site.stats.rows) > 20
    assert KEY not in captured.out + captured.err
    written = [one for one in out.iterdir() if one.is_file()]
    assert {one.suffix for one in written} == {".parquet", ".png", ".svg"}
    assert not any(KEY.encode() in one.read_bytes() for one in written)
    frame = pd.read_parquet(out / "requests.parquet")
    assert not frame.astype(str).apply(lambda column: column.str.contains(KEY)).any().any()

    monkeypatch.setenv("INFERWAY_KEY", KEY[::-1])
    assert main(command) == 1
    captured = capsys.readouterr()
    assert "does not take the key that was given" in captured.err
    assert KEY[::-1] not in captured.err
    monkeypatch.setenv("INFERWAY_KEY", KEY)
    assert main(command) == 0


def test_the_command_takes_the_authority_of_the_certificate(
    start: Any,
    file: Path,
    key_file: Path,
    certs: Path,
    certificate: Certificate,
    tmp_path: Path,
    capsys: Any,
) -> None:
    running = start(deployment=inferway.load(file), keys=Keys([KEY]), certificate=certificate)
    command = ["drive", str(file), "--url", secure(running), "--duration", "0.5", "--json"]
    command += ["--key-file", str(key_file)]
    assert main(command) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "is not trusted" in told
    assert "--ca FILE.pem" in told
    assert main([*command, "--ca", str(certs / "authority.pem")]) == 0
    task = json.loads(capsys.readouterr().out)["tasks"]["digits"]
    assert task["answered"] == task["offered"] == sum(running.site.stats.rows) > 20
    # What makes no sense is refused, whatever the server.
    assert main([*command, "--ca", str(key_file)]) == 2
    assert "keys.txt does not hold a certificate in PEM" in capsys.readouterr().err
    key_file.write_text("schlüssel-genügender-länge")
    assert main(command) == 2
    assert "the key has characters other than visible ASCII" in capsys.readouterr().err


def test_nodes_with_keys_and_certificates_are_driven_together(
    start: Any,
    file: Path,
    key_file: Path,
    certs: Path,
    certificate: Certificate,
    tmp_path: Path,
    capsys: Any,
) -> None:
    path = tmp_path / "network.yaml"
    path.write_text(_NETWORK)
    guarded = {"keys": Keys([KEY]), "certificate": certificate}
    nodes = {
        name: start(deployment=inferway.load(file), **guarded) for name in ("edge-1", "edge-2")
    }
    told = tmp_path / "addresses.json"
    told.write_text(json.dumps({name: {"http": secure(one)} for name, one in nodes.items()}))
    command = ["drive", str(path), "--addresses", str(told), "--duration", "1", "--json"]
    command += ["--ca", str(certs / "authority.pem")]
    assert main(command) == 1
    assert "asks for a key" in capsys.readouterr().err
    assert main([*command, "--key-file", str(key_file)]) == 0
    entries = json.loads(capsys.readouterr().out)["network"]["entries"]
    for name, running in nodes.items():
        met = entries[name]
        assert met["answered"] == met["offered"] == sum(running.site.stats.rows) > 10
    told.write_text(json.dumps({name: {"http": one.url} for name, one in nodes.items()}))
    assert main([*command, "--key-file", str(key_file)]) == 1
    assert "has no TLS, and --ca names an authority" in capsys.readouterr().err


def test_the_same_from_python(
    start: Any, file: Path, certs: Path, certificate: Certificate
) -> None:
    deployment = inferway.load(file)
    running = start(deployment=deployment, keys=Keys([KEY]), certificate=certificate)
    access = loadgen.Access(KEY, certs / "authority.pem")
    images = np.random.default_rng(0).random((8, 1, 32, 32))
    record = loadgen.drive(secure(running), "digits", np.arange(50) * 0.01, images, access=access)
    assert record.answered.all()
    records = loadgen.run(deployment, secure(running), duration_s=0.3, access=access)
    assert records["digits"].answered.all()


def test_a_server_without_tls_is_told_from_one_that_is_not_there(digits: Any) -> None:
    url = f"https://{digits.url}"
    with pytest.raises(loadgen.DriveError, match="it does not speak TLS: write its address with"):
        loadgen.drive(url, "digits", [0.0], np.zeros((1, 4)))


def test_the_twin_is_asked_for_the_same_arrivals(
    start: Any, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = start(deployment=inferway.load(file))
    words = ["drive", str(file), "--url", f"http://{running.url}", "--duration", "1", "--twin"]
    assert main([*words, "--json"]) == 0
    task = json.loads(capsys.readouterr().out)["tasks"]["digits"]
    twin, error = task["twin"], task["twin"]["error"]
    # Each of its replications has them all, a Poisson second's that no other seed gives.
    assert twin["queries"] == 16 * task["offered"]
    for name in ("mean", "p50", "p95"):
        driven_s = task[f"{name}_s"]
        assert error[name] == pytest.approx(twin["response_time_s"][name] / driven_s - 1)
    assert error["accuracy"] == pytest.approx(twin["accuracy"] - task["profile_accuracy"])
    # What the server tells has no way there and back, and the twin is compared with it as well.
    server = twin["server"]
    assert set(server["response_time_s"]) == {"mean", "p50", "p95", "p99"}
    assert 0 < server["response_time_s"]["mean"] < task["mean_s"]
    for name in ("mean", "p50", "p95"):
        in_server_s = server["response_time_s"][name]
        expected = pytest.approx(twin["response_time_s"][name] / in_server_s - 1)
        assert server["error"][name] == expected
    # By the zoo's profile a request takes less than this, whatever this machine makes of it.
    assert 0 < twin["response_time_s"]["mean"] < 0.01
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "Task digits, driven against twin" in told
    assert "in the server" in told


def test_a_twin_that_cannot_be_is_said_before_anything_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network, several = tmp_path / "network.yaml", tmp_path / "several.yaml"
    network.write_text(_NETWORK)
    there = "  there: {instances: {digits/tiny: 1, digits/large: 1}}\n"
    several.write_text(_FILE.replace("workload:", there + "workload:"))
    for path, sentence in (
        (network, "`inferway simulate network.yaml --events` simulates that"),
        (several, "the twin cannot simulate the file: "),
    ):
        assert main(["drive", str(path), "--url", "http://127.0.0.1:9", "--twin"]) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1


BY_HARDWARE = """
tasks:
  digits:
    deadline: 10 s
    variants:
      tiny:
        model: zoo://digits/tiny
        service: {fast: {mean: 25 ms}, slow: {mean: 25 ms}}
        batch:
          fast: {sizes: [1, 2], service: [25 ms, 26 ms]}
          slow: {sizes: [1, 2], service: [25 ms, 45 ms]}
nodes: {here: {devices: {KIND: {cores: 1}}, overhead: 0 s, instances: {digits/tiny: 1}}}
dispatch: {policy: deadline}
workload: {digits: {arrivals: {process: poisson, rate: 38/s}}}
"""
TABLES = {"fast": {1: 0.025, 2: 0.026}, "slow": {1: 0.025, 2: 0.045}}


def responses_s(arrived_s: list[float], table: dict[int, float]) -> list[float]:
    """What requests take of one server that takes all that is there, as far as its sizes go."""
    free_s, found, waiting = 0.0, [], arrived_s
    while waiting:
        free_s = max(free_s, waiting[0])
        rows = min(max(table), sum(one <= free_s for one in waiting))
        free_s += table[min(size for size in table if size >= rows)]
        found += [free_s - one for one in waiting[:rows]]
        waiting = waiting[rows:]
    return found


@pytest.mark.parametrize("kind", list(TABLES))
def test_the_twin_beside_a_drive_batches_as_the_hardware_does(
    start: Any, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(BY_HARDWARE.replace("KIND", kind))
    deployment = inferway.load(file)
    running = start(deployment=deployment)
    driven = inferway.drive(deployment, f"http://{running.url}", duration=2.0, twin=True)
    arrived_s = driven.records["digits"].intended_s.tolist()
    expected_s = responses_s(arrived_s, TABLES[kind])
    twin = driven.twin["digits"]
    assert twin.mean_s == pytest.approx(np.mean(expected_s), rel=1e-3)
    (other,) = TABLES.keys() - {kind}
    assert abs(np.mean(responses_s(arrived_s, TABLES[other])) / np.mean(expected_s) - 1) > 0.05
