"""The bench is no package of the project's: its folder is put where its own scripts find it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
