"""The machine is named so that two kinds of it are told apart."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from inferway.machine import is_here, processor

PARTS = "processor\t: {0}\nCPU implementer\t: 0x41\nCPU part\t: {1}\n\n"


def test_a_processor_is_its_model(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus 3\n" * 2)
    assert processor(tmp_path) == "Abacus 3"


def test_one_that_names_no_model_is_its_board_and_parts(tmp_path: Path) -> None:
    parts = PARTS.format(0, "0xd0b") + PARTS.format(1, "0xd0b") + PARTS.format(2, "0xd05")
    (tmp_path / "cpuinfo").write_text(parts)
    assert processor(tmp_path) == "CPU implementer 0x41, CPU part 0xd0b, 0xd05"
    (tmp_path / "device-tree").mkdir()
    (tmp_path / "device-tree" / "model").write_text("Raspberry Pi 5\0")
    assert processor(tmp_path).startswith("Raspberry Pi 5, CPU implementer 0x41")


def test_one_that_says_nothing_has_a_name(tmp_path: Path) -> None:
    assert processor(tmp_path)


def test_own_addresses_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(map(is_here, ("127.0.0.1", "127.0.0.9", "::1", "0.0.0.0", "localhost")))
    assert not is_here("192.0.2.7")  # of documentation, RFC 5737
    own = psutil.net_if_addrs()
    (named, *_) = own.values()
    one = named[0]._replace(address="192.0.2.7")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {**own, "more": [one]})
    assert is_here("192.0.2.7")
    assert not is_here("192.0.2.8")
