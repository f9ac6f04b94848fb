"""Results as HTML pages that need nothing else: one look, tables and drawings inside, no scripts.

What is laid out for a terminal is a table here, and figures take their colors from the page's
style, so that they are light or dark as the reader.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inferway.experiments.text import Drawing, Laid
from inferway.look import colors, style

if TYPE_CHECKING:
    from rich.table import Table

_PIXELS: Final = 4 / 3
"""Of a point."""
_NARROW: Final = 30.0
"""Em that a figure keeps where there is less room: it is scrolled then."""
_SIZE: Final = re.compile(r'<svg [^>]*?width="([\d.]+)pt"[^>]*?viewBox="([^"]+)"[^>]*>', re.DOTALL)
_LEFT_OUT: Final = re.compile(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", re.DOTALL)
_NAMED: Final = re.compile(r'( id="|xlink:href="#|url\(#)')
_FONT: Final = re.compile(r"(font: (?:\w+ )*?[\d.]+px|font-family:) [^;\"]+")
_COLOR: Final = re.compile(r"#[0-9a-f]{6}\b")
_WORDS: Final = re.compile(r"<text .*?>", re.DOTALL)


def document(title: str, lead: Iterable[str], body: Iterable[str]) -> str:
    """Write a page: its title, sentences below it, and what follows, which is HTML."""
    own = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    paragraphs = "".join(f'<p class="note">{escape(one)}</p>\n' for one in lead)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)} – Inferway</title>\n<style>\n{style()}{own}</style>\n</head>\n"
        f"<body>\n<header>\n<h1>{escape(title)}</h1>\n{paragraphs}</header>\n"
        f"<main>\n{''.join(body)}</main>\n</body>\n</html>\n"
    )


def section(title: str, *body: str, anchor: str = "") -> str:
    """Write a part of a page, with a heading that `anchor` leads to."""
    named = f' id="{escape(anchor)}"' if anchor else ""
    return f'<section class="panel">\n<h2{named}>{escape(title)}</h2>\n{"".join(body)}</section>\n'


def strip(
    state: str, title: str, verdict: str, reason: str, numbers: Mapping[str, tuple[str, str]]
) -> str:
    """Write a promise as the dashboard does: a word, why, and numbers with what is said of them."""
    terms = "".join(
        f"<div><dt>{escape(term)}</dt><dd>{escape(value)}"
        f"{f' <small>{escape(beside)}</small>' if beside else ''}</dd></div>\n"
        for term, (value, beside) in numbers.items()
    )
    return (
        f'<article class="strip" data-state="{escape(state)}" aria-label="{escape(title)}">\n'
        f'<div><h2>{escape(title)}</h2>\n<p class="verdict">{escape(verdict)}</p>\n'
        f'<p class="reason">{escape(reason)}</p></div>\n<dl class="numbers">{terms}</dl>\n'
        "</article>\n"
    )


def laid_out(parts: Iterable[Laid]) -> str:
    """Write what is laid out for a terminal: tables as tables, lines as paragraphs."""
    from rich.table import Table

    written = [
        _table(one)
        if isinstance(one, Table)
        else f'<p class="note">{escape(str(one))}</p>\n'
        if str(one).strip()
        else ""
        for one in parts
    ]
    return "".join(written)


def _table(laid: Table) -> str:
    title = str(laid.title or "")
    left = [column.justify == "left" for column in laid.columns]
    heads = [
        f'<th{_side(a)} scope="col">{_cell(c.header)}</th>'
        for a, c in zip(left, laid.columns, strict=True)
    ]
    rows = "".join(
        "<tr>"
        + "".join(f"<td{_side(a)}>{_cell(cell)}</td>" for a, cell in zip(left, row, strict=True))
        + "</tr>\n"
        for row in zip(*(column.cells for column in laid.columns), strict=True)
    )
    head = (
        f"<thead><tr>{''.join(heads)}</tr></thead>\n"
        if any(str(c.header).strip() for c in laid.columns)
        else ""
    )
    caption = f"<caption>{escape(title)}</caption>\n" if title else ""
    note = f'<p class="note">{escape(str(laid.caption))}</p>\n' if laid.caption else ""
    whole = scrolled(title, f"<table>{caption}{head}<tbody>\n{rows}</tbody></table>")
    return f"<div>{whole}{note}</div>\n"


def _side(left: bool) -> str:
    return ' class="left"' if left else ""


def _cell(content: object) -> str:
    return escape(str(content)).replace("\n", "<br>")


def scrolled(name: str, table: str) -> str:
    """Put a table into what scrolls where it is too wide, with the keyboard as well."""
    label = escape(name or "Numbers")
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{table}</div>\n'


def drawn(figure: Drawing, name: str, key: str) -> str:
    """Put a figure into a page, in the page's colors and type.

    Parameters
    ----------
    figure
        Its colors are those of `inferway.look`, and others stay as they are.
    name
        For those who cannot see it.
    key
        Of this page's figures only this one has it.
    """
    import matplotlib as mpl

    from inferway.experiments.figure import STYLE

    written = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(written, format="svg", metadata={"Date": None})
    text = _LEFT_OUT.sub("", written.getvalue())
    size = _SIZE.search(text)
    assert size is not None  # matplotlib has written it
    wide = float(size[1]) * _PIXELS / 16
    text = text[size.end() :]
    text = _NAMED.sub(rf"\g<1>{key}-", text)
    text = _FONT.sub(r"\1 system-ui, sans-serif", text)
    text = _recolored(text)
    return (
        f'<div class="drawing" tabindex="0" role="region" aria-label="{escape(name)}">'
        f'<svg role="img" aria-label="{escape(name)}" viewBox="{size[2]}" '
        f'style="width: {wide:.1f}rem; min-width: {min(wide, _NARROW):.1f}rem">{text.strip()}'
        "</div>\n"
    )


def _recolored(text: str) -> str:
    """Replace colors of the look by their names, and white by what is behind the figure.

    White words stand on something dark, in the dark as well.
    """
    names = {color: f"var({name})" for name, color in reversed(colors().items())}

    def name(found: re.Match[str]) -> str:
        return names.get(found[0], found[0])

    white = names.pop("#ffffff")
    words = [_COLOR.sub(name, one) for one in _WORDS.findall(text)]
    rest = [_COLOR.sub(name, one.replace("#ffffff", white)) for one in _WORDS.split(text)]
    return "".join(a + b for a, b in zip(rest, [*words, ""], strict=True))


def table_of(headings: Sequence[str], rows: str, name: str, kind: str) -> str:
    """Write a table of rows that are HTML already, of a class of the style."""
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in headings)
    return scrolled(
        name,
        f'<table class="{kind}"><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>',
    )
