"""Horovod's source release: pinned, fetched once through pip, verified, unpacked and patched.

`patches/` holds every change made to it. Each file says why above its first hunk, and is applied in the order of the
names without a tool, since a fresh machine may have neither `patch` nor git.
"""

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from hvdtrain.errors import HvdtrainError

HOROVOD_VERSION = "0.28.1"
# https://pypi.org/project/horovod/0.28.1/#files
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PATCHES = Path(__file__).parent / "patches"


def fetch_sdist(folder: Path) -> Path:
    """The verified source release in `folder`, fetched through pip (and so through its configured index) if missing.
    Raises HvdtrainError: pip cannot fetch it, or what is there is not the pinned file."""
    target = folder / f"horovod-{HOROVOD_VERSION}.tar.gz"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            os.replace(_download(Path(scratch)), target)
    verify(target)
    return target


def verify(sdist: Path) -> None:
    """Raises HvdtrainError unless the file's SHA-256 is the pinned one."""
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if digest != SDIST_SHA256:
        raise HvdtrainError(
            f"The SHA-256 of {sdist} is {digest}.",
            f"The pinned source release of Horovod {HOROVOD_VERSION} has {SDIST_SHA256}.",
            "remove the file and run `make setup` again to download it again.",
        )


def unpack(sdist: Path, into: Path) -> Path:
    """Unpacks into `into`, applies all patches and returns the source tree. Errors as `apply_patch`."""
    # Its content is known by its checksum. Debian 12's Python 3.11.2 has no filters, and newer ones ask for one.
    filtered: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(sdist) as archive:
        archive.extractall(into, **filtered)
    tree = into / f"horovod-{HOROVOD_VERSION}"
    for patch in series():
        apply_patch(patch, tree)
    return tree


def series(folder: Path = PATCHES) -> list[Path]:
    return sorted(folder.glob("*.patch"))


def patches_digest(folder: Path = PATCHES) -> str:
    """A hash that changes with any patch, in hexadecimal."""
    parts = [f"{patch.name}\n{patch.read_text(encoding='utf-8')}" for patch in series(folder)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def apply_patch(patch: Path, tree: Path) -> None:
    """Applies one unified diff to the files in `tree`, as `patch -p1 --fuzz=0` would, each hunk at its own line only.
    Raises HvdtrainError: a file is missing, or its text is not the one that a hunk was made for."""
    changes = re.split(r"^--- a/.+\n\+\+\+ b/(.+)\n", patch.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for path, hunks in zip(changes[1::2], changes[2::2], strict=True):
        file = tree / path
        is_there = file.is_file()
        lines = file.read_text(encoding="utf-8").split("\n") if is_there else [""]
        parts = re.split(r"^@@ -(\d+).* @@.*\n", hunks, flags=re.MULTILINE)
        shift = -1  # lines are counted from 1
        for line, hunk in zip(parts[1::2], parts[2::2], strict=True):
            rows = hunk.removesuffix("\n").split("\n")
            old, new = ([row[1:] for row in rows if row[0] in f" {sign}"] for sign in "-+")
            start = int(line) + shift
            if lines[start : start + len(old)] != old or is_there == (line == "0"):  # line 0 is of a new file
                raise HvdtrainError(
                    f"The patch {patch.name} does not apply to Horovod's {path} at line {line}.",
                    "The text there is another one, so this is not the release that the patch is for.",
                    f"use the release that is pinned in {__file__}, or adapt the patch to the new one.",
                )
            lines[start : start + len(old)] = new
            shift += len(new) - len(old)
        file.write_text("\n".join(lines), encoding="utf-8")


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
