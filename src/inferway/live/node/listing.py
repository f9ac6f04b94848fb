"""All that a node offers one neighbor at a moment, and how one such list differs from another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from inferway.dispatch.offers import Offer, Own
from inferway.protocol import Signature

MOST: Final = 500
"""Most of each kind of news in a part: a letter has a limit in bytes, and an offer has names of up
to 16 nodes."""
PARTS: Final = 100
"""Most parts of what is told at once."""
# Spare rates change all the time; what changes by less is told with the next refresh.
_WORTH: Final = 0.2

_Place = Annotated[int, msgspec.Meta(ge=0, le=MOST * PARTS)]
_Few = msgspec.Meta(max_length=MOST)


class Listing(NamedTuple):
    """Offers, and what their tasks take and give.

    Attributes
    ----------
    offers
        By task, variant and node, each of which is there once; round trips from who offers.
    takes
        What tasks take and give, where it is known; only tasks of `offers`.
    """

    offers: tuple[Offer, ...]
    takes: Mapping[str, Signature]


EMPTY: Final = Listing((), {})
"""Offers nothing."""


class Change(msgspec.Struct, array_like=True, frozen=True):
    """What makes one listing of another, or a part of that.

    Attributes
    ----------
    gone
        Places in the old listing of offers that are no more.
    rates
        Places in the old listing of offers that are as they were but for the spare rate, and that
        rate (1/s).
    offers
        Those that are new, or have changed in more.
    takes
        What tasks take and give where that has changed, each said once for all tasks of which it is
        true; None where it is no longer known.
    """

    gone: Annotated[tuple[_Place, ...], _Few] = ()
    rates: Annotated[tuple[tuple[_Place, float], ...], _Few] = ()
    offers: Annotated[tuple[Offer, ...], _Few] = ()
    takes: Annotated[tuple[tuple[Signature | None, tuple[str, ...]], ...], _Few] = ()


def listed(offers: Iterable[Offer], signature: Callable[[str], Signature | None]) -> Listing:
    """List offers, with what is known of their tasks."""
    # In an order that does not depend on what was offered before: what moves would be told anew.
    by_name = {_name(offer): offer for offer in offers}
    known = {task: signature(task) for task in dict.fromkeys(task for task, *_ in sorted(by_name))}
    return Listing(
        tuple(by_name[name] for name in sorted(by_name)),
        {task: said for task, said in known.items() if said is not None},
    )


def changes(before: Listing, after: Listing) -> list[Change]:
    """Say what makes one listing of another, in parts of at most `MOST` of each kind of news.

    Returns
    -------
    list of Change
        At least one. `applied` to `before`, all together make `after`.
    """
    old = {_name(offer): (place, offer) for place, offer in enumerate(before.offers)}
    kept = {_name(offer) for offer in after.offers}
    gone = [place for name, (place, _) in old.items() if name not in kept]
    rates: list[tuple[int, float]] = []
    offers: list[Offer] = []
    for offer in after.offers:
        place, known = old.get(_name(offer), (-1, None))
        if known == offer:
            continue
        if known and msgspec.structs.replace(known, spare_per_s=offer.spare_per_s) == offer:
            rates.append((place, offer.spare_per_s))
        else:
            offers.append(offer)
    takes = [
        (task, after.takes.get(task))
        for task in dict.fromkeys(offer.task for offer in after.offers)
        if after.takes.get(task) != before.takes.get(task)
    ]
    most = max(len(gone), len(rates), len(offers), len(takes))
    return [
        Change(
            tuple(gone[i : i + MOST]),
            tuple(rates[i : i + MOST]),
            tuple(offers[i : i + MOST]),
            _by_signature(takes[i : i + MOST]),
        )
        for i in range(0, max(most, 1), MOST)
    ]


def applied(before: Listing, parts: Sequence[Change]) -> Listing:
    """Make one listing of another.

    Raises
    ------
    ValueError
        Where the old listing has no such place, or the new one would be larger than what can be
        told at once.
    """
    offers = list(before.offers)
    gone = {place for part in parts for place in part.gone}
    for place, rate in (one for part in parts for one in part.rates):
        if place >= len(offers):
            raise ValueError(f"there is no offer {place} among {len(offers)}")
        offers[place] = msgspec.structs.replace(offers[place], spare_per_s=rate)
    if max(gone, default=-1) >= len(offers):
        raise ValueError(f"there is no offer {max(gone)} among {len(offers)}")
    by_name = {_name(offer): offer for place, offer in enumerate(offers) if place not in gone}
    by_name.update((_name(offer), offer) for part in parts for offer in part.offers)
    if len(by_name) > MOST * PARTS:
        raise ValueError(f"{len(by_name)} offers are more than {MOST * PARTS}")
    said = {task: one for part in parts for one, tasks in part.takes for task in tasks}
    known = {**before.takes, **said}
    return listed(by_name.values(), known.get)


def differ(one: Sequence[Own | Offer], other: Sequence[Own | Offer]) -> bool:
    """Whether two lists differ in more than what spare rates do from moment to moment."""
    if len(one) != len(other):
        return True
    for a, b in zip(one, other, strict=True):
        if abs(a.spare_per_s - b.spare_per_s) > _WORTH * max(a.spare_per_s, b.spare_per_s):
            return True
        if _fixed(a) != _fixed(b):
            return True
    return False


def _name(offer: Offer) -> tuple[str, str, str]:
    return offer.task, offer.variant, offer.node


def _fixed(one: Own | Offer) -> tuple[object, ...]:
    return (
        one.task,
        one.variant,
        getattr(one, "path", ()),
        one.accuracy,
        one.repository,
        one.together,
    )


def _by_signature(
    takes: Iterable[tuple[str, Signature | None]],
) -> tuple[tuple[Signature | None, tuple[str, ...]], ...]:
    tasks: dict[Signature | None, list[str]] = {}
    for task, said in takes:
        tasks.setdefault(said, []).append(task)
    return tuple((said, tuple(of)) for said, of in tasks.items())
