"""Both ends of a link come to hold the same, whatever becomes of what is sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.live.control import link as links
from inferway.live.control.link import PeerLink, Sample, WholeState


def sample(number: int, name: str, data: bytes | None = b"x", process: str = "1") -> Sample:
    return Sample(process, number, "menu", name, data)


def reader(*samples: Sample, at: int = 0) -> PeerLink:
    """One that holds a state as of a number."""
    link = PeerLink()
    assert link.see("1", True)
    link.settle(WholeState("1", at, list(samples)))
    assert link.whole
    return link


def held(link: PeerLink) -> dict[str, int]:
    return {key: one.number for key, one in link._held.items() if one.there}


def test_values_that_are_as_before_are_no_change() -> None:
    link = PeerLink()
    assert [link.say("menu/1", data) for data in (b"a", b"a", b"b", None, None)] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert (link.number, link.values) == (3, {})


def test_changes_that_follow_each_other_are_taken_and_a_gap_is_seen() -> None:
    link = reader(at=4)
    assert link.take(sample(5, "1")) is None
    assert link.take(sample(5, "")) is None  # a message is of the same number
    assert link.take(sample(6, "2")) is None
    assert link.take(sample(7, "1", None)) is None
    assert link.whole
    assert held(link) == {"menu/2": 6}
    assert link.take(sample(9, "3")) is None
    assert not link.whole
    # The state may be older or newer than what has come since.
    for at, whole in ((7, False), (8, True), (12, True)):
        link = reader(at=7)
        link.take(sample(9, "3"))
        link.settle(WholeState("1", at, []))
        assert link.whole is whole
        assert held(link) == ({} if at == 12 else {"menu/3": 9})


@pytest.mark.parametrize("later", [sample(6, ""), sample(4, ""), sample(7, "2"), sample(5, "2")])
def test_messages_and_what_comes_twice_show_a_gap_as_well(later: Sample) -> None:
    link = reader(sample(5, "1"), at=5)
    link.take(later)
    assert not link.whole


def test_only_the_process_that_counts_is_heard_and_all_else_is_forgotten_with_it() -> None:
    link = reader(sample(3, "1"), at=3)
    assert link.take(sample(4, "2", process="2")) == "gone"
    assert link.whole
    assert link.see("2", True)
    assert (held(link), link.whole, link.process) == ({}, False, "2")
    assert link.take(sample(4, "2")) == "gone"
    assert link.take(sample(1, "2", process="2")) is None
    assert not link.see("1", False)
    assert link.process == "2"
    assert link.see("2", False)
    assert link.process is None
    assert link.take(sample(2, "2", process="2")) == "gone"
    # No more of them than a neighbor can have.
    assert [link.see(f"{k}", True) for k in range(6)] == [True] * 4 + [False] * 2


def test_a_deleted_value_does_not_come_back_with_an_older_state() -> None:
    link = reader(sample(1, "1"), at=1)
    link.take(sample(3, "2"))
    link.take(sample(4, "1", None))
    news = link.settle(WholeState("1", 3, [sample(3, "1"), sample(3, "2"), sample(3, "3")]))
    assert [one.name for one in news] == ["3"]
    assert held(link) == {"menu/2": 3, "menu/3": 3}
    assert link.whole
    assert len(link._held) == 2


def test_no_more_is_held_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "STATE_BYTES", 100)
    link = reader()
    assert link.take(sample(1, "1", bytes(90))) is None
    assert link.take(sample(2, "2", bytes(10))) == "full"
    assert link.take(sample(3, "1", bytes(10))) is None
    assert link.take(sample(4, "2", bytes(50))) is None
    assert link.take(sample(5, "1", None)) is None
    assert link.take(sample(6, "3", bytes(30))) is None
    assert link.take(sample(7, "4", bytes(30))) == "full"
    assert link._bytes == sum(one.size for one in link._held.values())


class Line:
    """One who tells and one who hears, and between them samples that may come to any harm."""

    def __init__(self) -> None:
        self.run = 1
        self.sender, self.reader = PeerLink(), PeerLink()
        self.values: dict[str, bytes] = {}
        """What the reader's user has been told."""
        self.mail: list[Sample] = []
        self.asked: list[WholeState] = []
        self.reader.see("1", True)

    def say(self, name: str, data: bytes | None) -> None:
        if self.sender.say(f"menu/{name}", data):
            self.mail.append(sample(self.sender.number, name, data, f"{self.run}"))

    def hold(self) -> None:
        self.mail.append(sample(self.sender.number, "", b"", f"{self.run}"))

    def carry(self, which: int, left: int) -> None:
        """Carry a sample, and leave so many copies on the way."""
        if self.mail:
            one = self.mail.pop(which % len(self.mail))
            self.mail += [one] * left
            if self.reader.take(one) is None and one.name:
                self._tell([one])

    def lose(self, which: int) -> None:
        if self.mail:
            del self.mail[which % len(self.mail)]

    def ask(self) -> None:
        number = self.sender.number
        all_of_it = [
            sample(number, key.partition("/")[2], data, f"{self.run}")
            for key, data in self.sender.values.items()
        ]
        self.asked.append(WholeState(f"{self.run}", number, all_of_it))

    def answer(self, lost: bool) -> None:
        if self.asked:
            snapshot = self.asked.pop(0)
            if not lost and snapshot.process == self.reader.process:
                self._tell(self.reader.settle(snapshot))

    def restart(self, seen_at_once: bool) -> None:
        before, self.run = self.run, self.run + 1
        self.sender = PeerLink()
        for process, there in ((before, False), (self.run, True))[:: 1 if seen_at_once else -1]:
            if self.reader.see(f"{process}", there):
                self.values.clear()

    def _tell(self, news: list[Sample]) -> None:
        for one in news:
            self.values.pop(one.name, None)
            if one.data is not None:
                self.values[one.name] = one.data


names = st.sampled_from(["1", "2", "3"])
contents = st.none() | st.sampled_from([b"a", b"b"])
steps = st.one_of(
    st.tuples(st.just("say"), names, contents),
    st.tuples(st.just("say"), names, contents),
    st.tuples(st.just("hold")),
    st.tuples(st.just("carry"), st.just(0), st.just(0)),
    st.tuples(st.just("carry"), st.just(0), st.just(0)),
    st.tuples(st.just("carry"), st.integers(0, 5), st.integers(0, 1)),
    st.tuples(st.just("lose"), st.integers(0, 5)),
    st.tuples(st.just("ask")),
    st.tuples(st.just("answer"), st.booleans()),
    st.tuples(st.just("restart"), st.booleans()),
)


@settings(max_examples=300)
@given(st.lists(steps, max_size=40))
def test_whatever_is_lost_the_next_sample_makes_it_good(story: list[tuple[Any, ...]]) -> None:
    line = Line()
    for what, *given_to_it in story:
        getattr(line, what)(*given_to_it)
    # What is still on its way comes in its order, then that all holds, and an answer if asked.
    while line.mail:
        line.carry(0, 0)
    while line.asked:
        line.answer(lost=False)
    for _ in range(2):
        line.hold()
        line.carry(0, 0)
        if not line.reader.whole:
            line.ask()
            line.answer(lost=False)
    assert line.reader.whole
    said = {key.partition("/")[2]: data for key, data in line.sender.values.items()}
    assert line.values == said
    assert len(line.reader._held) == len(said)
