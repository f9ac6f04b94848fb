"""``inferway check`` on files with a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferway.cli import main

ROOT = Path(__file__).parents[3]
LINKS = """
tasks:
  spot: {variants: {big: {accuracy: 0.9, size: 9 GiB, service: {mean: 10 ms}}, small: {accuracy: 0.5, size: 1 GiB, service: {mean: 5 ms}}}}
nodes:
  cloud: {repository: true}
  shop: {budget: 4 GiB}
network: {links: [{between: [shop, cloud], rtt: 30 ms}]}
workload: {spot: {arrivals: {process: constant, rate: 10/s}, entries: {nodes: [shop]}}}
"""  # noqa: E501
RING = """graph [
  node [ id 0 label "A" Latitude 50.0 Longitude 8.0 ]
  node [ id 1 label "B" ]
  node [ id 2 label "C" Latitude 52.0 Longitude 13.0 ]
  edge [ source 0 target 1 ]
  edge [ source 1 target 2 ]
  edge [ source 0 target 2 ]
]
"""


def check(capsys, file: Path, code: int = 0):
    assert main(["check", str(file), "--json"]) == code
    output = capsys.readouterr()
    assert output.err == ""
    return json.loads(output.out)


@pytest.fixture
def write(tmp_path: Path):
    def to(text: str) -> Path:
        path = tmp_path / "network.yaml"
        path.write_text(text)
        return path

    return to


def test_the_size_of_a_network_is_told(capsys) -> None:
    found = check(capsys, ROOT / "examples" / "topology-1.yaml")
    network = found["network"]
    assert (network["nodes"], network["links"], network["request_types"]) == (36, 35, 40)
    assert network["notes"] == []
    assert check(capsys, ROOT / "examples" / "paper-fleet.yaml")["network"] is None


def test_a_variant_larger_than_every_budget_is_a_warning(capsys, write) -> None:
    found = check(capsys, write(LINKS))
    (warning,) = found["warnings"]
    assert "variant big of task spot takes 9 GiB, more than every budget" in warning["message"]
    assert warning["field"] == "network"
    assert warning["line"] == 7


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("cloud: {repository: true}", "cloud: {}", "spot has no repository"),
        ("repository: true}", "repository: true, pinned: {spot/big: 1}}", None),
        ("rate: 10/s", "rate: 9000/s", None),
        (
            "repository: true}",
            "repository: true, budget: 8 GiB}",
            "cloud has a budget of 8 GiB, but a repository's copies (eq. 9) there take 9 GiB",
        ),
        ("between: [shop, cloud]", "between: [hub, cloud]", "no path leads from shop"),
        ("  shop: {budget: 4 GiB}", "  shop: {budget: 4 GiB}\n  far: {}", None),
    ],
)
def test_what_cannot_be_used_is_an_error(capsys, write, old, new, words) -> None:
    found = check(capsys, write(LINKS.replace(old, new)), 0 if words is None else 1)
    assert [words in error["message"] for error in found["errors"]] == [True] * bool(words)


def test_too_few_pinned_copies_are_refused_by_equation_9(capsys, write) -> None:
    text = LINKS.replace("repository: true}", "repository: true, pinned: {spot/big: 1}}")
    found = check(capsys, write(text.replace("rate: 10/s", "rate: 101/s")), 1)
    (error,) = found["errors"]
    assert "the repository cloud can serve 6000 requests of spot in a slot" in error["message"]
    assert main(["check", str(write(text))]) == 0
    assert "warning: network: variant big" in capsys.readouterr().out


def test_what_a_graph_file_does_not_say_is_noted(capsys, write, tmp_path: Path) -> None:
    (tmp_path / "ring.gml").write_text(RING)
    text = LINKS.replace("links: [{between: [shop, cloud], rtt: 30 ms}]", "gml: ring.gml")
    text = text.replace("cloud:", "A:").replace("shop", "C")
    found = check(capsys, write(text))
    assert any("without coordinates" in note for note in found["network"]["notes"])
    assert main(["check", str(write(text))]) == 0
    assert "note: network: 2 links at a point without coordinates" in capsys.readouterr().out
    (tmp_path / "ring.gml").write_text("not a graph")
    assert check(capsys, write(text), 1)["errors"] != []


def test_a_network_without_a_workload_is_checked_as_far_as_it_goes(capsys, write) -> None:
    found = check(capsys, write(LINKS[: LINKS.index("workload")]))
    assert found["errors"] == []
    assert found["network"] == {"nodes": 2, "links": 1, "notes": []}


def test_a_misspelled_node_is_told_beside_the_error_that_it_makes(capsys, write) -> None:
    file = write(LINKS.replace("between: [shop, cloud]", "between: [shop, clod]"))
    found = check(capsys, file, 1)
    (error,) = found["errors"]
    assert "no path leads from shop" in error["message"]
    (warning,) = found["warnings"]
    assert warning["message"] == "clod is not described under `nodes`; did you mean cloud?"
    assert (warning["field"], warning["line"]) == ("network.links[0]", 7)
    assert main(["check", str(file)]) == 1
    error_line, warning_line, *_ = capsys.readouterr().out.splitlines()
    assert error_line.startswith(f"{file}:7: error: network: no path")
    assert warning_line.startswith(f"{file}:7: warning: network.links[0]: clod is not described")
