"""Whether all ranks see the same folder: where several of them write a checkpoint, they must."""

import os
from pathlib import Path

from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree, broadcast_json
from hvdtrain.errors import UsageError
from hvdtrain.files import unwritable


def require_shared(folder: Path, comm: Communicator) -> None:
    """Raise `UsageError` on all ranks unless each of them finds in `folder` what rank 0 has just put there. Collective.

    A name that no rank has looked for before is also found at once on NFS, which remembers what it has not found.
    """
    name = broadcast_json(comm, f".{os.urandom(8).hex()}.seen.tmp", "hvdtrain.folder.seen")
    agree(comm, lambda: _leave(folder / name) if comm.topology.is_root else None, "hvdtrain.folder.left")
    try:
        agree(comm, lambda: _find(folder / name), "hvdtrain.folder.shared")
    finally:
        if comm.topology.is_root:
            (folder / name).unlink(missing_ok=True)


def _leave(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        raise unwritable(file.parent, error) from error


def _find(file: Path) -> None:
    if not file.exists():
        raise UsageError(
            f"{file.parent} is not the folder that rank 0 has under this name.",
            "With --checkpoint-writers above 1 each writer puts its part of a checkpoint there.",
            "choose an --output-dir on a disk that all hosts share, or leave out --checkpoint-writers.",
        )
