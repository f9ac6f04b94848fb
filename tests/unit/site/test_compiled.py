"""The cache of compiled code: each change of code is seen, and no change of prose."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import inferway
from inferway.site import cache

PACKAGE = Path(inferway.__file__).parent
ENTRIES = {
    "dispatcher": ("inferway.dispatch.steps", "inferway.dispatch.tad_op"),
    "twin": ("inferway.twin.kernel.general", "inferway.dispatch.priced"),
    "sites": ("inferway.learning.routed",),
    "placement": ("inferway.placement.infida", "inferway.placement.serving"),
}


def ran(script: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


EDITED = """
import ast, json, sys
from pathlib import Path
from inferway.site import cache

def edited(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            lines = text.splitlines(keepends=True)
            line = lines[node.lineno - 1].encode()
            changed = line[: node.col_offset] + b"7654321" + line[node.end_col_offset :]
            lines[node.lineno - 1] = changed.decode()
            return "".join(lines)
    return text + "\\nADDED = 7654321\\n"

def prosaic(text):
    first, _, rest = text.partition('\"\"\"')
    rest = rest.replace(") -> None:", ") -> object:  # said")
    return first + '\"\"\"Other words: ' + rest + "# end"

rows = []
for roots in json.loads(sys.argv[1]):
    before = cache.digest_of(roots)
    for module in cache.reachable(roots):
        file = Path(cache._file(module))
        text = file.read_text()
        file.write_text(edited(text))
        constant = cache.digest_of(roots)
        file.write_text(prosaic(text))
        words = cache.digest_of(roots)
        file.write_text(text)
        rows.append([module, constant != before, words == before])
print(json.dumps(rows))
"""


def test_a_constant_in_every_inlined_file_counts_and_prose_does_not(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "inferway", ignore=shutil.ignore_patterns("__pycache__"))
    rows = json.loads(ran(EDITED, json.dumps(list(ENTRIES.values())), PYTHONPATH=str(tmp_path)))
    assert len(rows) > 40
    assert {"inferway.site.transitions", "inferway.twin.kernel.service_times"} <= {
        row[0] for row in rows
    }
    assert [module for module, constant, _ in rows if not constant] == []
    assert [module for module, _, words in rows if not words] == []


def test_a_policy_is_of_the_entries_that_it_is_used_with_alone() -> None:
    tad = cache.reachable(ENTRIES["dispatcher"])
    assert "inferway.dispatch.tad_op" in tad
    assert "inferway.dispatch.priced" not in tad
    assert "inferway.site.selection" in tad
    # What serves requests contains no code of the twin, nor of placement.
    assert not [name for name in tad if ".twin" in name or ".placement" in name]


COMPILED = """
import json, sys
import mine
total = mine.total(3)
print(json.dumps([total, sum(mine.total.stats.cache_hits.values())]))
"""
MINE = """
from inferway.site.compiled import entry
from beside import weight

@entry
def total(n):
    '''Sum.'''
    return n * weight(n) + FROM_A_FILE

import pathlib
FROM_A_FILE = int((pathlib.Path(__file__).parent / "number").read_text())
"""
BESIDE = """
import numba

@numba.njit
def weight(n):
    return 2
"""


def test_compiled_code_is_kept_until_something_in_it_changes(tmp_path: Path) -> None:
    folder, kept = tmp_path / "code", tmp_path / "cache"
    folder.mkdir()

    def total(**files: str) -> tuple[int, bool]:
        for name, text in files.items():
            (folder / name.replace("_", ".")).write_text(text)
        places = os.pathsep.join([str(folder), str(PACKAGE.parent)])
        value, hits = json.loads(ran(COMPILED, PYTHONPATH=places, XDG_CACHE_HOME=str(kept)))
        return value, hits > 0

    assert total(mine_py=MINE, beside_py=BESIDE, number="1") == (7, False)
    assert total() == (7, True)
    assert total(mine_py=MINE.replace("Sum.", "A sum, 3 n."), beside_py=f"# 2\n{BESIDE}") == (
        7,
        True,
    )
    assert total(beside_py=BESIDE.replace("return 2", "return 3")) == (10, False)
    assert total(number="2") == (11, False)
    for file in (kept / "inferway" / "compiled").iterdir():
        file.write_bytes(file.read_bytes()[:-1])  # a disk that was full
    assert total() == (11, False)


def test_what_was_not_used_for_longest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_MOST_BYTES", 3 * (1000 + 32))
    for number in range(5):
        file = tmp_path / f"arrive-{number}.nbc"
        cache.write(file, bytes(1000))
        os.utime(file, (number, number))
    os.utime(tmp_path / "arrive-1.nbc", (9, 9))
    cache.prune(tmp_path)
    assert sorted(file.name for file in tmp_path.glob("*.nbc")) == [
        "arrive-1.nbc",
        "arrive-3.nbc",
        "arrive-4.nbc",
    ]


def test_a_file_used_again_is_as_good_as_new(tmp_path: Path) -> None:
    file = tmp_path / "arrive-1.nbc"
    cache.write(file, b"code")
    os.utime(file, (0, 0))
    assert cache.read(file) == b"code"
    assert file.stat().st_mtime > 0


def test_the_digest_is_of_the_tree() -> None:
    text = "def f(x: int) -> int:\n    'Doubled.'\n    return 2 * x  # twice\n"
    assert cache.code_digest(text.encode()) == cache.code_digest(
        ast.unparse(ast.parse("def f(x):\n    return 2 * x")).encode()
    )
    assert cache.code_digest(text.encode()) != cache.code_digest(
        text.replace("2 *", "2.0 *").encode()
    )
