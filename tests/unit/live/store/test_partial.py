"""The beginnings of model files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from inferway.live.errors import NoRoomError
from inferway.live.store.download import Partial

URI = "https://models.test/model?key=secret"


def free(needed: int, total: int | None) -> None:
    """Have room for all."""


def full(needed: int, total: int | None) -> None:
    if needed > 5:
        raise NoRoomError("full")


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_a_beginning_is_taken_up_with_its_hash_and_tag(tmp_path: Path) -> None:
    first = Partial(tmp_path / "model", free).open()
    first.restart(URI, '"one"')
    first.append(b"abc")
    first.close()
    second = Partial(tmp_path / "model", free).open()
    assert second.received == 3
    assert second.validator(URI) == '"one"'
    assert second.validator("https://elsewhere.test/") is None
    second.append(b"def")
    assert second.digest == digest_of(b"abcdef")
    number = second.path.stat().st_ino
    whole = second.finish()
    assert whole.read_bytes() == b"abcdef"
    # Renamed, not copied: at no moment is there a file of this name that is not whole.
    assert whole.stat().st_ino == number
    second.close()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_is_kept_of_a_uri_holds_no_keys(tmp_path: Path) -> None:
    part = Partial(tmp_path / "model", free).open()
    part.restart(URI, '"one"')
    part.append(b"abc")
    part.close()
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.iterdir())


def test_a_new_start_forgets_bytes_and_tag(tmp_path: Path) -> None:
    part = Partial(tmp_path / "model", free).open()
    part.restart(URI, '"one"')
    part.append(b"abc")
    part.restart(URI)
    assert part.validator(URI) is None
    part.append(b"x")
    assert part.digest == digest_of(b"x")
    assert part.path.read_bytes() == b"x"
    part.close()


@pytest.mark.parametrize("origin", [b"", b"\xff", b"[]", b"{}", b'{"uri": 1}', b'"x"'])
def test_a_damaged_note_is_no_tag(tmp_path: Path, origin: bytes) -> None:
    (tmp_path / "model.origin").write_bytes(origin)
    part = Partial(tmp_path / "model", free).open()
    assert part.validator(URI) is None
    part.close()


def test_without_room_the_beginning_goes(tmp_path: Path) -> None:
    part = Partial(tmp_path / "model", full).open()
    part.append(b"abc")
    with pytest.raises(NoRoomError, match="full"):
        part.append(b"def")
    part.close()
    assert list(tmp_path.iterdir()) == []


def test_nothing_received_leaves_nothing(tmp_path: Path) -> None:
    part = Partial(tmp_path / "model", free).open()
    part.restart(URI, '"one"')
    part.close()
    assert list(tmp_path.iterdir()) == []
