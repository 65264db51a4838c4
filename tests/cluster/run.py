"""Install what the tests of this folder need, if that can be, and run them: what `make test-cluster` calls.

python tests/cluster/run.py [--where-possible] [PYTEST ARGUMENTS]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_FOLDER = Path(__file__).parent
sys.path[:0] = [str(_FOLDER / "emulation"), str(_FOLDER.parent)]

from requirements import PACKAGES, install, missing_packages, missing_rights, obstacle  # noqa: E402
from where_possible import run_tests  # noqa: E402

_UNTESTED = "nothing about several hosts (ssh, mpirun, horovodrun, Slurm) has been tested."
_NEEDED = (
    f"Linux, root, and the packages {' '.join(sorted(set(PACKAGES.values())))}, which `make test-cluster` installs by "
    "itself with apt."
)


def _prepare() -> str | None:
    """What is in the way after all that can be done about it; None if nothing."""
    packages = missing_packages()
    if packages and missing_rights() is None:
        try:
            install(packages)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            return f"Not installed: {', '.join(packages)}; they cannot be: {error}."
    return obstacle()


if __name__ == "__main__":
    run_tests(_FOLDER, sys.argv[1:], _prepare(), _UNTESTED, _NEEDED)
