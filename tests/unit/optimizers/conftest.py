"""What the tests of the optimizers share."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests are imported by file, so their helpers need a folder to be found in.
_folder = str(Path(__file__).parent / "support")
if _folder not in sys.path:
    sys.path.insert(0, _folder)
