"""Install what the tests of this folder need, if that can be, and run them: what `make test-browser` calls.

python tests/browser/run.py [--where-possible] [PYTEST ARGUMENTS]
"""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path
from typing import NoReturn

_FOLDER = Path(__file__).parent
sys.path.insert(0, str(_FOLDER))

from needs import PROGRAMS, provide  # noqa: E402


def main(arguments: list[str]) -> NoReturn:
    """Ends with pytest's exit code; where tests cannot run: 0 with --where-possible, else 1."""
    where_possible = "--where-possible" in arguments
    reason = provide()
    if reason is not None:
        print(_block(reason), file=sys.stderr, flush=True)
        sys.exit(0 if where_possible else 1)
    sys.stdout.flush()
    others = [argument for argument in arguments if argument != "--where-possible"]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", str(_FOLDER), *others])


def _block(reason: str) -> str:
    text = (
        "tests/browser was NOT run: no page has been looked at in a browser, and none was checked for accessibility. "
        f"{reason} Needed: the packages {' '.join(sorted(PROGRAMS.values()))}, which `make test-browser` installs by "
        "itself with apt as root, and axe-core, which npm fetches."
    )
    line = "#" * 100
    return "\n".join([line, *(f"#  {part}" for part in textwrap.wrap(text, 96)), line])


if __name__ == "__main__":
    main(sys.argv[1:])
