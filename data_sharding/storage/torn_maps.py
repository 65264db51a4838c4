"""Memory maps of files that are truncated while they are read, or whose disk fails: an error instead of a signal.

The kernel answers a read of a page that is no longer there with SIGBUS, which ends the process. Read calls would give
an error instead, and take 1.4 times as long for records of 3 KB; asking for the size before leaves time in between.

So while maps are read, a handler puts zeros instead of such pages and marks the map as torn; whoever reads it asks
for that afterwards. Python's own handlers run too late for this: the failing instruction would be repeated for ever.
This one is called at once, in the thread that reads. All reads of a map copy it to `bytes` while they hold the GIL, so
that Python code can run there as from any callback. For another's SIGBUS the earlier handler is put back.
"""

import ctypes
import mmap
import os
import signal
import sys
import threading
import weakref
from typing import Any, Final

import numpy as np


class _Action(ctypes.Structure):
    """`struct sigaction` of glibc and musl on 64-bit Linux (sigaction(2))."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_SIGBUS: Final = int(signal.SIGBUS)
_SA_SIGINFO: Final = 4
_SI_ADDR: Final = 16  # offset of the address in siginfo_t
_PRIVATE_ANONYMOUS_FIXED: Final = 0x02 | 0x20 | 0x10
_WORKS: Final = sys.platform == "linux" and sys.maxsize > 1 << 32

_libc: Any = ctypes.PyDLL(None)  # does not release the GIL
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


class ReadOnlyMap:
    """A map of a whole file; `torn` once a part of it could not be read, and was given as zeros.

    Raises OSError or ValueError.
    """

    def __init__(self, descriptor: int) -> None:
        self.bytes = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        self.torn = False
        self.begin = int(np.frombuffer(self.bytes, np.uint8).ctypes.data)
        _maps[self.begin] = self

    def tear(self, address: int) -> bool:
        """Put zeros instead of everything from the page of `address` on, if that is in this map."""
        page = address - address % mmap.PAGESIZE
        rest = self.begin + len(self.bytes) - page
        if page < self.begin or rest <= 0:
            return False
        self.torn = True
        placed = _libc.mmap(page, rest, mmap.PROT_READ, _PRIVATE_ANONYMOUS_FIXED, -1, 0)
        return bool(placed == page)


_maps: Final[weakref.WeakValueDictionary[int, ReadOnlyMap]] = weakref.WeakValueDictionary()
"""All that are open, by address."""


class _Watch:
    """Has the handler in place for as long as any thread is inside; a context manager that is entered many times."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = _Action()
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(self._on_bus_error)
        self._ours = _Action(ctypes.cast(self._function, ctypes.c_void_p), flags=_SA_SIGINFO)
        self._install, self._keep = ctypes.byref(self._ours), ctypes.byref(self._before)
        os.register_at_fork(after_in_child=self._forget_threads)

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1 and _WORKS:
                _libc.sigaction(_SIGBUS, self._install, self._keep)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and _WORKS:
                self._restore()

    def _forget_threads(self) -> None:
        """Those that were inside do not exist in the child."""
        self._lock = threading.Lock()
        if self._inside:
            self._inside = 0
            self._restore()

    def _restore(self) -> None:
        _libc.sigaction(_SIGBUS, self._keep, None)

    def _on_bus_error(self, number: int, info: int, context: int) -> None:  # noqa: ARG002
        address = ctypes.c_size_t.from_address(info + _SI_ADDR).value
        maps = (reference() for reference in _maps.valuerefs())
        if not any(open_map.tear(address) for open_map in maps if open_map is not None):
            self._restore()


watching_maps: Final = _Watch()
"""`with watching_maps:` around all that reads maps. Enter it once a batch: it takes two system calls."""
