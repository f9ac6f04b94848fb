"""Random numbers of a run: streams of 64-bit words, and what is drawn from a word.

A stream is a counter that steps by the golden ratio and is scrambled when read (SplitMix64, doi
10.1145/2660193.2660195): its whole state is one integer that a kernel keeps in a register.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from inferway.site.compiled import jit
from inferway.site.draw import mix

_GOLDEN, _WORD, _HALF = 0x9E3779B97F4A7C15, 2**64 - 1, 2**63
_UNIT = 2.0**-53
_G, _M1, _M2 = np.uint64(_GOLDEN), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def _step_plain(state: Any) -> Any:
    return np.uint64((int(state) + _GOLDEN) & _WORD)


def _word_plain(state: Any) -> int:
    return (mix(int(state)) + _HALF) % 2**64 - _HALF


def _unit_plain(state: Any) -> float:
    return ((mix(int(state)) >> 11) + 0.5) * _UNIT


@jit
def _step_compiled(state: Any) -> Any:
    return state + _G


@jit
def _scrambled(state: Any) -> Any:
    # `inferway.site.draw.mix` in machine words, which wrap around by themselves.
    word = (state ^ (state >> _S30)) * _M1
    word = (word ^ (word >> _S27)) * _M2
    return word ^ (word >> _S31)


@jit
def _word_compiled(state: Any) -> int:
    return int(np.int64(_scrambled(state)))


@jit
def _unit_compiled(state: Any) -> float:
    return (float(_scrambled(state) >> _S11) + 0.5) * _UNIT


_PLAIN = numba.config.DISABLE_JIT
step = _step_plain if _PLAIN else _step_compiled
"""``step(state)``: the stream's next state, an unsigned 64-bit integer."""
word = _word_plain if _PLAIN else _word_compiled
"""``word(state)``: the state's random word, a signed 64-bit integer, as policies get it."""
unit = _unit_plain if _PLAIN else _unit_compiled
"""``unit(state)``: the state's number in (0, 1)."""


@jit
def exponential(state: Any) -> float:
    """An exponential number of mean 1."""
    return -math.log(unit(state))


def streams(seed: int, replication: int, count: int) -> np.ndarray:
    """Initial states of independent streams, (count,) uint64, for one replication of a seed."""
    return np.random.SeedSequence([seed, replication]).generate_state(count, np.uint64)
