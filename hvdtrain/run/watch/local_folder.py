"""The folder on a host's local disk in which the workers of a run leave what one of them passes on for all."""

import hashlib
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_LEFT_SECONDS: Final = 24 * 3600.0


class LocalFolder:
    """The folder `path` of the workers that a run has on one host.

    Args:
        run: the run folder.
        host: the name of the node, the same for all its ranks; emulated nodes of one machine have different ones.
        parent: of all such folders; None: the system's folder for temporary files.
    """

    def __init__(self, run: Path, host: str, parent: Path | None = None) -> None:
        self.private = (
            Path(tempfile.gettempdir()) if parent is None else parent
        ) / f"hvdtrain-heartbeats-{os.getuid()}"
        name = hashlib.sha256(os.fsencode(f"{run.absolute()}\n{host}")).hexdigest()[:16]
        self.path, self.log = self.private / name, self.private / f"{name}.log"

    def make_private(self) -> None:
        """Make what holds this folder and the file `log`. Raises OSError: it cannot be made, or is somebody else's."""
        self.private.mkdir(mode=0o700, exist_ok=True)
        about = self.private.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            raise PermissionError(f"{self.private} belongs to somebody else")

    def make(self) -> None:
        """Make it, if it is not there. Raises OSError: it cannot be made, or belongs to somebody else."""
        self.make_private()
        try:
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            return
        self._remove_left()

    def _remove_left(self) -> None:
        """What runs have left that were killed: a run that goes on changes its files each few seconds."""
        now = self.path.stat().st_mtime
        for other in self.private.iterdir():
            with suppress(OSError):  # another run removes it
                newest = max(each.stat().st_mtime for each in (other, *other.glob("*")))
                if now - newest > _LEFT_SECONDS:
                    other.unlink() if other.is_file() else shutil.rmtree(other, ignore_errors=True)
