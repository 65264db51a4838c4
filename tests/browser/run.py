"""Install what the tests of this folder need, if that can be, and run them: what `make test-browser` calls.

python tests/browser/run.py [--where-possible] [PYTEST ARGUMENTS]
"""

from __future__ import annotations

import sys
from pathlib import Path

_FOLDER = Path(__file__).parent
sys.path[:0] = [str(_FOLDER), str(_FOLDER.parent)]

from needs import PROGRAMS, provide  # noqa: E402
from where_possible import run_tests  # noqa: E402

_UNTESTED = "no page has been looked at in a browser, and none was checked for accessibility."
_NEEDED = (
    f"the packages {' '.join(sorted(PROGRAMS.values()))}, which `make test-browser` installs by itself with apt as "
    "root, and axe-core, which npm fetches."
)

if __name__ == "__main__":
    run_tests(_FOLDER, sys.argv[1:], provide(), _UNTESTED, _NEEDED)
