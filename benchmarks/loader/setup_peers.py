"""Make the virtual environment that holds the peers: `python -m benchmarks.loader.setup_peers FOLDER`."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

_REQUIREMENTS: Final = Path(__file__).with_name("peers.txt")


def main() -> None:
    """Install peers.txt into a new environment, or complete an existing one."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.loader.setup_peers FOLDER")
    folder = Path(sys.argv[1])
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    subprocess.run([*pip, "install", "-r", str(_REQUIREMENTS)], check=True)
    # mosaicml-streaming pulls it in; with a CPU build of torch it cannot be imported, and breaks what tries to.
    subprocess.run([*pip, "uninstall", "--yes", "torchvision"], check=True)
    print(f"python -m benchmarks.loader --peers-venv {folder}")


if __name__ == "__main__":
    main()
