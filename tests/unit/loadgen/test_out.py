"""``inferway drive --out``, where writing fails after all was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferway.cli import main

SITE = """\
tasks: {t: {variants: {a: {accuracy: 0.8, service: {rate: 100/s}}}}}
nodes: {here: {instances: {t/a: 1}}}
workload: {t: {arrivals: {process: poisson, rate: 50/s}}}
"""
NETWORK = """\
tasks: {t: {variants: {a: {accuracy: 0.8, size: 1 MB, service: {mean: 10 ms}}}}}
network: {tree: [{tier: cloud, nodes: 1, repository: true}, {tier: edge, nodes: 1, rtt: 9 ms}]}
placement: {policy: static-greedy}
workload: {t: {arrivals: {process: poisson, rate: 50/s}}}
"""


@pytest.mark.parametrize(
    ("content", "title"), [(SITE, "Answers of http"), (NETWORK, "Network, driven")]
)
@pytest.mark.parametrize("json_", [False, True])
def test_what_was_measured_is_shown_first(
    serve, capsys, tmp_path: Path, content: str, title: str, json_: bool
) -> None:
    (tmp_path / "file.yaml").write_text(content)
    out = tmp_path / "out"
    (out / "requests.parquet").mkdir(parents=True)
    arguments = ["drive", str(tmp_path / "file.yaml"), "--url", serve().url]
    arguments += ["--duration", "0.5", "--out", str(out), *["--json"] * json_]
    assert main(arguments) == 1
    said, errors = capsys.readouterr()
    if json_:
        found = json.loads(said)
        assert found["tasks"]["t"]["answered"] > 0
        assert "parquet" not in found
    else:
        assert title in said
    assert errors.splitlines()[-1] == f"inferway: not all could be written to {out}: Is a directory"
