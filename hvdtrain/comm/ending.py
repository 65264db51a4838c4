"""End this process from a thread, with a message, where its main thread stands in something that nothing can end."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
from typing import NoReturn

from hvdtrain.errors import HvdtrainError
from hvdtrain.failure_record import Kind, write_failure


def end_process(rank: int, kind: Kind, error: HvdtrainError, with_stacks: bool = False) -> NoReturn:
    """Say `error` and leave; the launcher ends the other ranks. `with_stacks`: say where each thread stands, too."""
    write_failure(kind, rank, str(error), error.exit_code)
    if with_stacks:
        faulthandler.dump_traceback(sys.stderr)
    sys.stderr.write(f"rank {rank} on {socket.gethostname()}: {error}\n")
    sys.stderr.flush()
    os._exit(error.exit_code)
