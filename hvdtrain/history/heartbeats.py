"""The heartbeats of a run: what each rank did a moment ago, in one file a rank, and how long ago that was."""

import dataclasses
import json
import math
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from hvdtrain.history.reading import read_bounded

FOLDER: Final = "heartbeats"
_NAME: Final = re.compile(r"rank_(\d{1,7})\.json")
_BYTES: Final = 2**16
_LEAST_SILENCE: Final = 10.0
_MISSED: Final = 3.0  # intervals


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """What one rank says of itself. Missing values are those of a version that did not say them, or of this machine."""

    rank: int  # of this process
    size: int  # how many ranks there are
    start: str  # which start of the run this is, the same on all its ranks
    host: str  # where the process runs
    pid: int  # its number there
    time: float  # when it was written, by `time.time()` of the host
    beat: int = 0  # how many this process has written before
    interval: float = 2.0  # seconds until the next one
    end: str = ""  # "" while the run goes on; then "ended" or "failed"
    error: str = ""  # of a rank that has failed: one line
    phase: str = "start"  # as `activity.Activity`
    step: int = 0  # as `activity.Activity`
    seconds: float = 0.0  # for how long the rank has been in this phase, or in this wait
    waits_in: str | None = None  # the collective that it waits in, if it does
    collective: str = ""  # the last one that it waited for
    reads: str = ""  # what is being read, in the phases of data
    total_steps: int | None = None  # of the whole training
    epochs: int | None = None  # likewise
    framework: str = ""  # "torch" or "tensorflow"
    steps_per_second: float | None = None  # over the last heartbeats
    memory: int | None = None  # bytes of the process that are in RAM
    gpu_memory: int | None = None  # bytes of GPU memory that torch holds
    gpu_use: float | None = None  # share of the time in which the GPU computes, from 0 to 1


@dataclass(frozen=True)
class Heard:
    """A heartbeat, and its `age`: seconds since it was written."""

    beat: Heartbeat
    age: float

    @property
    def is_silent(self) -> bool:
        """Whether further heartbeats should have come by now."""
        return not self.beat.end and self.age > max(_LEAST_SILENCE, _MISSED * self.beat.interval)


def heartbeat_file(run: Path, rank: int) -> Path:
    """Where the heartbeats of `rank` are written."""
    return run / FOLDER / f"rank_{rank}.json"


def read_heartbeats(run: Path, unread: set[int] | None = None) -> dict[int, Heard]:
    """The heartbeats of the run's last start, by rank. What is missing, half written or broken is left out, and its
    rank added to `unread`.

    The clocks of hosts and file servers may differ. An age is by the one that makes it smaller, so that a rank is not
    taken for silent because of its clock.
    """
    heartbeats: dict[int, Heard] = {}
    with suppress(OSError):
        names = [_NAME.fullmatch(path.name) for path in (run / FOLDER).iterdir()]
        for rank in [int(name[1]) for name in names if name is not None]:
            heard = read_heartbeat(run, rank)
            if heard is not None:
                heartbeats[rank] = heard
            elif unread is not None:
                unread.add(rank)
    if not heartbeats:
        return {}
    first = heartbeats.get(0) or max(heartbeats.values(), key=lambda heard: heard.beat.time)  # each start has a rank 0
    return {rank: heard for rank, heard in sorted(heartbeats.items()) if heard.beat.start == first.beat.start}


def read_heartbeat(run: Path, rank: int) -> Heard | None:
    """The last heartbeat of one rank, of whichever start; None where there is none that can be read."""
    with suppress(OSError, ValueError, RecursionError):
        path = heartbeat_file(run, rank)
        beat = heartbeat_of(json.loads(read_bounded(path, _BYTES)))
        now = time.time()
        ages = (now - beat.time, now - path.stat().st_mtime)
        return Heard(beat, max(0.0, min(ages))) if beat.rank == rank else None
    return None


def heartbeat_of(value: Any) -> Heartbeat:
    """The heartbeat that a file's JSON holds; keys of a later version are left out. Raises ValueError: it lacks a key,
    or a value has another type."""
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    known = {name: value[name] for name in _KINDS if name in value}
    if any(name not in known for name in _REQUIRED):
        raise ValueError("a key is missing")
    is_infinite = any(isinstance(value, float) and not math.isfinite(value) for value in known.values())
    if is_infinite or not all(isinstance(value, _KINDS[name]) for name, value in known.items()):
        raise ValueError("a value of another type")
    return Heartbeat(**known)


_HINTS: Final = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(Heartbeat).items()}
_KINDS: Final = {name: (*types, int) if float in types else types for name, types in _HINTS.items()}
_REQUIRED: Final = [field.name for field in dataclasses.fields(Heartbeat) if field.default is dataclasses.MISSING]


class Listener:
    """Listens to the ranks of the run in the folder `run` over time. By then clocks of other hosts do not matter: what
    changes has just been written."""

    def __init__(self, run: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._clock = run, clock
        self._last: dict[int, tuple[tuple[str, int, int], float]] = {}  # which heartbeat, and when it was written
        self._looked_at: float | None = None
        self.unread: set[int] = set()  # ranks whose files could not be read when they were looked at last

    def hear(self) -> dict[int, Heard]:
        """The heartbeats of the last start, by rank, with their ages by the clock of this process."""
        self.unread = set()
        heartbeats, now = read_heartbeats(self._run, self.unread), self._clock()
        last: dict[int, tuple[tuple[str, int, int], float]] = {}
        for rank, heard in heartbeats.items():
            which = (heard.beat.start, heard.beat.pid, heard.beat.beat)
            known = self._last.get(rank)
            if known is not None and known[0] == which:
                last[rank] = known
            elif self._looked_at is not None and known is not None:
                last[rank] = which, max(self._looked_at, now - heard.age)  # written since the last look
            else:
                last[rank] = which, now - heard.age
        self._last, self._looked_at = last, now
        return {rank: Heard(heard.beat, max(0.0, now - last[rank][1])) for rank, heard in heartbeats.items()}
