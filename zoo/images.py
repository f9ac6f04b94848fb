"""Hard digits: scikit-learn's 8x8 handwritten digits, bent, cluttered and drowned in noise.

The originals are E. Alpaydin and C. Kaynak's *Optical Recognition of Handwritten Digits* (UCI,
DOI 10.24432/C50P49), 1,797 of which come with scikit-learn. Each is drawn on a canvas of 32x32
with a random affine map and a smooth bend, together with fragments of other digits, strokes and a
bar that hides a part, at random contrast on a sloping background, with noise.
Cluttering by fragments follows the cluttered MNIST of V. Mnih et al. (arXiv 1406.6247).

Everything is arrays over the images, so that 100,000 of them cost seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.float32]
SIDE: Final = 32  # Pixels along a side of the canvas

LEVELS: Final = 16  # Gray levels, as the originals have 17: multiples of 17 in 0..255

_SPLIT: Final = 3  # a word of entropy that no drawing uses
_FINE: Final = 64  # the originals are enlarged to this once; then the nearest point is exact enough
_EDGE: Final = 8  # empty points around the enlarged original, so that no look-up falls outside
_CHUNK: Final = 1024  # images per pass: the working set stays in the cache


@dataclass(frozen=True, slots=True)
class Originals:
    """The handwritten digits."""

    fine: Image  # [sources, 80, 80] ink 0..1, enlarged to 64x64 with an empty edge
    labels: NDArray[np.int64]  # [sources]


class Split(NamedTuple):
    """Originals by use: sorted indices, disjoint."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


def originals() -> Originals:
    """Load and enlarge the handwritten digits (needs scikit-learn)."""
    from scipy.ndimage import zoom
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = np.asarray(digits.images, np.float32) / 16
    # Cubic, point k of the enlargement at (k + 1/2)/8 - 1/2 of the original. It is linear and acts
    # on each axis alone, so enlarging the unit vectors tells all.
    unit = np.eye(8, dtype=np.float32)
    spline = [zoom(row, _FINE // 8, order=3, grid_mode=True, mode="grid-constant") for row in unit]
    enlarge = np.stack(spline, axis=1)
    large = (enlarge @ small @ enlarge.T).clip(0, 1)
    fine = np.pad(large, ((0, 0), (_EDGE, _EDGE), (_EDGE, _EDGE)))
    return Originals(fine.astype(np.float32), np.asarray(digits.target, np.int64))


def split(sources: int, *, seed: int, validation: int = 150, test: int = 600) -> Split:
    """Divide the originals at random, before anything is drawn from them."""
    order = np.random.default_rng([seed, _SPLIT]).permutation(sources)
    parts = np.split(order, [test, test + validation])
    return Split(train=np.sort(parts[2]), validation=np.sort(parts[1]), test=np.sort(parts[0]))


def draw(
    originals: Originals, source: NDArray[np.int64], pool: NDArray[np.int64], *, seed: list[int]
) -> NDArray[np.uint8]:
    """Draw one hard image from each source: uint8 of shape [N, 32, 32], multiples of 17.

    Sources are indices of the digits to be recognized, shape [N]; repeat one for several images of
    it. Clutter is taken from the indices of the pool: the part of the split that the sources are
    from, so that no test original is ever seen in training. The seed is words of entropy.
    """
    images = np.empty((len(source), SIDE, SIDE), np.uint8)
    for number, start in enumerate(range(0, len(source), _CHUNK)):
        chunk = slice(start, start + _CHUNK)
        random = np.random.default_rng([*seed, number])
        images[chunk] = _draw(originals.fine, source[chunk], pool, random)
    return images


def _draw(
    fine: Image, source: NDArray[np.int64], pool: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.uint8]:
    count = len(source)

    def uniform(low: float, high: float) -> Image:
        """One number per image, shaped to meet [N, 32, 32]."""
        return random.uniform(low, high, (count, 1, 1)).astype(np.float32)

    axis = ((np.arange(SIDE) * 2 + 1) / SIDE - 1).astype(np.float32)
    y, x = axis[None, :, None], axis[None, None, :]

    # The digit: it covers most of the canvas and stays mostly inside.
    size = uniform(0.58, 0.86)
    bend_x = uniform(0.0, 0.10) * np.sin(3 * y + uniform(0, 6.28))
    bend_y = uniform(0.0, 0.10) * np.sin(3 * x + uniform(0, 6.28))
    dx = x - uniform(-0.21, 0.21) + bend_x.astype(np.float32)
    dy = y - uniform(-0.21, 0.21) + bend_y.astype(np.float32)
    angle, shear = uniform(-0.70, 0.70), uniform(-0.3, 0.3)
    wide, high = size * uniform(0.75, 1.1), size * uniform(0.9, 1.1)
    cosine, sine = np.cos(angle), np.sin(angle)
    v = (dy * cosine - dx * sine) / high
    ink = _look_up(fine, source[:, None, None], (dx * cosine + dy * sine) / wide + shear * v, v)
    ink *= uniform(0.7, 1.0)

    # Fragments of other digits, cut by a square window.
    for _ in range(3):
        left, top, half = uniform(-0.95, 0.95), uniform(-0.95, 0.95), uniform(0.15, 0.30)
        image, row, column = np.nonzero((np.abs(x - left) < half) & (np.abs(y - top) < half))
        clutter = random.choice(pool, count)
        right, down = random.uniform(-0.5, 0.5, (2, count)).astype(np.float32)
        turned = random.uniform(-3.14, 3.14, count).astype(np.float32)
        small = random.uniform(0.45, 0.75, count).astype(np.float32)
        cosine, sine = (np.cos(turned) / small)[image], (np.sin(turned) / small)[image]
        dx, dy = x[0, 0, column] - left[image, 0, 0], y[0, row, 0] - top[image, 0, 0]
        u, v = dx * cosine + dy * sine + right[image], dy * cosine - dx * sine + down[image]
        part = _look_up(fine, clutter[image], u, v)
        at = (image, row, column)
        ink[at] = np.maximum(ink[at], part * uniform(0.3, 0.9)[image, 0, 0])

    # Strokes: segments of random place, direction, length and width.
    for _ in range(2):
        angle = uniform(0, 6.28)
        dx, dy = x - uniform(-0.9, 0.9), y - uniform(-0.9, 0.9)
        along = dx * np.cos(angle) + dy * np.sin(angle)
        across = dy * np.cos(angle) - dx * np.sin(angle)
        beyond = np.maximum(np.abs(along) - uniform(0.0, 0.5), 0)
        distance = np.sqrt(across * across + beyond * beyond) - uniform(0.0, 0.05)
        np.maximum(ink, np.clip(1 - distance * (SIDE / 2.5), 0, 1) * uniform(0.0, 1.0), out=ink)

    # A bar that hides what is behind it.
    angle = uniform(0, 6.28)
    across = x * np.cos(angle) + y * np.sin(angle) - uniform(-0.5, 0.5)
    ink *= np.abs(across) > uniform(-0.06, 0.10)

    # Light: contrast, a sloping background, noise.
    contrast = uniform(0.38, 0.75)
    ink *= contrast
    ink += 0.5 - contrast / 2 + uniform(-0.1, 0.1)
    ink += uniform(-0.15, 0.15) * x
    ink += uniform(-0.15, 0.15) * y
    ink += uniform(0.02, 0.09) * random.standard_normal(ink.shape, np.float32)
    levels = np.rint(ink.clip(0, 1) * np.float32(LEVELS - 1))
    return levels.astype(np.uint8) * np.uint8(255 // (LEVELS - 1))


def _look_up(fine: Image, source: NDArray[np.int64], u: Image, v: Image) -> Image:
    """Take the nearest point of the enlarged originals; -1..1 spans an original."""
    width = fine.shape[1]
    half = np.float32(_FINE / 2)
    column = np.clip(u * half + half, -_EDGE, _FINE + _EDGE - 1).astype(np.int32) + _EDGE
    row = np.clip(v * half + half, -_EDGE, _FINE + _EDGE - 1).astype(np.int32) + _EDGE
    flat = source.astype(np.int32) * (width * width) + row * width + column
    return np.asarray(fine.ravel().take(flat))
