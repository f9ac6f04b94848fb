"""Pictures of the documentation: packed so that every color is near to what it was."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs"))

from pack import APART, in_few_colors, pack  # noqa: E402


def test_what_is_mixed_becomes_what_is_frequent_and_a_rare_color_stays(tmp_path: Path) -> None:
    white, blue, orange = (255, 255, 255), (0, 114, 178), (213, 94, 0)
    pixels = np.full((40, 40, 3), white, np.uint8)
    pixels[5] = blue
    pixels[6, :20] = (20, 124, 186)  # of its edge
    pixels[30, 3] = orange
    few = in_few_colors(pixels)
    assert (few[6, :20] == blue).all()
    assert (few[30, 3] == orange).all()
    assert len(np.unique(few.reshape(-1, 3), axis=0)) == 3
    random = np.random.default_rng(1).integers(0, 256, (30, 30, 3)).astype(np.uint8)
    apart = np.abs(in_few_colors(random).astype(int) - random).sum(axis=2)
    assert 0 < apart.max() <= APART

    Image.fromarray(pixels).save(tmp_path / "figure.png")
    assert pack(tmp_path / "figure.png") == tmp_path / "figure.webp"
    assert [one.name for one in tmp_path.iterdir()] == ["figure.webp"]
    with Image.open(tmp_path / "figure.webp") as packed:
        assert (np.asarray(packed.convert("RGB")) == few).all()


def test_colors_that_fill_areas_stay_apart() -> None:
    shades = np.linspace(255, 8, 64).round().astype(np.uint8)  # a scale, and a map on its white
    pixels = np.full((200, 80, 3), 255, np.uint8)
    pixels[:128, 40:] = np.stack([shades, shades, np.full(64, 255)], axis=1).repeat(2, axis=0)[
        :, None
    ]
    pixels[150:160, :20] = (247, 251, 255)
    assert (in_few_colors(pixels) == pixels).all()


def test_no_picture_is_there_that_nothing_shows() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    pictures = [one for one in (ROOT / "docs" / "images").rglob("*") if one.is_file()]
    assert pictures
    assert [one.name for one in pictures if f"{one.parent.name}/{one.name}" not in text] == []
    assert {one.suffix for one in pictures} <= {".webp", ".svg"}
