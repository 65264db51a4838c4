"""Run the tests of this folder on this machine's GPU, or say why not: what `make test-gpu` calls.

python tests/gpu/run.py [--where-possible] [PYTEST ARGUMENTS]
"""

from __future__ import annotations

import sys
from pathlib import Path

_FOLDER = Path(__file__).parent
sys.path.insert(0, str(_FOLDER.parent))

from support.gpu import NEEDED, UNTESTED, obstacle  # noqa: E402
from where_possible import run_tests  # noqa: E402

if __name__ == "__main__":
    run_tests(_FOLDER, sys.argv[1:], obstacle(), UNTESTED, NEEDED)
