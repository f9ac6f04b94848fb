"""The look of all pages, by one stylesheet: what the dashboard shows and what reports are."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_VALUE = re.compile(r"(--[\w-]+): (#[0-9a-f]{6});")


@cache
def style() -> str:
    """Read the stylesheet."""
    return files("inferway").joinpath("look.css").read_text(encoding="utf-8")


@cache
def colors() -> dict[str, str]:
    """Tell the stylesheet's colors in the light, by name: `--ink` is such as `#17191c`."""
    light, _, _ = style().partition("@media")
    return dict(_VALUE.findall(light))
