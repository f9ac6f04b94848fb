"""Random words: uniform, independent, the same with and without the JIT."""

from __future__ import annotations

import numpy as np
from scipy import stats

from inferway.site.draw import _uniform_compiled, _uniform_plain


def test_uniform_and_independent() -> None:
    words = np.random.default_rng(5).integers(-(2**63), 2**63, 20_000)
    first = np.array([_uniform_compiled(int(word), 0) for word in words])
    second = np.array([_uniform_compiled(int(word), 1) for word in words])
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    assert stats.kstest(second, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(words))


def test_words_in_a_row_are_as_good_as_random_ones() -> None:
    numbers = np.array([_uniform_compiled(word, 0) for word in range(20_000)])
    assert stats.kstest(numbers, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 5 / np.sqrt(len(numbers))


def test_plain_is_compiled() -> None:
    for word in (0, 1, -1, 2**62, -(2**63), 2**63 - 1):
        for i in (0, 1, 7):
            assert _uniform_plain(word, i) == _uniform_compiled(word, i)
