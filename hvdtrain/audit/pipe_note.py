"""What stands instead of a run's audit where the records came through pipes."""

from __future__ import annotations

from pathlib import Path
from typing import Final, final

from data_sharding import LoadedBatch
from hvdtrain.comm.interface import Communicator
from hvdtrain.comm.messages import agree
from hvdtrain.files import unwritable, write_atomically

PIPE_NOTE: Final = "pipe.txt"
"""In RUN/audit: this run trained from pipes, so that no account of ids is to be found there."""

_NOTE: Final = """\
This run was trained from pipes, whose records have no ids that outlive a pass: there is no account of which were used.
Where the pipe plan knew how many records reach each worker, the count was checked at the end of each pipe.
"""


@final
class NoLedger:
    """Implements the engine's `Ledger` where records have no ids that outlive a pass: all it writes down is that.

    Every record came once where the reader could compare counts at the end of each FIFO.

    Args:
        comm: the other ranks.
        folder: RUN/audit.
    """

    def __init__(self, comm: Communicator, folder: Path) -> None:
        self._comm, self._folder = comm, folder

    def start(self, step: int) -> None:  # noqa: ARG002
        """Says so, once, in a file of the folder. Collective.

        Raises:
            UsageError: on all ranks, where rank 0 could not write.
        """
        agree(self._comm, self._write_note, "hvdtrain.pipe.note")

    def add(self, batch: LoadedBatch) -> None:
        """Nothing."""

    def commit(self, step: int) -> None:
        """Nothing."""

    def _write_note(self) -> None:
        if not self._comm.topology.is_root:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._folder / PIPE_NOTE, _NOTE.encode())
        except OSError as error:
            raise unwritable(self._folder, error) from error
