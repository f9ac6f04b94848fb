"""Which model files stay on the disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from inferway.live.errors import NoRoomError
from inferway.live.store.store import Cache


def digest(name: str) -> str:
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def cache(folder: Path, limit: int, clock: Clock | None = None) -> Cache:
    return Cache(folder, limit, Clock() if clock is None else clock)


def add(cache: Cache, name: str, size: int) -> None:
    cache.begin(digest(name))
    cache.claim(digest(name), size, 0)
    cache.path(digest(name)).write_bytes(bytes(size))
    cache.end(digest(name))


def leave(cache: Cache, name: str, size: int) -> Path:
    """Leave the beginning of a file."""
    cache.begin(digest(name))
    cache.claim(digest(name), size, 0)
    part = cache.path(digest(name)).with_suffix(".part")
    part.write_bytes(bytes(size))
    part.with_suffix(".origin").write_text("{}")
    cache.end(digest(name))
    return part


def names(cache: Cache, *known: str) -> list[str]:
    by_digest = {digest(name): name for name in known}
    return [by_digest[one.digest] for one in cache.contents()]


def test_beginnings_go_first_then_what_was_used_longest_ago(tmp_path: Path) -> None:
    kept = cache(tmp_path, 100)
    for name in "abc":
        add(kept, name, 20)
    part = leave(kept, "d", 40)
    kept.hold(digest("a"), 0)
    assert kept.used_bytes == 100
    add(kept, "e", 10)
    assert not part.exists()
    assert not part.with_suffix(".origin").exists()
    assert names(kept, *"abce") == ["b", "c", "a", "e"]
    add(kept, "f", 60)
    assert names(kept, *"abcef") == ["a", "e", "f"]
    assert {path.name for path in tmp_path.iterdir()} == {digest(one)[7:] for one in "aef"}


def test_what_is_used_or_on_its_way_stays(tmp_path: Path) -> None:
    kept = cache(tmp_path, 100)
    add(kept, "a", 40)
    kept.hold(digest("a"))
    kept.hold(digest("a"))
    kept.hold(digest("a"), -1)
    kept.begin(digest("b"))
    kept.claim(digest("b"), 30, 0)
    kept.begin(digest("c"))
    with pytest.raises(NoRoomError, match=r"31 bytes does not fit: .* 70 of them are in"):
        kept.claim(digest("c"), 31, 0)
    kept.claim(digest("c"), 30, 0)
    kept.end(digest("b"))
    assert kept.used_bytes == 70
    kept.hold(digest("a"), -1)
    kept.claim(digest("c"), 70, 30)
    assert kept.contents() == ()


def test_what_can_never_fit_evicts_nothing(tmp_path: Path) -> None:
    kept = cache(tmp_path, 100)
    add(kept, "a", 40)
    kept.begin(digest("b"))
    with pytest.raises(NoRoomError):
        kept.claim(digest("b"), 101, 0)
    assert names(kept, "a") == ["a"]


def test_the_order_outlives_the_process_and_a_clock_that_jumps(tmp_path: Path) -> None:
    clock = Clock()
    kept = cache(tmp_path, 100, clock)
    add(kept, "a", 10)
    add(kept, "b", 10)
    clock.now_s = 1e9
    kept.hold(digest("a"), 0)
    clock.now_s = 5.0
    kept.hold(digest("b"), 0)
    add(kept, "c", 10)
    assert names(kept, *"abc") == ["a", "b", "c"]
    assert names(cache(tmp_path, 100), *"abc") == ["a", "b", "c"]
    # With less room than at the last start, the same goes first.
    assert names(cache(tmp_path, 25), *"abc") == ["b", "c"]


def test_a_start_takes_up_what_is_there_and_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    kept = cache(tmp_path, 100)
    add(kept, "a", 10)
    leave(kept, "b", 20)
    (tmp_path / f"{digest('c')[7:]}.origin").write_text("{}")
    (tmp_path / "readme").write_text("mine")
    again = cache(tmp_path, 100)
    assert again.used_bytes == 30
    assert names(again, "a") == ["a"]
    assert {path.suffix for path in tmp_path.iterdir()} == {"", ".part", ".origin"}
    assert not (tmp_path / f"{digest('c')[7:]}.origin").exists()
    assert (tmp_path / "readme").exists()


def test_a_disk_without_room_is_said_before_anything_comes(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    more = free.f_bavail * free.f_frsize * 2
    kept = cache(tmp_path, 10 * more)
    add(kept, "a", 10)
    kept.begin(digest("b"))
    kept.hold(digest("a"))
    with pytest.raises(NoRoomError, match=r"do not fit: the disk of .+ has [\d,]+ bytes left"):
        kept.claim(digest("b"), more, 0)
    # What is there already needs no room.
    kept.claim(digest("b"), more, more)
