"""Runs the tests of a folder that need programs of the system, or says plainly that they were not run."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path
from typing import NoReturn


def run_tests(folder: Path, arguments: list[str], obstacle: str | None, untested: str, needed: str) -> NoReturn:
    """Ends with pytest's exit code; where tests cannot run: 0 with --where-possible, else 1.

    Args:
        arguments: --where-possible, and those for pytest.
        obstacle: why they cannot run; None: they can.
        untested: what nobody knows then, a sentence.
        needed: what they need, and who installs it.
    """
    if obstacle is not None:
        text = f"tests/{folder.name} was NOT run: {untested} {obstacle} Needed: {needed}"
        line = "#" * 100
        print("\n".join([line, *(f"#  {part}" for part in textwrap.wrap(text, 96)), line]), file=sys.stderr, flush=True)
        sys.exit(0 if "--where-possible" in arguments else 1)
    sys.stdout.flush()
    others = [argument for argument in arguments if argument != "--where-possible"]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", str(folder), *others])
