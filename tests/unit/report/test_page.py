from __future__ import annotations

import re
from html.parser import HTMLParser

from inferway.experiments.curves import Curve, Panel, panels
from inferway.experiments.machine import machine
from inferway.experiments.report import Section, Sheet, page

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


def made():
    sheet = Sheet(("claim", "ok"), [("a < b & c", "yes"), ("never", "no")], short=(0,), marks=1)
    figure = panels([Panel("", "x", "y", [Curve("c", (0, 1), (0, 1))])])
    section = Section("first", "The first <study>", "Text.", figure, [sheet], ["A note."])
    return page("Title", ["Lead & more."], "inferway study run --all", [section])


def test_a_page_is_well_formed_and_loads_nothing():
    reader = read(made())
    assert all(one.startswith("data:image/png;base64,") for one in reader.loads)
    assert len(reader.loads) == 1
    assert not re.search(r"https?://|@import|url\(", made())
    assert reader.links == {"#first"}
    assert reader.anchors == {"first"}


def test_text_is_text_and_marks_have_their_color():
    text = made()
    reader = read(text)
    for words in ("a < b & c", "The first <study>", "Lead & more.", "A note."):
        assert words in reader.text
    assert '<td class="number">a &lt; b &amp; c</td>' in text
    assert '<td class="yes">yes</td>' in text
    assert '<td class="no">no</td>' in text
    assert "prefers-color-scheme: dark" in text


def test_the_machine_is_said():
    found = machine(("numpy",))
    assert found["cores"] >= 1
    assert set(found) == {"cores", "processor", "system", "python", "numpy"}
