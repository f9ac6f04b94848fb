"""A command's whole answer as text, with a word in place of what differs from run to run."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import inferway
from inferway.cli import main

PLACEHOLDERS: Final = {
    "{version}": "Inferway's version",
    "{here}": "the folder that the command runs in",
    "{cache}": "the folder of compiled code",
    "{measured}": "a time or size of memory that was measured, or what follows from it",
    "{made}": "an identifier that was made for one answer",
    "{port}": "the port at which a server listens",
    "{now}": "the date of an answer",
    "{listed}": "what the shipped zoo lists after its first variant, told by a digest of its lines",
}
"""All there are; whatever they stand for, the rest is compared letter by letter."""

MEASURED: Final = (
    "cpu_s_per_slot",
    "largest_run_bytes",
    "last_inference",
    "latency_ms",
    "mean_latency_s",
    "mean_service_s",
    "ns",
    "one_row_bytes",
    "predicted_latency_ms",
    "predicted_service_ms",
    "predicted_wait_ms",
    "queries_per_cpu_s",
    "requests_per_cpu_s",
    "rows_per_request",
    "seconds",
    "service_ms",
)
"""Keys of JSON whose numbers are of this machine and run."""

_OF_CONSOLES: Final = ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TERMINAL_WIDTH")
_NUMBER = re.compile(rf'("(?:{"|".join(MEASURED)})": ?)[-+0-9.e]+')
_ROW = re.compile(r"(per CPU second ) *[0-9.]+ M")
_TOOK = re.compile(r"(computed in ) *[0-9.]+ \S+")
# Of packed bodies, and of answers that say how long they took.
_BYTES = re.compile(r"(flat JSON, |\")[0-9]+ bytes(\"| for)")
# How often neighbors have told each other the same.
# Of nodes; neighbors that are slow to answer are asked whether they live.
_NODE = re.compile(r'("(?:asked|hung|cpu_s|rtt_s)":)(?:[0-9.e-]+|null)')
_LETTERS = re.compile(r'("menu":)\{"letters":[0-9]+,"bytes":[0-9]+\}')
_FLOAT = re.compile(r"-?[0-9]+\.[0-9]{9,}(e-?[0-9]+)?")
# Lines around text, and what fills a row of them: as wide as the console, and nothing to read.
_RULE = re.compile(r"(─|━|═){4,}")
_FILLED = re.compile(r" {2,}│$", re.MULTILINE)
_VERSION = re.compile(rf'(inferway |"version": ?"){re.escape(inferway.__version__)}')


def transcript(folder: Path, arguments: Sequence[str]) -> str:
    """Run a command in a folder; what it prints, where, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with (
        _as_in(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(list(arguments))
    told = f"$ inferway {' '.join(arguments)}\nexit code {code}\n"
    for name, stream in (("standard output", out), ("standard error", err)):
        if text := stream.getvalue():
            told += f"--- {name}\n{_ending(text)}"
    return plain(told, folder)


def plain(text: str, folder: Path) -> str:
    """Put the placeholders in."""
    # Beyond, sums are of the processor: of how many numbers it adds at once.
    text = _FLOAT.sub(_nine_digits, text)
    for measured in (_NUMBER, _ROW, _TOOK, _LETTERS, _NODE):
        text = measured.sub(r"\1{measured}", text)
    text = _BYTES.sub(r"\1{measured} bytes\2", text)
    text = _FILLED.sub(" │", _RULE.sub(r"\1\1\1", text))
    for place in {str(folder), str(folder.resolve())}:
        text = text.replace(place, "{here}")
    return _VERSION.sub(r"\1{version}", text)


def _nine_digits(found: re.Match[str]) -> str:
    number = float(found[0])
    return f"{number:.9g}" if abs(number) > 1e-12 else "0.0"


def _ending(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n(no newline at the end)\n"


def environment() -> dict[str, str]:
    """Give commands a console of a fixed width without colors, and no settings of this user's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("INFERWAY_", "LC_")) and name not in _OF_CONSOLES
    }
    fixed = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "LANG": "C.UTF-8"}
    return kept | fixed


@contextlib.contextmanager
def _as_in(folder: Path) -> Iterator[None]:
    """Stand in a folder, with the fixed environment."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment())
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
