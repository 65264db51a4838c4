"""Horovod's source release: pinned, fetched once through pip, verified, unpacked."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from hvdtrain.errors import HvdtrainError

HOROVOD_VERSION = "0.28.1"
# https://pypi.org/project/horovod/0.28.1/#files
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"


def fetch_sdist(folder: Path) -> Path:
    """The verified source release in `folder`, fetched through pip (and so through its configured index) if missing.

    Raises:
        HvdtrainError: pip cannot fetch it, or what is there is not the pinned file.
    """
    target = folder / f"horovod-{HOROVOD_VERSION}.tar.gz"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            os.replace(_download(Path(scratch)), target)
    verify(target)
    return target


def verify(sdist: Path) -> None:
    """Raises HvdtrainError unless the file's SHA-256 is the pinned one."""
    found = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if found != SDIST_SHA256:
        raise HvdtrainError(
            f"The SHA-256 of {sdist} is {found}.",
            f"The pinned source release of Horovod {HOROVOD_VERSION} has {SDIST_SHA256}.",
            "remove the file and run `make setup` again to download it again.",
        )


def unpack(sdist: Path, into: Path) -> Path:
    """Unpacks into `into` and returns the source tree."""
    with tarfile.open(sdist) as archive:
        archive.extractall(into, filter="data")
    return into / f"horovod-{HOROVOD_VERSION}"


def _download(into: Path) -> Path:
    requirement = into / "requirement.txt"
    requirement.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{SDIST_SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--no-build-isolation", "--require-hashes"]
    command += ["--no-binary", "horovod", "--dest", str(into), "--requirement", str(requirement)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    if run.returncode != 0:
        lines = run.stderr.strip().splitlines() or ["no message"]
        raise HvdtrainError(
            f"pip could not fetch the source release of Horovod {HOROVOD_VERSION}: {lines[-1].strip()}.",
            "Without it there is nothing to build.",
            f"check the network and pip's index, or put horovod-{HOROVOD_VERSION}.tar.gz into {into.parent}.",
        )
    return into / f"horovod-{HOROVOD_VERSION}.tar.gz"
