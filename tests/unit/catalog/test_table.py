from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.catalog.published import Entry, chosen, pareto, table, tables
from inferway.catalog.zoo import CatalogError


def test_table_two_of_the_paper() -> None:
    found = {entry.name: entry for entry in table("paper/yolov4")}
    assert len(found) == 10
    large, tiny = found["608p"], found["tiny-288p"]
    assert (large.accuracy, large.size_bytes) == (0.657, 1577 * 2**20)
    assert 1 / large.mean_s["titan-rtx"] == pytest.approx(41.7)
    assert 1 / large.mean_s["gtx-980"] == pytest.approx(14.2)
    assert (tiny.accuracy, tiny.size_bytes) == (0.344, 160 * 2**20)
    assert 1 / tiny.mean_s["gtx-980"] == pytest.approx(433)
    # Sums of the columns as printed.
    assert sum(entry.accuracy for entry in found.values()) == pytest.approx(5.302)
    assert sum(entry.size_bytes for entry in found.values()) == 5781 * 2**20
    for hardware, total in (("titan-rtx", 3828.0), ("gtx-980", 1302.3)):
        frames = sum(1 / entry.mean_s[hardware] for entry in found.values())
        assert frames == pytest.approx(total)


def test_the_built_in_tables_are_fronts() -> None:
    for name in tables():
        assert pareto(table(name)) == table(name)
    classifiers = table("timm/pareto")
    assert len(classifiers) == 32
    assert all(set(entry.mean_s) == {"rtx3090", "i9_10940x"} for entry in classifiers)


def test_an_unknown_table() -> None:
    sentence = r"there is no catalog 'yolo'; there is paper/yolov4 and timm/pareto"
    with pytest.raises(CatalogError, match=sentence):
        table("yolo")


def beaten(one: Entry, entries: list[Entry], hardware: str) -> bool:
    for k, other in enumerate(entries):
        if other is one or hardware not in other.mean_s:
            continue
        mine, its = one.mean_s[hardware], other.mean_s[hardware]
        no_worse = its <= mine and other.accuracy >= one.accuracy
        better = its < mine or other.accuracy > one.accuracy
        if no_worse and (better or k < [e is one for e in entries].index(True)):
            return True
    return False


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    speed = st.dictionaries(st.sampled_from("ab"), st.sampled_from([1.0, 2.0, 3.0]), min_size=1)
    rows = st.tuples(st.sampled_from([0.1, 0.2, 0.3]), speed)
    return [
        Entry(f"v{k}", accuracy, 1, mean)
        for k, (accuracy, mean) in enumerate(draw(st.lists(rows, max_size=8)))
    ]


@given(entries())
def test_the_front_keeps_what_nothing_beats_on_some_hardware(given_: list[Entry]) -> None:
    expected = [
        entry
        for entry in given_
        if any(not beaten(entry, given_, hardware) for hardware in entry.mean_s)
    ]
    assert list(pareto(given_)) == expected


def test_choices_by_name() -> None:
    rows = [
        Entry("efficientnet_b0-224", 0.78, 1, {"cpu": 1.0}),
        Entry("efficientnet_b0-256", 0.79, 1, {"cpu": 2.0}),
        Entry("pnasnet5large-331", 0.82, 1, {"cpu": 0.5}),
    ]
    found = chosen(rows, ("EfficientNet-B0", "efficientnet_b0-224", "PNASNet-5-Large"))
    assert [entry.accuracy for entry in found] == [0.79, 0.78, 0.82]
    assert found[0].name == "EfficientNet-B0"
    assert chosen(rows, "all") == tuple(rows)
    assert [entry.name for entry in chosen(rows, "pareto")] == ["pnasnet5large-331"]
    with pytest.raises(CatalogError, match=r"no variant pnasnet5; did you mean pnasnet5large-331"):
        chosen(rows, ("pnasnet5",))
    with pytest.raises(CatalogError, match=r"no variant zzz$"):
        chosen(rows, ("zzz",))
