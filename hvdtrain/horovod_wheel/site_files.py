"""Two files among an environment's packages, by which each start of its Python runs `start_up`."""

import py_compile
import sysconfig
from pathlib import Path
from typing import Final

_NAME: Final = "hvdtrain_start_up"


def write_start_up(folder: Path | None = None) -> None:
    """Write the module and the .pth file that imports it. `folder`: of packages; None: that of the environment in which
    this runs."""
    folder = folder or Path(sysconfig.get_path("purelib"))
    module = folder / f"{_NAME}.py"
    module.write_text(Path(__file__).with_name("start_up.py").read_text(encoding="utf-8"), encoding="utf-8")
    py_compile.compile(str(module), doraise=True)  # else each start compiles it, where the folder cannot be written
    (folder / f"{_NAME}.pth").write_text(f"import {_NAME}\n", encoding="utf-8")
