"""The oracles' networks are of use here too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "theory"))
