"""Tables of claims in Markdown pages: what is replaced, what is left, and that counts agree."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from inferway.cli import main
from inferway.experiments.claim import counted
from inferway.experiments.report import table, verdicts, write
from inferway.studies import Claim, run, study

DOCS = Path(__file__).parents[3] / "docs" / "studies"
PROSE = "Prose by hand, with a | in it.\n"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder with two studies that take no time."""
    out = tmp_path_factory.mktemp("results")
    for name in ("shuffle-pair", "learning-curves"):
        run(study(name), "smoke", out=out, workers=0)
    return out


def test_what_stands_between_markers_is_replaced_and_nothing_else(tmp_path, results):
    page = tmp_path / "queueing.md"
    page.write_text(
        f"# Mine\n\n{PROSE}\n<!-- claims: shuffle-pair -->\nold\n<!-- end -->\n\n{PROSE}\n"
        "<!-- claims: blocking -->\nits old table\n<!-- end -->\n"
    )
    write([study("shuffle-pair"), study("blocking")], "smoke", pages=tmp_path, out=results)
    text = page.read_text()
    assert text.count(PROSE) == 2
    assert "\nold\n" not in text
    assert "The pair {2, 3} allows 0.25." in text
    assert "| **no** |" in text
    # Without a result a table stays what it was.
    assert "<!-- claims: blocking -->\nits old table\n<!-- end -->" in text
    assert "    inferway study run --scale smoke shuffle-pair\n" in text
    # Written again, it is the same.
    write([study("shuffle-pair")], "smoke", pages=tmp_path, out=results)
    assert page.read_text() == text


def test_a_missing_page_is_made_and_a_study_without_markers_appended(tmp_path, results):
    (tmp_path / "index.md").write_text("# All\n\n<!-- counts -->\n<!-- end -->\n")
    made = write(
        [study("shuffle-pair"), study("learning-curves")], "smoke", pages=tmp_path, out=results
    )
    assert [page.file.name for page in made] == ["queueing.md", "scheduling.md", "index.md"]
    text = (tmp_path / "scheduling.md").read_text()
    assert text.startswith("# Studies of bursts and deadlines\n")
    assert "## learning-curves\n\n<!-- claims: learning-curves -->\n\n| where | claim |" in text
    every = [*verdicts(text), *verdicts((tmp_path / "queueing.md").read_text())]
    assert counted(every) in (tmp_path / "index.md").read_text()


def test_without_results_nothing_is_written(tmp_path):
    with pytest.raises(RuntimeError, match="no results at scale smoke"):
        write([study("shuffle-pair")], "smoke", pages=tmp_path / "docs", out=tmp_path)
    assert not (tmp_path / "docs").exists()


def test_the_command_says_what_it_wrote(tmp_path, results, capsys):
    asked = ["study", "tables", "shuffle-pair", "--scale", "smoke"]
    asked += ["--results", str(results), "--out", str(tmp_path)]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["pages"]
    entry = found[str(tmp_path / "queueing.md")]
    assert (entry["studies"], entry["without_results"]) == (["shuffle-pair"], [])
    assert re.fullmatch(r"\d+ of the papers' \d+ checked claims reproduce, .*", entry["counts"])
    assert main(asked) == 0
    assert entry["counts"] in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--seed", "4"]) == 1
    assert "--seed 4` makes them" in capsys.readouterr().err


def test_a_cell_is_one_line_and_keeps_its_bars():
    claim = Claim("Sec. 1", "a | b\nc", "how much", 2.0, at_most=1.0, low=0.5, high=3.0)
    found = table(study("shuffle-pair"), [claim])
    line = found.splitlines()[2]
    wanted = r"| Sec. 1 | a \| b c | how much: **2** (0.5 to 3) | at most 1 | **not settled** |  |"
    assert line == wanted
    block = f"<!-- claims: shuffle-pair -->\n{found}\n<!-- end -->"
    assert list(verdicts(block)) == [("Sec. 1", "not settled")]


@pytest.mark.parametrize("name", ["queueing", "placement", "scheduling"])
def test_the_counts_in_the_documentation_are_those_of_its_tables(name):
    text = (DOCS / f"{name}.md").read_text()
    (block,) = re.findall(r"<!-- counts -->\n\n\*\*(.*)\*\*\n\n<!-- end -->", text)
    assert block == counted(verdicts(text))
    # Nobody counts by hand beside it.
    prose = re.sub(r"<!-- (claims: [\w-]+|counts) -->.*?<!-- end -->", "", text, flags=re.DOTALL)
    assert not re.search(r"\d+ of (the|its|\d+)[^.|]* claims", prose)


def test_the_readme_repeats_no_count():
    """It would be written by hand, and wrong after the next run."""
    assert not re.search(r"\d+ of \d+ reproduce", (DOCS.parents[1] / "README.md").read_text())


def test_the_index_counts_all_pages():
    every = [
        one
        for name in ("queueing", "placement", "scheduling")
        for one in verdicts((DOCS / f"{name}.md").read_text())
    ]
    assert counted(every) in (DOCS / "index.md").read_text()
