"""What the tests of the image's files share."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests are imported by file, so their helpers need a folder to be found in.
_SUPPORT = str(Path(__file__).parent / "support")
if _SUPPORT not in sys.path:
    sys.path.insert(0, _SUPPORT)
