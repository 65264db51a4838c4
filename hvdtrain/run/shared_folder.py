"""Whether all hosts of a job see the run folder in which rank 0 writes."""

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree, broadcast_json, gather_json, ranks_where
from hvdtrain.errors import UsageError

_MARK: Final = ".seen_"
_SECONDS: Final = 10.0  # for a network file system to show another host's new file
_PAUSE_SECONDS: Final = 0.1
_CONTAINERS: Final = "SM_HOSTS"  # of SageMaker, whose containers have disks of their own: it keeps rank 0's


def hosts_that_see_another(folder: Path, comm: Communicator, continues: bool) -> list[str]:
    """Names of the hosts on which `folder` is not the one that rank 0 has made. Collective, after that. `continues`:
    whether the run goes on from a checkpoint that is there.

    Raises UsageError: one of these holds a checkpoint, and rank 0 has none, so that the run would begin again.
    """
    topology = comm.topology
    if topology.num_nodes == 1:
        return []
    mark = agree(comm, lambda: _leave_mark(folder) if topology.is_root else None, "hvdtrain.folder.mark")
    mark = broadcast_json(comm, mark, "hvdtrain.folder.mark.text")  # rank 0 decides, whose variables others may lack
    if mark is None:
        return []
    differs = agree(comm, lambda: topology.local_rank == 0 and not _sees(folder, mark), "hvdtrain.folder.look")
    others = ranks_where(comm, differs, "hvdtrain.folder.seen")
    if topology.is_root:
        _remove_marks(folder)
    if not others:
        return []
    begins = bool(broadcast_json(comm, not _has_checkpoint(folder), "hvdtrain.folder.begins"))
    ahead = ranks_where(comm, differs and continues and begins and _has_checkpoint(folder), "hvdtrain.folder.ahead")
    names: list[str] = gather_json(comm, os.uname().nodename, "hvdtrain.folder.hosts")
    if ahead:
        raise UsageError(
            f"{names[ahead[0]]} has a checkpoint in {folder}, and rank 0 on {names[0]} sees none there.",
            "The folder is not shared by the hosts, so the run would begin again at step 0.",
            "use an --output-dir that all hosts share, or copy the folder to the host of rank 0.",
        ).on_all_ranks()
    return [names[rank] for rank in others]


def _leave_mark(folder: Path) -> str | None:
    """The name of a new file, for which no host has looked before; None where nobody needs to look."""
    if _CONTAINERS in os.environ:
        return None
    _remove_marks(folder)
    mark = f"{_MARK}{secrets.token_hex(8)}"
    (folder / mark).touch()
    return mark


def _remove_marks(folder: Path) -> None:
    with suppress(OSError):
        for mark in folder.glob(f"{_MARK}*"):
            mark.unlink(missing_ok=True)


def _sees(folder: Path, mark: str) -> bool:
    until = time.monotonic() + _SECONDS
    while True:
        if os.path.exists(folder / mark):
            return True
        if time.monotonic() > until:
            return False
        time.sleep(_PAUSE_SECONDS)


def _has_checkpoint(folder: Path) -> bool:
    return bool(CheckpointStore(folder / "checkpoints", 1).paths())
