"""Copies of a variant on several devices of a node, served, told, recorded and replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_recording import ask_all

import inferway
from inferway.dispatch import recordings

FILE = """
tasks:
  digits:
    accuracy_target: 0.6
    feedback: {}
    variants:
      tiny: {model: zoo://digits/tiny}
      small: {model: zoo://digits/small}
nodes:
  here:
    devices: {big: {hardware: cpu, cores: 2}, little: {hardware: cpu, cores: 1}}
    overhead: 200 us
    instances: {digits/tiny: {big: 2, little: 1}, digits/small: {big: 1}}
    buffer: 8
dispatch: {policy: POLICY}
"""


def served(folder: Path, policy: str = "priced") -> inferway.Deployment:
    file = folder / "digits.yaml"
    file.write_text(FILE.replace("POLICY", policy))
    return inferway.load(file)


@pytest.mark.parametrize("policy", ["priced", "deadline"])
def test_copies_on_several_devices_answer_as_one_variant(
    start: Any, tmp_path: Path, policy: str
) -> None:
    running = start(deployment=served(tmp_path, policy), record=tmp_path / "run")
    pool = running.site.pool
    assert set(pool.variants) == {"tiny:big", "tiny:little", "small"}
    assert set(pool.versions) == {"tiny", "small"}
    assert pool.mask_of("tiny").bit_count() == 2
    metadata = json.loads(running.get("/v2/models/digits").body)
    assert set(metadata["versions"]) == {"tiny", "small"}
    statuses = ask_all(running, 600)
    assert statuses[200] > 100
    status = json.loads(running.get("/status", admin=True).body)
    assert set(status["tasks"]["digits"]["variants"]) == set(pool.variants)
    book = running.site.answers
    assert set(book.measured) == {"tiny", "small"}
    running.wait(running.server.stop())
    (recorded,) = recordings(tmp_path / "run")
    found = inferway.replay(recorded, requests=None)
    assert found.differences == ()
    assert found.requests >= 600


def test_both_devices_of_a_variant_take_its_requests(start: Any, tmp_path: Path) -> None:
    times = tmp_path / "times.json"
    running = start(deployment=served(tmp_path), times=times)
    pool = running.site.pool
    ask_all(running, 600)
    ended = running.call(
        lambda: {
            name: sum(counts[column] for counts in pool.stats.outcomes)
            for name, column in zip(pool.variants, pool.columns, strict=True)
        }
    )
    assert ended["tiny:big"] > 0
    assert ended["tiny:little"] > 0
    running.wait(running.server.stop())
    kept = json.loads(times.read_text())["services"]
    assert {key.rpartition(" on ")[2] for key in kept} >= {"cpu at big", "cpu at little"}


def test_predictions_have_the_overhead(start: Any, tmp_path: Path) -> None:
    dispatcher = start(deployment=served(tmp_path)).site.pool.dispatcher
    for server, k in enumerate(dispatcher.site.server_class.tolist()):
        # It is of the first device with cores.
        lead_s = 200e-6 if dispatcher.fleet.runs_on[k] == "big" else 0.0
        model_s = dispatcher.site.row_s[server, 0]
        assert dispatcher.predict(server, 1, 0.0) == pytest.approx((0.0, model_s + lead_s))


def test_another_file_takes_over_from_copies_on_several_devices(start: Any, tmp_path: Path) -> None:
    running = start(deployment=served(tmp_path))
    ask_all(running, 96)
    before = sum(map(sum, running.site.stats.outcomes))
    one = FILE.replace("{big: 2, little: 1}", "{little: 1}").replace("POLICY", "priced")
    (tmp_path / "other.yaml").write_text(one)
    running.wait(running.server.apply(inferway.load(tmp_path / "other.yaml")))
    assert set(running.site.pool.variants) == {"tiny", "small"}
    assert ask_all(running, 96)[200] > 0
    assert sum(map(sum, running.site.stats.outcomes)) > before
