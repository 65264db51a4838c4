"""Calls pip of the environment that a Python belongs to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hvdtrain.errors import HvdtrainError

# Long enough for a few gigabytes on a slow line; a hang must end some time.
PIP_SECONDS = 3600.0


def pip_install(arguments: list[str], constraints: Path | None, python: str = sys.executable) -> None:
    """`pip install` of requirements into the environment of `python`, with the versions that `constraints` pins.

    Raises:
        HvdtrainError: pip failed; its last errors are in the message.
    """
    command = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    if constraints is not None:
        command += ["--constraint", str(constraints)]
    run = subprocess.run([*command, *arguments], stderr=subprocess.PIPE, text=True, check=False, timeout=PIP_SECONDS)
    if run.returncode != 0:
        errors = [line for line in run.stderr.splitlines() if line.strip()]
        raise HvdtrainError(
            f"`pip install {' '.join(arguments)}` failed: " + " ".join(errors[-3:]),
            "The environment is not complete without these packages.",
            "check the network, pip's index (`pip config list`) and the free disk space, then run `make setup` again.",
        )
