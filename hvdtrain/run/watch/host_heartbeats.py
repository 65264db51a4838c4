"""Heartbeats of many workers: those of a host meet in a folder on its local disk, and one of them writes one file for
all into the run folder, which a shared file system holds.

Who writes is not agreed upon: each worker writes unless one with a lower rank on its host is alive, by what stands in
the local folder. So another one takes over from a worker that was killed, and also from one that is frozen and would
never give back a lock. For a moment two may write: each has a file of its own, and readers take the newest heartbeats.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

from hvdtrain.files import replace_quickly
from hvdtrain.history.heartbeats import (
    FOLDER,
    Ages,
    Heard,
    Heartbeat,
    heartbeat_file,
    host_content,
    host_file,
    read_heartbeat,
    read_heartbeats,
)
from hvdtrain.log_flush import flush_logs
from hvdtrain.run.watch.local_folder import LocalFolder

_MISSED: Final = 2.0  # intervals; fewer than those after which readers call a rank silent
_LEAST_SECONDS: Final = 4.0

_log = logging.getLogger("hvdtrain.run")


def write_own(run: Path, beat: Heartbeat) -> None:
    """Write a rank's own file in the run folder. Raises OSError: it cannot be written."""
    path = heartbeat_file(run, beat.rank)
    path.parent.mkdir(exist_ok=True)
    replace_quickly(path, json.dumps(asdict(beat)).encode())


class HostHeartbeats:
    """Passes on the heartbeats of a rank.

    Args:
        run: the run folder.
        host: the name of the node, the same for all its ranks; emulated nodes of one machine have different ones.
        is_first: whether this rank is expected to write. The others wait a moment for it at the start.
        local: the parent of folders in which ranks of a host meet; None: in the system's folder for temporary files.
        clock: of seconds.
    """

    def __init__(
        self,
        run: Path,
        host: str,
        is_first: bool,
        local: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._is_first, self._clock = run, is_first, clock
        self._folder = LocalFolder(run, host, local)
        self._local = self._folder.path
        self._ages, self._begun = Ages(clock), clock()
        self._has_complained = False

    def write(self, beat: Heartbeat, at_once: bool = False) -> None:
        """Give it to the ranks of this host, and write those of all of them if that is this rank's turn, or `at_once`,
        as for an error that nobody else will tell. Raises OSError: the run folder cannot be written."""
        try:
            self._give(beat)
            writes = at_once or self._writes(beat)
        except OSError as error:
            self._complain(error)
            write_own(self._run, beat)
            return
        if writes:
            heard = {**self._heard_on_host(beat), beat.rank: Heard(beat, 0.0)}
            (self._run / FOLDER).mkdir(exist_ok=True)
            replace_quickly(host_file(self._run, beat.rank), host_content(heard[rank] for rank in sorted(heard)))
            flush_logs()
            if not any(_is_running(each.beat) for each in heard.values()):
                shutil.rmtree(self._local, ignore_errors=True)

    def _give(self, beat: Heartbeat) -> None:
        self._folder.make()
        write_own(self._local, beat)

    def _writes(self, beat: Heartbeat) -> bool:
        limit = max(_LEAST_SECONDS, _MISSED * beat.interval)
        is_waiting = not self._is_first and not beat.end and self._clock() - self._begun < limit
        return not is_waiting and not any(self._is_alive(rank, beat.start, limit) for rank in self._lower_ranks(beat))

    def _lower_ranks(self, beat: Heartbeat) -> Iterator[int]:
        """Of this host, in ascending order: where all is well, only the first one's file is read."""
        ranks = (path.stem.removeprefix("rank_") for path in (self._local / FOLDER).glob("rank_*.json"))
        return iter(sorted(rank for rank in map(int, filter(str.isdecimal, ranks)) if rank < beat.rank))

    def _is_alive(self, rank: int, start: str, limit: float) -> bool:
        heard = read_heartbeat(self._local, rank)
        if heard is None or heard.beat.start != start or not _is_running(heard.beat):
            return False
        return self._ages.aged(heard).age < limit  # else it is frozen

    def _heard_on_host(self, beat: Heartbeat) -> dict[int, Heard]:
        heard = read_heartbeats(self._local).values()
        return {each.beat.rank: self._ages.aged(each) for each in heard if each.beat.start == beat.start}

    def _complain(self, error: OSError) -> None:
        if not self._has_complained:
            text = "heartbeats cannot meet in %s, so that this rank writes a file of its own into the run folder: %s"
            _log.warning(text, self._folder.private, error)
        self._has_complained = True


def _is_running(beat: Heartbeat) -> bool:
    """Whether further ones may come, as far as this process can see the others of its host."""
    if beat.end:
        return False
    try:
        os.kill(beat.pid, 0)
    except ProcessLookupError:
        return False  # killed, or in another container: then both write, and readers take the newest
    except PermissionError:
        return True
    return True
