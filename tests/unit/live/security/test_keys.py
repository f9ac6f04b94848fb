from __future__ import annotations

from pathlib import Path

import pytest

from inferway.live import Keys, ServeError
from inferway.live.security.keys import keys_from

ONE, OTHER = "k" * 16, "0123456789abcdef-other"


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        (f"Bearer {ONE}", True),
        (f"bearer  {OTHER} ", True),
        (f"Bearer {ONE}x", False),
        (f"Bearer {ONE[:-1]}", False),
        (f"Basic {ONE}", False),
        (ONE, False),
        ("Bearer", False),
        ("", False),
        ("Bearer \u00e9", False),
    ],
)
def test_any_key_opens_and_nothing_else_does(header: str, allowed: bool) -> None:
    keys = Keys([ONE, OTHER])
    assert bool(keys.roles(header)) is allowed
    assert bool(keys.roles(header.encode())) is allowed


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# none\n\n", "there is no key"),
        ("short\n", "key 1 has 5 characters"),
        (f"{ONE}\n{ONE} y", "key 2 has characters other"),
    ],
)
def test_unusable_files_are_refused_without_showing_keys(
    tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ServeError, match=sentence) as refused:
        keys_from(file)
    assert ONE not in str(refused.value)
    with pytest.raises(ServeError, match="cannot be read"):
        keys_from(tmp_path / "missing")


def test_keys_come_from_a_file_or_else_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INFERWAY_KEYS", raising=False)
    assert keys_from(None) is None
    monkeypatch.setenv("INFERWAY_KEYS", f"{ONE}, {OTHER}")
    from_environment = keys_from(None)
    assert from_environment is not None
    assert from_environment.roles(f"Bearer {OTHER}")
    file = tmp_path / "keys"
    file.write_text(f"# the first\n\n  {ONE}\n")
    from_file = keys_from(file)
    assert from_file is not None
    assert from_file.roles(f"Bearer {ONE}")
    assert not from_file.roles(f"Bearer {OTHER}")
