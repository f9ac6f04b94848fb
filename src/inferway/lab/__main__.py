"""``python -m inferway.lab [NAME]``: remove what killed runs left, or one of them."""

from __future__ import annotations

import sys

from inferway.lab.record import remove_leftovers

if __name__ == "__main__":
    remove_leftovers(*sys.argv[1:])
