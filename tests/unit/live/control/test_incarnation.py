"""Letters count with the process that wrote them, whatever overtakes what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferway.live.control.incarnation import Early, Incarnation


def test_letters_wait_for_their_writer() -> None:
    one = Incarnation(limit_bytes=10)
    assert one.takes("x", "offers", b"123") == "early"
    assert one.takes("y", "offers", b"4") == "early"
    assert one.takes("x", "floor", b"56") == "early"
    assert one.comes("x") == ([Early("x", "offers", b"123"), Early("x", "floor", b"56")], 1)
    assert one.takes("x", "offers", b"7") is None


def test_what_a_writer_that_has_gone_wrote_is_dropped() -> None:
    one = Incarnation(limit_bytes=10)
    one.comes("x")
    one.goes("x")
    assert one.takes("x", "offers", b"1") == "gone"
    one.comes("y")
    assert one.takes("x", "offers", b"1") == "gone"
    # It was there all the time, and counts again.
    one.goes("y")
    assert one.comes("x") == ([], 0)
    assert one.takes("x", "offers", b"1") is None


def test_no_more_waits_than_may() -> None:
    one = Incarnation(limit_bytes=4)
    assert one.takes("x", "offers", b"123") == "early"
    assert one.takes("x", "offers", b"45") == "flood"
    assert one.takes("x", "offers", b"6") == "early"
    assert len(one.comes("x")[0]) == 2
    one.goes("x")
    assert one.takes("y", "offers", b"1234") == "early"


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 3)), max_size=30), st.data())
def test_each_letter_is_read_once_or_dropped_once(
    events: list[tuple[str, int]], data: st.DataObject
) -> None:
    one = Incarnation(limit_bytes=1000)
    lives, written, read, dropped = None, 0, list[bytes](), 0
    for process, letters in events:
        for _ in range(letters):
            letter = b"%d" % written
            written += 1
            match one.takes(process, "offers", letter):
                case None:
                    assert process == lives
                    read.append(letter)
                case "gone":
                    assert process != lives
                    dropped += 1
        if data.draw(st.booleans()):
            if lives is not None:
                one.goes(lives)
            own, others = one.comes(process)
            assert all(letter.writer == process for letter in own)
            read += [letter.data for letter in own]
            dropped += others
            lives = process
    if lives is not None:
        one.goes(lives)
    own, others = one.comes("nobody")
    assert own == []
    assert len(set(read)) == len(read)
    assert len(read) + dropped + others == written
