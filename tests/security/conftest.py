"""For ``import failing_server`` and ``asking``, which stand with the tests of served answers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "data" / "remote"))
