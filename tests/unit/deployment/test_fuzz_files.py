"""A target for each reader of files from elsewhere: what is wrong with one is said in a line."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzzing import Course, few_or_many, in_a_line, scratch
from inferway.deployment import DeploymentError, check, load
from inferway.network import NetworkError, load_gml
from mutation import respelled

GRAPHS = (
    b"""graph [
  directed 0
  delay_unit "ms"
  node [ id 0 label "Wien" Latitude 48.2 Longitude 16.4 ]
  node [ id 1 label "Graz" Latitude 47.1 Longitude 15.4 ]
  node [ id 2 label "Hub" hyperedge 1 ]
  node [ id 3 label "Linz" ]
  edge [ source 0 target 1 rtt "4 ms" ]
  edge [ source 0 target 2 ]
  edge [ source 1 target 2 latency 2.5 ]
  edge [ source 2 target 3 key 1 ]
  edge [ source 0 target 3 key "a" ]
]
""",
    b'Creator "x"\ngraph\n[\n  multigraph 1\n  node [ id 0 ]\n  node [ id 1 ]\n'
    b"  edge [ source 0 target 1 delay 3 ]\n  edge [ source 0 target 1 ]\n]\n",
)
GML_TOKENS = (
    *(b"[", b"]", b'"', b"graph [", b"node [", b"edge [", b"id", b"label", b"source", b"target"),
    *(b"hyperedge 1", b"multigraph 1", b"directed 1", b"key 0", b"Latitude", b"Longitude", b"rtt"),
    *(b"latency", b"delay", b'delay_unit "us"', b"NaN", b"INF", b"&#0;", b"&amp;", b"\xe9", b"#"),
    *(b"[ " * 600, b"- 1", b"1e999", b"+", b"name \"a\"", b"\n", b"graphics [ x 1 ]", b"id 0"),
)  # fmt: skip


def gml(choose: random.Random) -> bytes:
    return respelled(choose.choice(GRAPHS), GML_TOKENS, choose)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with scratch(tmp_path) as made:
        yield made


@few_or_many
def test_gml(folder: Path, count: int) -> None:
    file = folder / "g.gml"

    def feed(raw: bytes) -> None:
        file.write_bytes(raw)
        with in_a_line(NetworkError):
            load_gml(file)

    Course("gml", gml, count).run(feed)


FILES = (
    b"""tasks:
  t:
    accuracy_target: 0.8
    variants:
      v: {accuracy: 0.9, size: 1 MB, service: {mean: 1 ms}}
nodes: {here: {instances: {t/v: 2}, buffer: 8}}
""",
    b"""tasks: {t: {count: 2, catalog: {name: paper/yolov4}}}
network: {tree: [{tier: a, nodes: 1, repository: true}, {tier: b, nodes: 2, rtt: 4 ms}]}
""",
    b"""tasks: {t: {variants: {v: {accuracy: 0.5, size: 1 B, service: {mean: 1 s}}}}}
workload: {t: {arrivals: {process: map, d0: [[-1, 1], [0, -2]], d1: [[0, 0], [1, 1]]}}}
""",
    b"""{"tasks": {"a": {"variants": {"b": &v {"accuracy": 0.5, "service": {"mean": "1 s"},
"batch": {"sizes": [1, 2], "service": ["1 s", "2 s"]}}, "c": *v}}}}
""",
)
YAML_TOKENS = (
    *(b": ", b"- ", b"? ", b"{", b"}", b"[", b"]", b",", b"&a ", b"*a", b"*v", b"!!python/name:os"),
    *(b"!t ", b"|\n", b">\n", b"'", b'"', b"#", b"---\n", b"...\n", b"%YAML 1.1\n", b"<<: ", b"\t"),
    *(b"~", b"null", b".inf", b".nan", b"0x10", b"1e400", b"\xff", b"\x00", b"\xc2\x85"),
    *(b"tasks", b"nodes", b"network", b"workload", b"1 ms", b"120/s", b"0.9", b"zoo://digits/tiny"),
    *(b"phases", b"trace", b"file: /dev/null", b"gml: x.gml", b"links", b"[" * 70, b"\xe2\x80\xa8"),
    *(b"mean", b"rate", b"count: 1000000000", b"priced", b"tad-op", b"x.py:Y", b"\\ud800", b"\r"),
)  # fmt: skip


def yaml(choose: random.Random) -> bytes:
    return respelled(choose.choice(FILES), YAML_TOKENS, choose)


@few_or_many
def test_deployment_files(folder: Path, count: int) -> None:
    file = folder / "served.yaml"

    def feed(raw: bytes) -> None:
        file.write_bytes(raw)
        try:
            deployment = load(file)
            list(check(deployment))
        except DeploymentError as error:
            lines = str(error).split("\n")
            assert all(one.startswith(str(file)) and one.isprintable() for one in lines), lines

    Course("yaml", yaml, count).run(feed)
