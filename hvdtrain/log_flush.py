"""When log files hold records back that another process may write (see `hvdtrain.run.log_files`), and when not."""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

_SECONDS: Final = 1.0


@contextmanager
def holding_logs() -> Iterator[None]:
    """Records may be held back in the block, in which `flush_logs` is called now and then."""
    holding = _holding()
    for handler in holding:
        handler.holds_back = True
    try:
        yield
    finally:
        for handler in holding:
            handler.holds_back = False
            handler.flush()


def flush_logs() -> None:
    """Write what is held back. May wait as long as the file system that holds the logs."""
    for handler in _holding():
        handler.flush()


def close_logs_before_exit() -> None:
    """As Python does in its own end, for a process that ends without that (`os._exit`). A file system that hangs must
    not keep it from that."""
    closing = threading.Thread(target=_close, daemon=True)
    with suppress(RuntimeError):  # no thread can be started any more
        closing.start()
        closing.join(_SECONDS)


def flush_output() -> None:
    """Flush standard output, which somebody must read, before such an end."""
    flushing = threading.Thread(target=_flush, daemon=True)
    with suppress(RuntimeError):
        flushing.start()
        flushing.join(_SECONDS)


def _flush() -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()


def _close() -> None:
    for handler in _holding():
        handler.close()


def _holding() -> list[Any]:
    return [handler for handler in logging.getLogger("hvdtrain").handlers if hasattr(handler, "holds_back")]
