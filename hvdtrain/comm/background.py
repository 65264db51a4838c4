"""A blocking collective in a thread of its own, for bindings that have no handle to wait on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(work: Callable[[], T]) -> Callable[[], T]:
    """Start `work`; the function returned waits for it, returns its result or raises what it raised.

    The thread is a daemon: a collective that never ends must not keep a process whose main thread has ended.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # handed to the caller, whatever it is
            future.set_exception(error)

    threading.Thread(target=run, name="background-collective", daemon=True).start()
    return future.result
