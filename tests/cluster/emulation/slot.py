"""A place for one test run's hosts on this machine: a number that no other run has, and what left-overs it clears away.

Runs may be concurrent (several checkouts, several people); each takes the first free slot, which decides the names of
its bridge and links and its addresses. The lock is the kernel's and ends with the process, however that ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from support.process_table import kill

SLOTS = 8
_ROOT = Path("/var/lib/hvdtrain-tests")  # not below /run, which each host has for itself


@dataclass(frozen=True)
class Slot:
    """Where one run's hosts are.

    Attributes:
        number: 0 … SLOTS - 1.
        folder: for files of the run; removed at its end.
    """

    number: int
    folder: Path

    @property
    def bridge(self) -> str:
        """The network interface of this machine that all hosts are connected to."""
        return f"hvt{self.number}br"

    def link(self, index: int) -> str:
        """The end of host `index`'s cable on this machine."""
        return f"hvt{self.number}v{index}"

    def address(self, index: int) -> str:
        """Host `index`'s IPv4 address."""
        return f"10.77.{100 + self.number}.{index}"


@contextmanager
def taken_slot() -> Iterator[Slot]:
    """A slot for the length of the block, empty at its start and at its end.

    Raises:
        RuntimeError: all slots are taken.
    """
    _ROOT.mkdir(mode=0o755, exist_ok=True)
    for number in range(SLOTS):
        lock = FileLock(_ROOT / f"{number}.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            continue
        with lock:
            slot = Slot(number, _ROOT / str(number))
            clear(slot)
            slot.folder.mkdir(mode=0o755)
            try:
                yield slot
            finally:
                clear(slot)
            return
    raise RuntimeError(f"All {SLOTS} slots for emulated hosts are taken: {SLOTS} test runs are going on. See {_ROOT}.")


def clear(slot: Slot) -> None:
    """Remove everything that a run in this slot may have left: hosts with all their processes, links, bridge, files."""
    kill(_host_inits(slot))
    for name in os.listdir("/sys/class/net"):
        if name.startswith(f"hvt{slot.number}"):
            # The link may be on its way out with its host already.
            subprocess.run(["ip", "link", "del", name], stderr=subprocess.DEVNULL, timeout=10, check=False)
    shutil.rmtree(slot.folder, ignore_errors=True)


def _host_inits(slot: Slot) -> list[int]:
    """Processes 1 of hosts: they name their folder in their command line."""
    found = []
    for name in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0") if name.isdigit() else []
        except OSError:
            continue  # ended meanwhile
        is_init = any(word.endswith(b"/host_init.py") for word in words) and b"unshare" not in words[0]
        if is_init and any(word.startswith(f"{slot.folder}/".encode()) for word in words):
            found.append(int(name))
    return found
