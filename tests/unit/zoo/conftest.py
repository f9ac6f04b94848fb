"""What builds the zoo stands in the clone's root, which no installation puts on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
