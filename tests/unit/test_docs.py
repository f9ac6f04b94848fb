"""What the documentation says exists: links, commands, options, code, deployment files."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import typer

import inferway
from inferway.cli.app import app
from inferway.site import fleet_of

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs"))

from page import FENCE  # noqa: E402

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
COMMANDS: Any = typer.main.get_command(app)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [block for found, block in FENCE.findall(text) if found == language]


def block_after(page: Path, words: str, language: str) -> str:
    """Return the first block of a language after some words."""
    text = page.read_text(encoding="utf-8")
    (found, *_) = [
        block for kind, block in FENCE.findall(text[text.index(words) :]) if kind == language
    ]
    return str(found)


def anchors(page: Path) -> set[str]:
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one).strip().lower().replace(" ", "-") for one in headings}


def said_commands(page: Path) -> list[list[str]]:
    """Every `inferway ...` in a block or in backticks, as words."""
    text = page.read_text(encoding="utf-8")
    lines = [line for _, block in FENCE.findall(text) for line in block.splitlines()]
    inline = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    headings = re.findall(r"^#+ (inferway .+)$", text, re.MULTILINE)
    found = []
    for line in [*lines, *inline, *headings]:
        match = re.match(r"(?:\$ )?(?:\S*/)?inferway (?!=)([^#|;&>]*)", line.strip())
        if match and not line.startswith("import"):
            found.append(shlex.split(match[1]))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for plain, image in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        target, _, anchor = (plain or image).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / unquote(target)).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(plain or image)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_that_is_mentioned_exists(page: Path) -> None:
    for words in said_commands(page):
        command, rest = COMMANDS, words
        while rest and getattr(command, "commands", None) and not rest[0].startswith("-"):
            assert rest[0] in command.commands, f"inferway {' '.join(words)}"
            command, rest = command.commands[rest[0]], rest[1:]
        known = {option for one in command.params for option in [*one.opts, *one.secondary_opts]}
        known |= {"--help", "-h", "--install-completion", "--show-completion"}
        given = {word.partition("=")[0] for word in rest if word.startswith("-")}
        assert given <= known, f"inferway {' '.join(words)}"


def test_the_reference_has_every_command_and_option() -> None:
    text = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")

    def sections(command: Any, path: str) -> None:
        for key, inner in getattr(command, "commands", {}).items():
            assert f"# inferway {path}{key}" in text
            section = text.split(f"# inferway {path}{key}", 1)[1].split("\n#", 1)[0]
            for option in inner.params:
                if option.param_type_name == "option" and "--json" not in option.opts:
                    assert all(f"`{one}`" in section for one in option.opts), (key, option.opts)
            sections(inner, f"{path}{key} ")

    sections(COMMANDS, "")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_compile(page: Path) -> None:
    for block in blocks(page, "python"):
        # A method may be shown by itself.
        compile(textwrap.dedent(block), name(page), "exec")


@pytest.mark.parametrize("page", [one for one in PAGES if "guides" in one.parts], ids=name)
def test_an_extra_comes_with_the_command_that_installs_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for extra in set(re.findall(r"the extra `(\w+)`", text)):
        assert re.search(rf"pip install [^`\n]*\[{extra}\]", text), extra


def test_the_readme_installs_what_nodes_need() -> None:
    assert "pip install -e '.[network]'" in block_after(
        ROOT / "README.md", "## A network of nodes", "console"
    )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"^\$ make ([a-z-]+)|`make ([a-z-]+)`", text, re.MULTILINE):
        assert re.search(rf"^{''.join(target)}:", makefile, re.MULTILINE), target


def test_the_readme_s_deployment_file_loads(tmp_path: Path) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(block_after(ROOT / "README.md", "The deployment file", "yaml"))
    deployment = inferway.load(file)
    assert not [one for one in inferway.check(deployment) if one.kind == "dominated"]
    assert deployment.unserved() == []


def test_the_readme_s_policy_decides(tmp_path: Path) -> None:
    mine = block_after(ROOT / "README.md", "A policy of your own", "python")
    (tmp_path / "mine.py").write_text(mine)
    file = tmp_path / "words.yaml"
    file.write_text(
        "tasks: {words: {accuracy_target: 0.8, dispatch: {policy: ./mine.py:CatchUp}, variants: {\n"
        "  small: {accuracy: 0.75, service: {mean: 1 s}},\n"
        "  large: {accuracy: 0.9, service: {mean: 4 s}}}}}\n"
    )
    from inferway.dispatch.deployed import dispatcher_of

    dispatcher = dispatcher_of(inferway.load(file), "words")

    def arrive(now_s: float) -> str:
        server = dispatcher.arrive(now_s, 0, float("inf"), 0.0, 0, -1, 1, True)
        return dispatcher.fleet.variants[int(server > 0)]

    # Nothing is earned yet, so the accurate one; then what it has earned pays for the quick one.
    assert arrive(0.0) == "large"
    assert dispatcher.balance == pytest.approx(0.1)
    assert arrive(0.1) == "small"
    assert dispatcher.balance == pytest.approx(0.05)
    assert arrive(0.2) == "large"  # and waits for it


def test_the_guide_s_cascade_asks_again(tmp_path: Path) -> None:
    guide = ROOT / "docs" / "guides" / "write-a-policy.md"
    (tmp_path / "cascade.py").write_text(block_after(guide, "A cascade with", "python"))
    file = tmp_path / "words.yaml"
    file.write_text(
        "tasks: {words: {accuracy_target: 0.8, difficulty: {quality: 0.8}, variants: {\n"
        "  small: {accuracy: 0.75, service: {mean: 1 s}},\n"
        "  large: {accuracy: 0.9, service: {mean: 4 s}}}}}\n"
        "nodes: {here: {instances: {words/small: 4, words/large: 9}}}\n"
        "workload: {words: {arrivals: {process: poisson, rate: 1/s}}}\n"
        "dispatch: {policy: './cascade.py:Cascade', least: 0.7}\n"
    )
    deployment = inferway.load(file)
    tables = fleet_of(deployment, "words").confidence
    assert tables is not None
    unsure = float(tables.mass[0] @ (tables.expected[0, :, 0] < 0.7))
    assert 0.1 < unsure < 0.9
    task = inferway.simulate(deployment, queries=4000, workers=1).tasks["words"]
    assert task.escalated is not None
    ((first, second, share),) = [(one.first, one.second, one.share) for one in task.escalated]
    assert (first, second) == ("small", "large")
    assert share == pytest.approx(unsure, abs=0.03)
    assert task.dispatched == pytest.approx({"small": 1.0, "large": share}, abs=0.01)


def test_the_tutorial_s_models_are_what_its_file_says(tmp_path: Path) -> None:
    tutorial = ROOT / "docs" / "tutorial.md"
    (tmp_path / "make_models.py").write_text(block_after(tutorial, "make_models.py", "python"))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "make_models.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    measured = {key: float(value) for key, value in map(str.split, done.stdout.splitlines())}
    (tmp_path / "board.yaml").write_text(block_after(tutorial, "board.yaml", "yaml"))
    deployment = inferway.load(tmp_path / "board.yaml")
    for key, variant in deployment.tasks["board"].variants.items():
        assert variant.accuracy == pytest.approx(measured[key], abs=0.005)
    assert deployment.unserved() == []
