"""What this machine needs for tests in a browser, what of it is missing, and how it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.runs import read_json

_FOLDER = Path(__file__).parent
sys.path.insert(0, str(_FOLDER.parent / "cluster" / "emulation"))

from requirements import install  # noqa: E402

PROGRAMS = {"chromium": "chromium", "npm": "npm"}
"""Program → its package in Debian."""

AXE = _FOLDER / "node_modules" / "axe-core" / "axe.min.js"
_NPM_SECONDS = 120


def browser() -> str | None:
    """The path of a Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def missing_packages() -> list[str]:
    """Packages whose programs are not there and are needed."""
    missing = [PROGRAMS["chromium"]] if browser() is None else []
    return missing + ([PROGRAMS["npm"]] if not _has_axe() and shutil.which("npm") is None else [])


def obstacle() -> str | None:
    """What keeps tests from running here, in a sentence; None if nothing does."""
    if packages := missing_packages():
        return f"Not installed: {', '.join(packages)}. (apt-get install {' '.join(packages)}, or make test-browser)"
    return None if _has_axe() else "axe-core is not installed. (npm ci --prefix tests/browser, or make test-browser)"


def provide() -> str | None:
    """Install what is missing, where that can be; what is in the way then, in a sentence, or None."""
    try:
        packages = missing_packages()
        if packages and os.geteuid() == 0:
            install(packages)
        if not _has_axe() and shutil.which("npm") is not None:
            _install_axe()
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return f"{obstacle()} It cannot be installed: {error}."
    return obstacle()


def _has_axe() -> bool:
    """Whether the pinned version is there."""
    try:
        found = read_json(AXE.parent / "package.json")["version"]
        return bool(found == read_json(_FOLDER / "package.json")["devDependencies"]["axe-core"])
    except (OSError, ValueError, KeyError):
        return False


def _install_axe() -> None:
    argv = ["npm", "ci", "--no-audit", "--no-fund"]
    print(f"tests/browser: {' '.join(argv)}", flush=True)
    done = subprocess.run(argv, cwd=_FOLDER, capture_output=True, text=True, timeout=_NPM_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
