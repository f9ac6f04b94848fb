"""What a neighbor tells, put together and taken with care."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Set
from typing import Final

from inferway.dispatch.offers import Offer, received
from inferway.live.node.listing import EMPTY, Listing, applied
from inferway.live.node.telling import Same, Tell
from inferway.live.node.told import REFRESH_S
from inferway.protocol import DTYPES, Signature

EXPIRES_S: Final = 3.0 * REFRESH_S
"""What is not told again holds for so long."""
# The answer is on its way meanwhile, and what was told before it as well.
_ASK_AGAIN_S: Final = 0.5


class MissedError(ValueError):
    """Something was told that this does not go on from; the neighbor is to be asked for all.

    Its text is the reason in a word or two.
    """


class Heard:
    """What one neighbor told last.

    A change is applied to the very listing that it names, and only when all its parts are there;
    until all is told anew, what was told before holds, as long as it would have without.

    Parameters
    ----------
    me
        The reader's name.
    neighbor
        Who tells.
    rtt_s
        Round-trip time to the neighbor, s.
    refused
        Counts what was not taken of a listing, by (neighbor, reason).

    Attributes
    ----------
    listing
        As the neighbor told it; None where nothing is known.
    offers
        Those of it that can be, with round trips from the reader.
    takes
        What tasks take and give, where that can be.
    ways
        By node that serves any of `offers`: round trips, s, and the paths that take them. There are
        few, and many offers; whoever passes requests on looks here for each.
    """

    def __init__(
        self, me: str, neighbor: str, rtt_s: float, refused: Counter[tuple[str, str]]
    ) -> None:
        self._me, self._neighbor, self._rtt_s, self._refused = me, neighbor, rtt_s, refused
        self._asked_s = -math.inf
        self.forget()

    def forget(self) -> None:
        """Know nothing: the neighbor has gone."""
        self.listing: Listing | None = None
        self.offers: tuple[Offer, ...] = ()
        self.takes: Mapping[str, Signature] = {}
        self.ways: Mapping[str, Set[tuple[float, tuple[str, ...]]]] = {}
        self._run = self._serial = 0
        self._until_s = -math.inf
        self._parts: list[Tell] = []

    def holds(self, now_s: float) -> bool:
        """Whether it was told, or confirmed, not too long ago."""
        return self._until_s > now_s

    def take(self, letter: Tell | Same, now_s: float) -> bool:
        """Take a letter.

        Returns
        -------
        bool
            Whether something else is offered now.

        Raises
        ------
        MissedError
            Where letters before it are missing, or it makes no sense.
        """
        known = self.listing is not None and letter.run == self._run
        if isinstance(letter, Same):
            if not known or letter.serial > self._serial:
                raise MissedError("missed")
            if letter.serial == self._serial:
                self._until_s = now_s + EXPIRES_S
            return False
        if known and letter.serial <= self._serial:
            return False  # it was overtaken, or came twice
        if letter.since and not (known and letter.since == self._serial):
            raise MissedError("missed")
        parts = self._gather(letter)
        if not parts:
            return False
        before = self.listing if letter.since and self.listing is not None else EMPTY
        try:
            self.listing = applied(before, [part.change for part in parts])
        except ValueError:
            raise MissedError("no change") from None
        self._run, self._serial = letter.run, letter.serial
        self._until_s = now_s + EXPIRES_S
        self._read(self.listing)
        return True

    def may_ask(self, now_s: float) -> bool:
        """Whether to ask now, having not just asked; if so, it counts as asked."""
        if now_s - self._asked_s < _ASK_AGAIN_S:
            return False
        self._asked_s = now_s
        return True

    def _gather(self, letter: Tell) -> list[Tell]:
        """Keep a part, until all are there; then return them."""
        parts = self._parts
        if parts and _of(parts[0]) != _of(letter):
            parts.clear()
        if letter.part != len(parts) or letter.part >= letter.parts:
            parts.clear()
            raise MissedError("out of order")
        parts.append(letter)
        if len(parts) < letter.parts:
            return []
        self._parts = []
        return parts

    def _read(self, listing: Listing) -> None:
        offers = []
        for offer in listing.offers:
            try:
                offers.append(received(offer, self._neighbor, self._rtt_s, me=self._me))
            except ValueError:
                self._refused[self._neighbor, "impossible"] += 1
        sound = {task: said for task, said in listing.takes.items() if _sound(said)}
        if len(sound) < len(listing.takes):
            self._refused[self._neighbor, "no signature"] += 1
        self.offers, self.takes = tuple(offers), sound
        ways: dict[str, set[tuple[float, tuple[str, ...]]]] = {}
        for offer in offers:
            ways.setdefault(offer.node, set()).add((offer.rtt_s, offer.path))
        self.ways = ways


def _of(letter: Tell) -> tuple[int, int, int, int]:
    return letter.run, letter.since, letter.serial, letter.parts


def _sound(said: Signature) -> bool:
    tensors = (*said.inputs, *said.outputs)
    return bool(said.inputs and said.outputs) and all(
        one.datatype in DTYPES and one.shape[:1] == (-1,) and min(one.shape) >= -1
        for one in tensors
    )
