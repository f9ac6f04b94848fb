"""Inputs that nobody meant: valid ones in which something has been changed."""

from __future__ import annotations

import random
from typing import Any

WORDS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 4, 16, 2**31, 2**53, 2**64, 10**30, 0.5, -1e308, 1e-320),
    *("", "image", "scores", "FP32", "FP16", "BYTES", "INT64", "BOOL", "tiny", "\u0000", "é" * 9),
    *([], {}, [[]], [1, 4], [4], [2, 2], [0, 4], [[0.1, 0.2, 0.3, 0.4]], [None] * 4, ["a"] * 4),
)
KEYS = (
    *("inputs", "outputs", "parameters", "id", "name", "shape", "datatype", "data"),
    *("binary_data_size", "binary_data", "binary_data_output", "classification"),
    *("accuracy", "deadline_ms", "timeout", "priority", "shared_memory_region"),
)
NUMBERS = (
    *(b"0", b"-0", b"-1", b"1", b"007", b"1e3", b"1e999", b"-1e-999", b"0x10", b"NaN", b"Infinity"),
    *(
        b"9" * 30,
        b"9" * 400,
        b"1.5",
        b"1_0",
        b"+1",
        b"4294967296",
        b"18446744073709551616",
        b"\xc2\xb2",
    ),
)
DEEP = (900, 1_100, 20_000)
"""Levels: just what a reader of JSON goes down, and more."""


def mutated(message: Any, choose: random.Random, keys: tuple[str, ...] = KEYS) -> Any:
    """The message with something in it replaced, added, left out or doubled."""
    if isinstance(message, dict) and message and choose.random() < 0.8:
        changed = dict(message)
        key = choose.choice(list(changed))
        match choose.randrange(6):
            case 0:
                del changed[key]
            case 1:
                changed[choose.choice(keys)] = choose.choice(WORDS)
            case 2:
                changed[key] = choose.choice(WORDS)
            case _:
                changed[key] = mutated(changed[key], choose, keys)
        return changed
    if isinstance(message, list | tuple) and message and choose.random() < 0.8:
        listed = list(message)
        place = choose.randrange(len(listed))
        if choose.random() < 0.2:
            listed.insert(place, listed[place])
        else:
            listed[place] = mutated(listed[place], choose, keys)
        return listed
    return choose.choice(WORDS)


def damaged(raw: bytes, choose: random.Random) -> bytes:
    """The bytes with some replaced, cut or repeated."""
    data = bytearray(raw)
    for _ in range(choose.randrange(1, 4)):
        at = choose.randrange(len(data) + 1)
        match choose.randrange(4):
            case 0:
                data[at : at + choose.randrange(8)] = choose.randbytes(choose.randrange(8))
            case 1:
                del data[at : at + choose.randrange(40)]
            case 2 if data:
                data[at % len(data)] ^= 1 << choose.randrange(8)
            case _:
                data[at:at] = data[: choose.randrange(20)]
    return bytes(data)


def nested(choose: random.Random) -> bytes:
    """JSON of many levels."""
    depth = choose.choice(DEEP)
    opening, closing = choose.choice([(b"[", b"]"), (b'{"a":', b"}")])
    return opening * depth + b"1" + closing * depth


def respelled(text: bytes, tokens: tuple[bytes, ...], choose: random.Random) -> bytes:
    """The text with words of a grammar put in, taken for others, or its lines moved about."""
    for _ in range(choose.randrange(1, 4)):
        at = choose.randrange(len(text) + 1)
        match choose.randrange(5):
            case 0:
                text = text[:at] + choose.choice(tokens) + text[at:]
            case 1:
                word = choose.choice(tokens)
                text = text.replace(word, choose.choice(tokens), choose.randrange(1, 3))
            case 2:
                lines = text.split(b"\n")
                here, there = choose.randrange(len(lines)), choose.randrange(len(lines))
                lines.insert(there, lines[here] if choose.random() < 0.5 else lines.pop(here))
                text = b"\n".join(lines)
            case 3:
                digits = [place for place, byte in enumerate(text) if 48 <= byte < 58]
                if digits:
                    place = choose.choice(digits)
                    text = text[:place] + choose.choice(NUMBERS) + text[place + 1 :]
            case _:
                text = damaged(text, choose)
    return text
