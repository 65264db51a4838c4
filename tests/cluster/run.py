"""Install what the tests of this folder need, if that can be, and run them: what `make test-cluster` calls.

python tests/cluster/run.py [--where-possible] [PYTEST ARGUMENTS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NoReturn

_FOLDER = Path(__file__).parent
sys.path.insert(0, str(_FOLDER / "emulation"))

from requirements import PACKAGES, install, missing_packages, missing_rights, obstacle  # noqa: E402


def main(arguments: list[str]) -> NoReturn:
    """Ends with pytest's exit code; where tests cannot run: 0 with --where-possible, else 1."""
    where_possible = "--where-possible" in arguments
    reason = _prepare()
    if reason is not None:
        print(_block(reason), file=sys.stderr, flush=True)
        sys.exit(0 if where_possible else 1)
    sys.stdout.flush()
    others = [argument for argument in arguments if argument != "--where-possible"]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", str(_FOLDER), *others])


def _prepare() -> str | None:
    """What is in the way after all that can be done about it; None if nothing."""
    packages = missing_packages()
    if packages and missing_rights() is None:
        try:
            install(packages)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            return f"Not installed: {', '.join(packages)}; they cannot be: {error}."
    return obstacle()


def _block(reason: str) -> str:
    text = (
        "tests/cluster was NOT run: nothing about several hosts (ssh, mpirun, horovodrun, Slurm) has been tested. "
        f"{reason} Needed: Linux, root, and the packages {' '.join(sorted(set(PACKAGES.values())))}, "
        "which `make test-cluster` installs by itself with apt."
    )
    line = "#" * 100
    return "\n".join([line, *(f"#  {part}" for part in textwrap.wrap(text, 96)), line])


if __name__ == "__main__":
    main(sys.argv[1:])
