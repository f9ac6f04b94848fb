from __future__ import annotations

import re
from dataclasses import dataclass
from html.parser import HTMLParser

import pytest

from inferway.experiments.curves import Curve, Panel, panels
from inferway.experiments.report import report
from inferway.experiments.runner import Point
from inferway.experiments.study import Study, run
from inferway.machine import machine
from inferway.studies import Claim

_VOID = {"meta", "img", "br", "link", "input"}


class Reader(HTMLParser):
    """Checks that tags close in order, and keeps the text and what would be loaded."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.loads, self.anchors, self.links = [], "", [], set(), set()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.loads += [given[key] for key in ("src", "srcset") if key in given]
        self.anchors |= {given["id"]} if "id" in given else set()
        self.links |= {given["href"]} if "href" in given else set()
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(text):
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


@dataclass(frozen=True)
class Settings:
    """What the report prints of a study."""

    loads: tuple[float, ...] = (0.5,)
    marked: float = 0.7
    others: float = 0.9


def nothing():
    return {"x": 1.0}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A report of one study with what HTML would take for tags."""
    out = tmp_path_factory.mktemp("out")
    study = Study(
        name="first",
        source="The first <study>",
        shows="Text & more.",
        scales=dict.fromkeys(("smoke", "quick", "paper"), Settings()),
        points=lambda settings: [Point({}, nothing, {}) for _ in settings.loads],
        figure=lambda settings, _: panels(
            [Panel("", "x", "y", [Curve("c", (0, 1), (0, settings.marked))])]
        ),
        claims=lambda *_: [
            Claim("Sec. <1>", "a < b & c", "it", 1.0, at_least=0.0),
            Claim("Sec. 2", "never", "it", 1.0, at_least=2.0),
            Claim("Sec. 3", "who knows", "it", 1.0, at_least=0.5, low=0.0, high=2.0),
        ],
        departures=("A note.",),
        code=(),
    )
    run(study, "smoke", out=out, workers=0)
    return report([study], "smoke", out=out)


def test_a_page_is_well_formed_and_loads_nothing(made):
    reader = read(made)
    assert reader.loads == []
    assert not re.search(r"https?://|@import|url\((?!#)|<script|<link", made)
    assert reader.links == {"#first"}
    assert "first" in reader.anchors
    assert made.count("<svg ") == 1


def test_text_is_text_and_marks_have_their_color(made):
    reader = read(made)
    for words in ("a < b & c", "first: The first <study>", "Text & more.", "A note.", "loads = "):
        assert words in reader.text
    assert "1 of the papers' 3 checked claims reproduce" in reader.text
    assert '<td class="number">Sec. &lt;1&gt;</td><td>a &lt; b &amp; c</td>' in made
    assert '<td class="yes">yes</td>' in made
    assert '<td class="no">no</td>' in made
    assert '<td class="open">not settled</td>' in made
    assert "prefers-color-scheme: dark" in made


def test_settings_that_the_study_does_not_read_are_left_out(made):
    assert "Settings: loads = (0.5,); marked = 0.7." in read(made).text


def test_the_machine_is_said():
    found = machine(("numpy",))
    assert found["cores"] >= 1
    assert set(found) == {"cores", "processor", "system", "python", "numpy"}
