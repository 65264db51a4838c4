"""The image that ours is based on; where no registry can be reached, one like it, made by debootstrap."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from engine import BUILD_SECONDS, Engine

NAME = "docker.io/library/python:3.11-slim-bookworm"
MIRROR = os.environ.get("HVDTRAIN_DEBIAN_MIRROR", "http://deb.debian.org/debian")

# Debian's Python stands for the one of the official image, which is compiled by its makers; headers are there in both.
_PYTHON = """\
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends python3.11 python3.11-venv libpython3.11-dev \\
    && ln -sf python3.11 /usr/bin/python3 && rm -rf /var/lib/apt/lists/*
"""


def ensure_base(engine: Engine) -> str:
    """Makes sure that the engine has the base image; returns in words where it is from. Skips where it cannot be."""
    if engine.call("image", "inspect", NAME, check=False).returncode == 0:
        return "there already"
    if engine.call("pull", NAME, check=False, timeout=BUILD_SECONDS).returncode == 0:
        return "pulled"
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        pytest.skip(f"{NAME} cannot be pulled, and without root and debootstrap (apt-get install) none like it be made")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        _must(["debootstrap", "--variant=minbase", "--include=ca-certificates,netbase", "bookworm", str(root), MIRROR])
        archive = Path(folder, "root.tar")
        _must(["tar", "--create", "--file", str(archive), "--directory", str(root), "."])
        engine.call("import", str(archive), "localhost/bookworm", timeout=BUILD_SECONDS)
        file = Path(folder, "Dockerfile")
        file.write_text(_PYTHON.format(base="localhost/bookworm"), encoding="utf-8")
        context = Path(folder, "context")
        context.mkdir()
        engine.call("build", *engine.build_flags, "-t", NAME, "-f", str(file), str(context), timeout=BUILD_SECONDS)
    return "made by debootstrap"


def _must(command: list[str]) -> None:
    run = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    assert run.returncode == 0, f"{command[0]}: {run.stdout[-2000:]} {run.stderr[-2000:]}"
