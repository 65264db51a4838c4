"""SageMaker's training toolkit, from PyPI, in an environment of its own that also sees this one's packages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from filelock import FileLock

TOOLKIT = "sagemaker-training==5.1.4"
MPIRUN = "mpirun.openmpi"
"""Debian's name for Open MPI's, whatever `mpirun` comes first on the path. The toolkit's options are of version 4."""

_CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"
_INSTALL_SECONDS = 300
_SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing() -> str | None:
    """What of the toolkit's needs is not here, in a sentence; None if all is."""
    mpirun = shutil.which(MPIRUN, path=_SYSTEM)
    if mpirun is None:
        return f"sagemaker-training starts workers by Open MPI 4, and there is no {MPIRUN}: apt-get install openmpi-bin"
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    if not re.search(r"\) 4\.", said):
        return f"sagemaker-training starts workers by Open MPI 4, and {mpirun} is {said.splitlines()[:1]}"
    if shutil.which("gcc") is None:
        return "sagemaker-training has an extension in C: apt-get install gcc"
    return None


def installed() -> Path:
    """The environment's folder, made at the first call. It is inside this environment's own, and so ends with it.

    Raises:
        RuntimeError: pip failed.
    """
    own = sysconfig.get_paths()["purelib"]
    folder = Path(sys.prefix) / TOOLKIT
    with FileLock(folder.with_suffix(".lock"), timeout=_INSTALL_SECONDS):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run(sys.executable, "-m", "venv", str(folder))
            pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet")
            _run(*pip, "--constraint", str(_CONSTRAINTS), TOOLKIT)
            (packages,) = folder.glob("lib/python*/site-packages")
            # addsitedir, and not the bare path: only so are this one's .pth files read, of an editable hvdtrain too.
            (packages / "hvdtrain_of_the_tests.pth").write_text(f"import site; site.addsitedir({own!r})\n")
            (folder / "complete").touch()
    return folder


def search_path(environment: Path, folder: Path) -> str:
    """PATH on which `train` is the toolkit's and `mpirun` is Open MPI 4; `folder` gets a link."""
    folder.mkdir()
    (folder / "mpirun").symlink_to(shutil.which(MPIRUN, path=_SYSTEM) or MPIRUN)
    return f"{folder}:{environment / 'bin'}:{_SYSTEM}"


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()[-500:]}")
