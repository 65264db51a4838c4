"""Work in a thread that never keeps the process from ending: a request or a collective may wait for ever."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(work: Callable[[], T]) -> Future[T]:
    """Start `work` in a daemon thread; what is returned waits for it, and holds what it returned or raised."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # handed to the caller, whatever it is
            future.set_exception(error)

    threading.Thread(target=run, name="background", daemon=True).start()
    return future
