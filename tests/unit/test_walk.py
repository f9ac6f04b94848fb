"""How pages of the documentation are read and run, without running the real ones."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs"))

import walk  # noqa: E402
from page import Code, Command, commands, steps  # noqa: E402


def test_a_command_goes_on_to_the_end_of_its_quotes_and_backslashes() -> None:
    block = "$ curl -d '{\n    \"a\": 1}'\n{}\n$ ls \\\n  -l  # it's all\ntotal 0\n$ pwd\n"
    first, second, third = commands(block, 7)
    assert first == Command(7, "curl -d '{\n    \"a\": 1}'", "{}\n")
    assert second == Command(10, "ls \\\n  -l  # it's all", "total 0\n")
    assert third == Command(13, "pwd", "")


def test_what_follows_a_command_is_what_it_prints_even_with_a_number_sign() -> None:
    (one,) = commands("$ export\n# Pipeline\nvariants:\n")
    assert one.prints == "# Pipeline\nvariants:\n"
    (other,) = commands("# systemctl start x\n")
    assert other.root
    with pytest.raises(ValueError, match="line 3: a console block begins"):
        list(commands("systemctl start x\n", 3))


def test_files_are_those_that_the_page_names(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "This is `a/b.py`, whole:\n\n```python\nx = 1\n```\n\nthen `/etc/c.yaml`:\n\n"
        "```yaml\na: 1\n```\n\nor\n\n```console\n$ ls\n```\n"
    )
    assert list(steps(page)) == [
        Code(4, "python", "x = 1\n", "a/b.py"),
        Code(10, "yaml", "a: 1\n", None),
        Command(16, "ls", ""),
    ]


def test_python_goes_on_with_the_blocks_whose_names_it_uses() -> None:
    first, second, third = (
        Code(line, "python", text, None)
        for line, text in ((1, "import a\nb = a"), (5, "c = 2"), (9, "def f(x):\n    print(b, x)"))
    )
    assert walk.before(third, [first, second]) == [first]
    assert walk.before(second, [first]) == []


def test_addresses_of_a_page_are_paired_with_those_of_the_server() -> None:
    shown = "enter at x: http://127.0.0.1:10\nenter at y: http://127.0.0.1:20\n"
    printed = "enter at y: http://127.0.0.1:77\nenter at x: http://127.0.0.1:66\n"
    assert walk.addresses(shown, printed) == {
        "127.0.0.1:10": "127.0.0.1:66",
        "127.0.0.1:20": "127.0.0.1:77",
    }


def test_a_server_takes_the_place_of_one_on_its_port() -> None:
    assert walk.places("inferway serve a.yaml") & walk.places("inferway serve b.yaml --no-grpc")
    assert not walk.places("inferway serve a.yaml --http-port 9000") & walk.places(
        "inferway serve b.yaml"
    )
    assert walk.places("inferway up a.yaml --dashboard") & walk.places("inferway dashboard URL")


def test_what_is_skipped_stands_on_its_page() -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in walk.PAGES}
    for one in walk.SKIPPED:
        texts = pages.values() if one.page == "*" else [pages[one.page]]
        assert any(one.words in text for text in texts), one


def test_a_page_is_run_in_a_copy_and_failures_are_counted(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`say.py`:\n\n```python\nprint('said')\n```\n\n```console\n$ mkdir away && cd away\n"
        "$ python ../say.py && ls ../examples/digits.yaml\n$ pip install x\n$ (exit 3)\n```\n\n"
        "```python\nimport os\n\nassert os.getcwd().endswith('away')\n```\n"
    )
    done: list[walk.Step] = []
    walk.walk([page], done.append)
    assert [(step.code, step.failed) for step in done] == [
        (0, False),
        (0, False),
        (None, False),
        (3, True),
        (0, False),
    ]
    assert done[1].output == "said\n../examples/digits.yaml\n"
    assert "package index" in done[2].note
    assert not (ROOT / "away").exists()


def test_one_page_by_name_as_json() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/walk.py"), "--page", "emulate-a-network", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["counts"]["failed"] == 0
    assert found["counts"]["skipped"] == len(found["steps"]) == 5
    assert {step["page"] for step in found["steps"]} == {"emulate-a-network"}


def test_an_answer_that_is_an_error_fails(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        answering = threading.Thread(target=server.serve_forever)
        answering.start()
        page = tmp_path / "page.md"
        page.write_text(f"```console\n$ curl -s http://127.0.0.1:{server.server_port}/\n```\n")
        done: list[walk.Step] = []
        try:
            walk.walk([page], done.append)
        finally:
            server.shutdown()
            answering.join()
    (step,) = done
    assert step.failed
    assert "501" in step.output
