"""Pack pictures of the documentation as WebP, with no more colors than a reader can tell apart.

::

    python docs/pack.py docs/images/studies/regret.png

Each goes where it was, as `.webp`, and its PNG goes away. A figure has few colors and many that
antialiasing mixes of them, which are the most of its bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

APART = 120
"""Sum over red, green and blue, of 255 each, by which a pixel may come to differ."""
AREA = 30
"""Squares of two by two pixels of one color that make it one that fills an area."""


def in_few_colors(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(height, width, 3) pixels, each in one of the picture's frequent colors that is near to it.

    A color that is farther than `APART` from all more frequent ones stays, and so does one that
    fills an area, as those of a map or of its scale do.
    """
    numbers = pixels.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1])
    distinct, which, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    colors = np.stack([distinct >> 16, distinct >> 8 & 255, distinct & 255], axis=1)
    nearest, distances = colors.copy(), np.full(len(colors), 1 << 20)
    which = which.reshape(numbers.shape)
    fills = np.bincount(which[:-1, :-1][_alike(which)], minlength=len(colors)) >= AREA
    for one in np.lexsort([-counts, ~fills]):
        if fills[one] or distances[one] > APART:
            to_it = np.abs(colors - colors[one]).sum(axis=1)
            nearest[to_it < distances] = colors[one]
            distances = np.minimum(distances, to_it)
    return nearest[which].astype(np.uint8)


def _alike(which: NDArray[np.intp]) -> NDArray[np.bool_]:
    """(height - 1, width - 1): of each square of four pixels, whether they are of one color."""
    above = which[:-1, :-1] == which[:-1, 1:]
    below = which[1:, :-1] == which[1:, 1:]
    return above & below & (which[:-1, :-1] == which[1:, :-1])


def pack(file: Path) -> Path:
    """Write a picture as WebP in place of what it was; its new file."""
    with Image.open(file) as opened:
        pixels = in_few_colors(np.asarray(opened.convert("RGB")))
    packed = file.with_suffix(".webp")
    Image.fromarray(pixels).save(packed, lossless=True, quality=100, method=6)
    if file != packed:
        file.unlink()
    return packed


def main() -> None:
    """Pack those that are named."""
    parser = argparse.ArgumentParser(description="Pack pictures of the documentation.")
    parser.add_argument("files", nargs="*", type=Path, metavar="PICTURE")
    for file in parser.parse_args().files:
        before = file.stat().st_size
        packed = pack(file)
        print(f"{packed}: {before:,} to {packed.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
