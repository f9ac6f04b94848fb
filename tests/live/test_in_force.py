"""What a server tells of its deployment and its last requests, to whom, and after a change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.live import Keys, apply

ROW = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
FILE = """
tasks:
  digits:
    accuracy_target: 0.75
    variants:
      tiny: {model: zoo://digits/tiny}
      small: {model: zoo://digits/small}
nodes:
  here: {instances: {digits/tiny: 2, digits/small: 1}, buffer: 64}
"""
INFER, READ = "i" * 16, "r" * 16


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "digits.yaml"
    file.write_text(FILE)
    return file


def rows_of(answer: Any) -> tuple[dict[str, Any], Any]:
    assert answer.status == 200
    line, _, rest = answer.body.partition(b"\n")
    head = json.loads(line)
    return head, np.frombuffer(rest, [tuple(one) for one in head["row"]])


def test_the_file_in_force_and_its_fleet_are_told(start: Any, file: Path) -> None:
    running = start(deployment=inferway.load(file), allow_apply=True)
    told = running.get("/deployment", admin=True).json
    assert (told["file"], told["left_out"]) == ("digits.yaml", [])
    assert inferway.load(told["content"]).tasks == inferway.load(file).tasks
    assert str(file.parent) not in json.dumps(told)
    fleet = running.get("/deployment/digits", admin=True).json
    assert (fleet["target"], fleet["policy"], fleet["buffer"]) == (0.75, "priced", 64)
    assert [(one["name"], one["instances"]) for one in fleet["classes"]] == [
        ("tiny", 2),
        ("small", 1),
    ]
    file.write_text(FILE.replace("0.75", "0.8").replace("digits/tiny: 2", "digits/tiny: 1"))
    apply(file, f"http://127.0.0.1:{running.server.admin_port}")
    told = running.get("/deployment", admin=True).json
    assert told["content"]["tasks"]["digits"]["accuracy_target"] == 0.8
    assert running.get("/deployment/digits", admin=True).json["classes"][0]["instances"] == 1
    assert running.get("/deployment/none", admin=True).status == 404


def test_the_last_requests_are_told(start: Any, site_of: Any) -> None:
    running = start(site_of(), site_of(task="other"))
    assert running.infer(ROW).status == 200
    head, rows = rows_of(running.get("/requests/digits", admin=True))
    assert running.infer(ROW, path="/v2/models/digits/versions/big/infer").status == 200
    assert running.infer(ROW, path="/v2/models/other/infer").status == 200
    assert head["rows"] == len(rows) == 1
    head, rows = rows_of(running.get("/requests/digits", admin=True))
    assert [head["variants"][one] for one in rows["column"]] == ["tiny", "big"]
    assert rows["flags"].tolist() == [0, 1]
    assert (rows["ended_s"] >= rows["decided_s"]).all()
    assert (rows["decided_s"] >= 0).all()
    first_s, second_s = (rows["received_s"] + head["clock_s"]).tolist()
    asked = f"/requests/digits?since={(first_s + second_s) / 2}"
    assert len(rows_of(running.get(asked, admin=True))[1]) == 1
    assert running.get("/requests/none", admin=True).status == 404
    for wrong in ("since=x", "since=inf", "task=digits"):
        assert running.get(f"/requests/digits?{wrong}", admin=True).status == 400


def test_both_are_for_keys_that_may_read(start: Any, site_of: Any) -> None:
    running = start(site_of(), keys=Keys([f"read={READ}", f"infer={INFER}"]))
    for path in ("/deployment", "/deployment/digits", "/requests/digits"):
        statuses = []
        for given in (
            "",
            f"Authorization: Bearer {INFER}\r\n",
            f"Authorization: Bearer {READ}\r\n",
        ):
            raw = f"GET {path} HTTP/1.1\r\nHost: test\r\n{given}\r\n".encode()
            statuses.append(running.ask(raw, admin=True).status)
        assert statuses == [401, 403, 200]
