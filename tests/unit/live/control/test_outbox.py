"""Letters that wait for a link."""

from __future__ import annotations

import threading

import pytest

from inferway.live.control.outbox import Outbox

LIMIT_S = 10.0


class Link:
    """Publishes when it is open; fails when it is broken."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.broken = False
        self.entered = threading.Event()
        self.carried: list[tuple[str, bytes]] = []
        self.failed: list[tuple[str, int]] = []

    def publish(self, kind: str, data: bytes) -> None:
        self.entered.set()
        assert self.open.wait(LIMIT_S)
        if self.broken:
            raise ConnectionError
        self.carried.append((kind, data))


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def outbox(link: Link) -> Outbox:
    return Outbox("b", link.publish, lambda kind, size: link.failed.append((kind, size)), 100)


def test_nobody_waits_for_a_link_that_is_stuck(link: Link, outbox: Outbox) -> None:
    letters = [("probe", bytes([k]) * 30) for k in range(3)]
    assert all(outbox.put(*letter) for letter in letters)
    assert link.entered.wait(LIMIT_S)
    assert not outbox.put("probe", bytes(11))  # 90 of 100 bytes wait
    assert outbox.put("probe", bytes(10))
    link.open.set()
    outbox.close(LIMIT_S)
    assert link.carried == [*letters, ("probe", bytes(10))]
    assert outbox.put("probe", bytes(100))  # there is room again


def test_what_could_not_be_sent_is_said_and_the_rest_goes_on(link: Link, outbox: Outbox) -> None:
    link.broken = True
    link.open.set()
    outbox.put("probe", b"lost")
    outbox.put("worst", b"too")
    outbox.close(LIMIT_S)
    assert link.failed == [("probe", 4), ("worst", 3)]
    assert link.carried == []
