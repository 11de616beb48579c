"""The scripts of `ops/bench` import each other as they do when they run: from their directory."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "ops" / "bench"))
