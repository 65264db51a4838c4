"""The folder on a host's local disk in which the workers of a run leave what one of them passes on for all."""

import hashlib
import os
import stat
import tempfile
from pathlib import Path


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
        self.path = self.private / hashlib.sha256(f"{run.absolute()}\n{host}".encode()).hexdigest()[:16]

    def make(self) -> None:
        """Make it, if it is not there. Raises OSError: it cannot be made, or belongs to somebody else."""
        self.private.mkdir(mode=0o700, exist_ok=True)
        about = self.private.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            raise PermissionError(f"{self.private} belongs to somebody else")
        self.path.mkdir(mode=0o700, exist_ok=True)
