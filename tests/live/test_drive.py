"""The generator against the real server: every request accounted for, on both sides."""

from __future__ import annotations

import json

import numpy as np
import pytest

import inferway
from inferway import loadgen
from inferway.cli import main

_FILE = """
tasks:
  digits:
    accuracy_target: 0.8
    variants:
      tiny: {accuracy: 0.7, size: 1 MB, service: {mean: 1 ms}}
      big: {accuracy: 0.9, size: 1 MB, service: {mean: 10 ms}}
workload:
  digits: {arrivals: {process: poisson, rate: 400/s}}
"""


@pytest.fixture
def deployment(tmp_path):
    path = tmp_path / "digits.yaml"
    path.write_text(_FILE)
    return inferway.load(path)


@pytest.mark.parametrize("binary", [True, False])
def test_every_request_is_answered_once(digits, binary):
    images = np.random.default_rng(0).random((8, 4))
    before = sum(digits.site.stats.rows)
    record = loadgen.drive(
        f"http://{digits.url}", "digits", np.arange(200) * 0.002, images, binary=binary
    )
    assert record.answered.all()
    assert sum(digits.site.stats.rows) - before == 200
    assert record.variants == ("tiny",)
    # The server predicts what the file says: 1 ms of service, and more behind a queue.
    assert record.predicted_s.min() == pytest.approx(1e-3)
    assert np.all(record.latency_s > 0)


def test_a_pinned_stream_is_answered_by_its_variant(digits):
    record = loadgen.drive(
        f"http://{digits.url}", "digits", np.zeros(20), np.zeros((1, 4)), variant="big"
    )
    assert record.variants == ("big",)


def test_refusals_are_counted_as_rejected(start, site_of, gates):
    for gate in gates:
        gate.opened.set()  # for the warm-up
    running = start(site_of(gates, buffer=2))
    for gate in gates:
        gate.opened.clear()
    record = loadgen.drive(
        f"http://{running.url}", "digits", np.zeros(12), np.zeros((1, 4)), grace_s=0.3
    )
    found = loadgen.summary(record)
    # The gates are shut: two have a place and get no answer in time.
    for gate in gates:
        gate.opened.set()
    assert (found.rejected, found.failed, found.answered) == (10, 2, 0)


def test_a_deployments_own_workload(digits, deployment):
    seen = []
    records = loadgen.run(
        deployment,
        f"http://{digits.url}",
        duration_s=1.0,
        progress=lambda doing, part: seen.append((doing, part)),
    )
    found = loadgen.summary(records["digits"], {"tiny": 0.7, "big": 0.9})
    assert 300 < found.offered < 500
    assert found.answered == found.offered
    assert found.profile_accuracy == pytest.approx(0.7)
    assert found.accuracy is None
    assert all(0 <= part <= 1 for _, part in seen)
    again = loadgen.run(deployment, f"http://{digits.url}", duration_s=1.0)
    np.testing.assert_array_equal(again["digits"].intended_s, records["digits"].intended_s)


def test_a_file_without_workload_is_told_what_to_add(digits, deployment, tmp_path):
    path = tmp_path / "bare.yaml"
    path.write_text(_FILE.partition("workload:")[0])
    with pytest.raises(loadgen.DriveError, match="has no `workload`"):
        loadgen.run(inferway.load(path), f"http://{digits.url}")


def test_the_command_prints_one_document(digits, deployment, capsys):
    url = f"http://{digits.url}"
    code = main(["drive", str(deployment.path), "--url", url, "--duration", "0.5", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["schema"] == 1
    assert document["tasks"]["digits"]["answered"] > 100


def test_a_missed_target_ends_with_1_where_it_is_required(digits, tmp_path, capsys):
    path = tmp_path / "digits.yaml"
    path.write_text(_FILE.replace("400/s", "1500/s"))
    command = ["drive", str(path), "--url", f"http://{digits.url}", "--duration", "2", "--json"]
    assert main(command) == 0
    printed = capsys.readouterr()
    promise = json.loads(printed.out)["tasks"]["digits"]["promise"]
    assert promise["state"] == "missed"
    assert promise["mean"] == pytest.approx(0.7)
    assert promise["answers"] > 2_000
    assert promise["balance"] == pytest.approx(-0.1 * promise["answers"])
    assert main([*command, "--require-target"]) == 1
    assert "is 0.7000, below its target 0.8" in capsys.readouterr().err


def test_a_target_is_not_required_of_a_file_without_one(digits, tmp_path, capsys):
    path = tmp_path / "digits.yaml"
    path.write_text(_FILE.replace("    accuracy_target: 0.8\n", ""))
    assert main(["drive", str(path), "--url", f"http://{digits.url}", "--require-target"]) == 2
    assert "has no `accuracy_target` that could be missed" in capsys.readouterr().err


_TWO_TASKS = """
tasks:
  digits:
    variants: &variants
      tiny: {accuracy: 0.7, size: 1 MB, service: {mean: 1 ms}}
      big: {accuracy: 0.9, size: 1 MB, service: {mean: 10 ms}}
  words: {accuracy_target: 0.9, variants: *variants}
workload:
  digits: {arrivals: {process: poisson, rate: 300/s}}
  words: {arrivals: {process: poisson, rate: 60/s}}
"""


def test_several_tasks_have_totals_here_and_at_the_server(start, site_of, tmp_path, capsys):
    path = tmp_path / "two.yaml"
    path.write_text(_TWO_TASKS)
    words = site_of(task="words", policy="jiq-accurate", count=(1, 4), target=0.9)
    running = start(site_of(), words)
    command = ["drive", str(path), "--url", f"http://{running.url}", "--duration", "1", "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    answered = {name: one["answered"] for name, one in document["tasks"].items()}
    assert min(answered.values()) > 20
    every = sum(answered.values())
    worth = sum(n * document["tasks"][name]["profile_accuracy"] for name, n in answered.items())
    found = document["totals"]
    assert found["profile_accuracy"] == pytest.approx(worth / every)
    assert found["goodput"] == pytest.approx(worth / every)  # nothing has a deadline
    assert found["shares"] == {name: pytest.approx(n / every) for name, n in answered.items()}
    assert found["violation_ratio"] == 0
    assert found["goodput_per_s"] == pytest.approx(
        found["in_time_per_s"] * found["profile_accuracy"]
    )
    status = running.get("/status", admin=True).json["totals"]
    assert status["accuracy"] == pytest.approx(found["profile_accuracy"])
    assert status["goodput"] == pytest.approx(found["goodput"])
    assert status["shares"] == found["shares"]
    assert status["violation_ratio"] == 0
    page = running.ask(
        b"GET / HTTP/1.1\r\nHost: test\r\nAccept: text/html\r\n\r\n", admin=True
    ).body.decode()
    assert "<h2>All tasks</h2>" in page
    assert "answers of words" in page


def test_who_is_late_is_no_goodput_of_the_server(start, site_of, until):
    late = site_of(drop_late=False, policy="jiq-accurate")
    running = start(late, site_of(task="words"))
    body = {
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.0] * 4}],
        "parameters": {"deadline_ms": 0.001},
    }
    assert running.infer(body).json["parameters"]["late"] is True
    assert running.infer(body | {"parameters": {}}).status == 200
    status = running.get("/status", admin=True).json["totals"]
    assert status["violation_ratio"] == 0.5
    assert status["accuracy"] == pytest.approx(2 * status["goodput"])
    assert status["shares"] == {"digits": 1.0, "words": 0.0}
