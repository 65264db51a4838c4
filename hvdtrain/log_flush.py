"""What loggers of hvdtrain hold back for a moment (see `hvdtrain.run.log_files`) is written."""

import logging
import threading
from typing import Final

_SECONDS: Final = 1.0


def flush_logs() -> None:
    """Write it. May wait as long as the file system that holds the logs."""
    for handler in list(logging.getLogger("hvdtrain").handlers):
        handler.flush()


def flush_logs_before_exit() -> None:
    """Write it before this process ends without Python's own end (`os._exit`), which a file system that hangs must not
    keep from that."""
    writing = threading.Thread(target=flush_logs, daemon=True)
    writing.start()
    writing.join(_SECONDS)
