"""Random words: one 64-bit word per decision, from which a policy takes all its uniform numbers."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from inferway.site.compiled import jit

_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD, _HALF = 2**64 - 1, 2**63
_UNIT = 2.0**-53


def mix(word: int) -> int:
    """Scramble a 64-bit word, one to one, as SplitMix64 does (doi 10.1145/2660193.2660195)."""
    word = ((word ^ (word >> 30)) * _MIX_1) & _WORD
    word = ((word ^ (word >> 27)) * _MIX_2) & _WORD
    return word ^ (word >> 31)


_G, _M1, _M2 = np.uint64(_GOLDEN), np.uint64(_MIX_1), np.uint64(_MIX_2)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@jit
def _scrambled(word: Any) -> Any:
    # `mix` in machine words, which wrap around by themselves.
    word = (word ^ (word >> _S30)) * _M1
    word = (word ^ (word >> _S27)) * _M2
    return word ^ (word >> _S31)


def _uniform_plain(draw: int, i: int) -> float:
    return (mix((int(draw) + (i + 1) * _GOLDEN) & _WORD) >> 11) * _UNIT


@jit
def _uniform_compiled(draw: int, i: int) -> float:
    return float(_scrambled(np.uint64(draw) + np.uint64(i + 1) * _G) >> _S11) * _UNIT


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
def _word_compiled(state: Any) -> int:
    return int(np.int64(_scrambled(state)))


@jit
def _unit_compiled(state: Any) -> float:
    return (float(_scrambled(state) >> _S11) + 0.5) * _UNIT


_PLAIN = numba.config.DISABLE_JIT
# ``uniform(draw, i)``: the word's i-th independent uniform number in [0, 1), i = 0, 1, 2, ...
# The word is a signed or unsigned 64-bit integer; worlds pass signed ones.
uniform = _uniform_plain if _PLAIN else _uniform_compiled
# ``step(state)``: the stream's next state, an unsigned 64-bit integer.
step = _step_plain if _PLAIN else _step_compiled
# ``word(state)``: the state's random word, a signed 64-bit integer, as policies get it.
word = _word_plain if _PLAIN else _word_compiled
unit = _unit_plain if _PLAIN else _unit_compiled  # ``unit(state)``: the state's number in (0, 1)


@jit
def exponential(state: Any) -> float:
    """An exponential number of mean 1."""
    return -math.log(unit(state))


def streams(seed: int, replication: int, count: int) -> np.ndarray:
    """Initial states of independent streams, (count,) uint64, for one replication of a seed."""
    return np.random.SeedSequence([seed, replication]).generate_state(count, np.uint64)
