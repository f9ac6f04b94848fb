"""Pages that need nothing else: tables, drawings, and the look that all pages have."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from inferway.experiments.curves import Curve, Panel, panels
from inferway.experiments.document import document, drawn, laid_out, section, strip
from inferway.experiments.figure import STYLE, canvas
from inferway.experiments.text import noted, table
from inferway.look import colors, style

COLOR = re.compile(r"#[0-9a-fA-F]{3,8}\b")


def test_every_color_has_another_in_the_dark() -> None:
    light, _, rest = style().partition("@media (prefers-color-scheme: dark)")
    dark = rest.partition("\n}\n")[0]
    names = re.findall(r"(--[\w-]+): #", light)
    assert names == list(colors())
    assert [one for one in names if not re.search(rf"{one}: #", dark)] == []


@pytest.mark.parametrize(
    "sheet", ["dashboard/static/page.css", "experiments/report.css"], ids=["page", "report"]
)
def test_no_other_stylesheet_has_colors_of_its_own(sheet: str) -> None:
    rules = files("inferway").joinpath(sheet).read_text(encoding="utf-8")
    found = [one for one in COLOR.findall(rules) if not re.search(rf"{one}[\w-]* ?[.,:{{ ]", rules)]
    assert found == []
    assert not re.search(r"rgb|hsl|\bwhite\b|\bblack\b", rules.replace("white-space", ""))


def test_figures_have_the_looks_colors() -> None:
    known = {*colors().values(), "#ffffff"}
    assert {one for one in map(str, STYLE.values()) if COLOR.fullmatch(one)} <= known


def test_a_table_of_a_terminal_is_a_table() -> None:
    laid = table("Of <two>", ["name", "a\nb"], [["x & y", "1.0"]], caption="All of it.")
    text = laid_out([laid, *noted(["beware"])])
    assert "<caption>Of &lt;two&gt;</caption>" in text
    assert '<th class="left" scope="col">name</th><th scope="col">a<br>b</th>' in text
    assert '<td class="left">x &amp; y</td><td>1.0</td>' in text
    assert '<p class="note">All of it.</p>' in text
    assert '<p class="note">Note: beware.</p>' in text
    assert 'aria-label="Of &lt;two&gt;"' in text


def test_a_table_without_headings_has_none() -> None:
    assert "<thead>" not in laid_out([table("", ["", ""], [["a", "1"]])])


def curves() -> object:
    return panels([Panel("t", "x", "y", [Curve("c", (0, 1), (0, 1), color=0)])])


def test_drawings_have_the_pages_colors_and_names_of_their_own() -> None:
    one, two = (drawn(curves(), "Both <axes>", key) for key in ("a", "b"))
    assert 'role="img" aria-label="Both &lt;axes&gt;"' in one
    assert "var(--mark-0)" in one
    assert "var(--panel)" in one
    assert colors()["--mark-0"] not in one
    assert "DejaVu" not in one
    assert "http" not in one
    first, second = (set(re.findall(r' id="([^"]+)"', text)) for text in (one, two))
    assert first
    assert not first & second
    used = {*re.findall(r"url\(#([^)]+)\)", one), *re.findall(r'xlink:href="#([^"]+)"', one)}
    assert used <= first


def test_white_words_stay_white() -> None:
    with canvas(2, 2) as figure:
        axes = figure.add_subplot()
        axes.text(0.5, 0.5, "on dark", color="white")
        axes.set_title("plain")
    text = drawn(figure, "n", "k")
    (words,) = re.findall(r"<text ([^>]*)>on dark", text)
    assert "#ffffff" in words
    (plain,) = re.findall(r"<text ([^>]*)>plain", text)
    assert "#ffffff" not in plain


def test_a_page_is_whole() -> None:
    body = [
        strip("kept", "Task <t>", "kept", "So.", {"target": ("0.9", ""), "mean": ("0.91", "± 1")}),
        section("Part", "<p>more</p>", anchor="part"),
    ]
    page = document("A & b", ["said <first>"], body)
    assert page.startswith("<!doctype html>")
    assert "<title>A &amp; b – Inferway</title>" in page
    assert '<p class="note">said &lt;first&gt;</p>' in page
    assert '<article class="strip" data-state="kept" aria-label="Task &lt;t&gt;">' in page
    assert "<dt>mean</dt><dd>0.91 <small>± 1</small></dd>" in page
    assert '<h2 id="part">Part</h2>' in page
    assert style() in page
