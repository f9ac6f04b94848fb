"""The letters in which neighbors tell each other what they offer.

What a node has told a neighbor has a serial number, and the node's run another, drawn when it
starts: together they say of which listing a letter speaks.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Final

import msgspec

from inferway.live.node.listing import PARTS, Change
from inferway.unreadable import UNREADABLE, fault

RUN_BITS: Final = 32
"""Bits of a run's number."""
# A reader keeps all parts until the last has come.
_UNPACKED_BYTES: Final = 4 << 20

_Run = Annotated[int, msgspec.Meta(ge=0, le=(1 << RUN_BITS) - 1)]
_Serial = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Part = Annotated[int, msgspec.Meta(ge=0, lt=PARTS)]
_Parts = Annotated[int, msgspec.Meta(ge=1, le=PARTS)]


class Tell(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """What has changed, or a part of that.

    Attributes
    ----------
    run
        The sender's.
    since
        Serial number of the listing that has changed; 0, which is of an empty one, where all is
        told.
    serial
        Of what has become of it, above `since`.
    part, parts
        The how manieth this is, from 0, of so many that make the change.
    change
        The news.
    """

    run: _Run
    since: _Serial
    serial: _Serial
    part: _Part
    parts: _Parts
    change: Change


class Same(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """What was told under a serial number still holds."""

    run: _Run
    serial: _Serial


class Ask(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Asks to be told all."""


Letter = Tell | Same | Ask

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Letter] = msgspec.msgpack.Decoder(Letter)


def packed(letter: Letter) -> bytes:
    """Write a letter."""
    # Offers of one node repeat its name and the way there: a fifth of their bytes is left.
    return zlib.compress(_encode(letter), 1)


def unpacked(data: bytes) -> Letter:
    """Read a letter.

    Raises
    ------
    ValueError
        Where it is none.
    """
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(data, _UNPACKED_BYTES)
        if not stream.eof:
            raise ValueError("it does not end, or unpacks to too much")
        return _decoder.decode(content)
    except (*UNREADABLE, zlib.error) as error:
        raise ValueError(fault(error)) from None
