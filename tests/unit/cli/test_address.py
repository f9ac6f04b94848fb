"""The key that commands show a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferway.cli.options import key
from inferway.cli.terminal import CommandError
from inferway.live.security.keys import keys_from


def test_a_servers_own_file_of_keys_gives_the_first(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("# of the night shift\n\n  first-key-0123456789\n# old\nsecond-key-012345678\n")
    found = key(file)
    assert found == "first-key-0123456789"
    keys = keys_from(file)
    assert keys is not None
    assert keys.roles(f"Bearer {found}")


def test_a_file_of_comments_holds_no_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("# none yet\n\n")
    with pytest.raises(CommandError, match="holds no key"):
        key(file)
