"""Make the virtual environment that holds the peers: `python -m benchmarks.overhead.setup_peers FOLDER`."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final

_REQUIREMENTS: Final = Path(__file__).with_name("peers.txt")
_ALONE: Final = Path(__file__).with_name("peers_alone.txt")


def main() -> None:
    """Install the peers into a new environment, which takes torch from this one, or complete an existing one."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.overhead.setup_peers FOLDER")
    folder = Path(sys.argv[1])
    venv.create(folder, with_pip=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [str(folder / "bin" / "python"), "-m", "pip", "install"]
    subprocess.run([*install, "-r", str(_REQUIREMENTS)], check=True)
    subprocess.run([*install, "--no-deps", "-r", str(_ALONE)], check=True)
    print(f"python -m benchmarks.overhead --peers-venv {folder}")


if __name__ == "__main__":
    main()
