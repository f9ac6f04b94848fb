"""``python -m inferway`` is the same as ``inferway``."""

import sys

from inferway.cli import main

if __name__ == "__main__":
    sys.exit(main())
