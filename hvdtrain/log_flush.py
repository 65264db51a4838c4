"""What loggers of hvdtrain hold back for a moment (see `hvdtrain.run.log_files`) is written."""

import logging
import threading
from contextlib import suppress
from typing import Final

_SECONDS: Final = 1.0


def flush_logs() -> None:
    """Write it. May wait as long as the file system that holds the logs."""
    for handler in list(logging.getLogger("hvdtrain").handlers):
        handler.flush()


def close_logs_before_exit() -> None:
    """As Python does in its own end, for a process that ends without that (`os._exit`). A file system that hangs must
    not keep it from that."""
    closing = threading.Thread(target=_close_logs, daemon=True)
    with suppress(RuntimeError):  # no thread can be started any more
        closing.start()
        closing.join(_SECONDS)


def _close_logs() -> None:
    for handler in list(logging.getLogger("hvdtrain").handlers):
        handler.close()
