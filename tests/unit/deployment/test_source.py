from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.deployment.errors import DeploymentError
from inferway.deployment.source import read

Write = Callable[..., Path]


def test_every_key_and_item_has_its_line(write: Write) -> None:
    source = read(write("a:\n  b: 1\n  c:\n    - x\n    - {d: 2,\n       e: 3}\n"))
    assert source.data == {"a": {"b": 1, "c": ["x", {"d": 2, "e": 3}]}}
    assert source.line(("a",)) == 1
    assert source.line(("a", "b")) == 2
    assert source.line(("a", "c", 1)) == 5
    assert source.line(("a", "c", 1, "e")) == 6
    assert source.line(("a", "c", 1, "missing")) == 5, "the line of what is around it"


def test_scalars_follow_yaml_1_2(write: Write) -> None:
    text = "x: [no, 012, 0o17, 0xff, 1_000, 1:30, 2001-12-14, .5, 1e3, true, '5', 0.9/s]\n"
    assert read(write(text)).data["x"] == [
        "no", 12, 15, 255, "1_000", "1:30", "2001-12-14", 0.5, 1000.0, True, "5", "0.9/s",
    ]  # fmt: skip


def test_an_alias_repeats_a_value(write: Write) -> None:
    assert read(write("a: &v {x: 1}\nb: *v\n")).data == {"a": {"x": 1}, "b": {"x": 1}}


def test_a_byte_order_mark_is_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_bytes(b"\xef\xbb\xbftasks: {}\n")
    assert read(path).data == {"tasks": {}}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("", 0, "the file is empty; a deployment needs at least `tasks:`"),
        ("# only a comment\n", 0, "the file is empty; a deployment needs at least `tasks:`"),
        ("- a\n- b\n", 1, "expected keys such as `tasks:` at the top of the file"),
        ("tasks\n", 1, "expected keys such as `tasks:` at the top of the file"),
        ("tasks:\n\tdigits: {}\n", 2, "a tab where YAML needs spaces; indent with spaces"),
        (
            "a: 1\n---\nb: 2\n",
            2,
            "a second document (---) starts here; a deployment file holds one",
        ),
        ("a: &x [*x]\n", 1, "an alias (*name) contains itself"),
        ("a: 1\n<<: {b: 1}\n", 2, "YAML 1.2 has no merge key (<<); write the keys out"),
        ("? [a, b]\n: 1\n", 1, "a key must be a word, not a list"),
        ("a: [1, 2\n", 2, "not YAML: expected ',' or ']', but got '<stream end>'"),
        (
            "%YAML 1.7\n---\na: 1\n",
            0,
            "not YAML that can be read: version minor part can only be 2 or 1, got (1, 7)",
        ),
        ("a: 1\nb: *nowhere\n", 2, "not YAML: found undefined alias 'nowhere'"),
    ],
)
def test_what_is_not_a_deployment_gets_one_sentence(
    write: Write, text: str, line: int, sentence: str
) -> None:
    path = write(text)
    with pytest.raises(DeploymentError) as caught:
        read(path)
    assert str(caught.value) == (f"{path}:{line}: {sentence}" if line else f"{path}: {sentence}")


def test_tags_build_nothing(write: Write) -> None:
    path = write("tasks: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(DeploymentError, match=r"d.yaml:1: tasks: the tag .* is refused"):
        read(path)


def test_a_bomb_of_aliases_is_refused(write: Write) -> None:
    with pytest.raises(DeploymentError, match="more than 200000 values once aliases"):
        read(write(BOMB))


@pytest.mark.parametrize("depth", [100, 5_000])
def test_bottomless_nesting_is_refused(write: Write, depth: int) -> None:
    with pytest.raises(DeploymentError, match="values are nested more than 60 deep"):
        read(write("a: " + "[" * depth + "]" * depth + "\n"))


def test_duplicate_keys_are_noted_with_both_lines_and_reading_goes_on(write: Write) -> None:
    source = read(write("a: 1\nb: {c: 1,\n    c: 2}\na: 3\n"))
    assert [str(p) for p in source.problems] == [
        "b.c: c is given twice, first on line 2",
        "a: a is given twice, first on line 1",
    ]
    assert [p.line for p in source.problems] == [3, 4]
    assert source.data == {"a": 1, "b": {"c": 1}}


def test_a_key_without_a_value_is_noted(write: Write) -> None:
    source = read(write("a: 1\nb:\n"))
    assert str(source.problems[0]) == "b: has no value; give it one or leave the key out"


def test_characters_written_in_halves(write: Write) -> None:
    assert read(write('a: "\\ud83d\\ude00"\n')).data == {"a": "\U0001f600"}
    with pytest.raises(DeploymentError, match=r"d\.yaml:1: an escape .* names half a character"):
        read(write('a: "\\ud83d"\n'))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"nowhere\.yaml: no such file$"):
        read(tmp_path / "nowhere.yaml")
    with pytest.raises(DeploymentError, match="this is a folder, not a deployment file"):
        read(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(DeploymentError, match="not UTF-8 text: byte 4 cannot be read"):
        read(binary)
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(9 * 2**20)
    with pytest.raises(DeploymentError, match="too many for a deployment file"):
        read(huge)
