"""Words that are alike: how many letters apart, and which one was probably meant."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST = 80  # letters of what may be a slip of somebody's finger


def edits(word: str, other: str, most: int) -> int:
    """Count the letters to be added, left out, changed or swapped with the next to turn one word
    into the other.

    Returns
    -------
    int
        Never more than `most` + 1, which stands for all that is farther.
    """
    if abs(len(word) - len(other)) > most or max(len(word), len(other)) > _LONGEST:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(word, 1):
        earlier, before, row = before, row, [i]
        for j, against in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != against))
            if i > 1 and j > 1 and letter == other[j - 2] and word[i - 2] == against:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
    return min(row[-1], most + 1)


def closest(word: str, known: Iterable[str]) -> str | None:
    """Find the known word that was probably meant; None where none is near.

    Near is one edit of a short word, two of a longer one, and a word that is a part of the other.
    """
    found: tuple[int, str] | None = None
    plain = _plain(word)
    for one in known:
        other = _plain(one)
        short = min(len(plain), len(other))
        most = 0 if short < 3 else 1 if short < 4 else 2
        apart = edits(plain, other, most)
        if apart == 2 and short < 6 and plain[:1] != other[:1]:
            apart = 3
        if apart > most and short >= 4 and (plain in other or other in plain):
            apart = most = 3
        # It may begin as the other one, but for one edit.
        begun = (other[:end] for end in range(len(plain) - 1, len(plain) + 2))
        if apart > most and len(plain) >= 5 and any(edits(plain, part, 1) <= 1 for part in begun):
            apart = most = 4
        if apart <= most and (found is None or apart < found[0]):
            found = apart, one
    return None if found is None else found[1]


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")
