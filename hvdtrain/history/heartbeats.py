"""The heartbeats of a run: what each rank did a moment ago, and how long ago that was.

A job of few workers has a file for each rank, one of many workers a file for each host. A rank may stand in several
files, for example where another rank of its host has begun to write for the host: its newest heartbeat counts.
"""

import dataclasses
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from hvdtrain.history.reading import read_bounded

FOLDER: Final = "heartbeats"
_NAME: Final = re.compile(r"(rank|host_of_rank)_(\d{1,7})\.json")
_BYTES: Final = 2**16
_HOST_BYTES: Final = 2**20
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
    """Where the heartbeats of `rank` alone are written."""
    return run / FOLDER / f"rank_{rank}.json"


def host_file(run: Path, rank: int) -> Path:
    """Where `rank` writes the heartbeats of all ranks of its host."""
    return run / FOLDER / f"host_of_rank_{rank}.json"


def host_content(heartbeats: Iterable[Heard]) -> bytes:
    """The content of such a file: what all heartbeats have in common, once, and the rest of each."""
    heard = list(heartbeats)
    values = [vars(each.beat) for each in heard]
    same = {name: value for name, value in values[0].items() if all(other[name] == value for other in values)}
    ranks = [
        {**{name: value for name, value in own.items() if name not in same}, "age": round(each.age, 3)}
        for own, each in zip(values, heard, strict=True)
    ]
    return json.dumps({"written": round(time.time(), 3), "same": same, "ranks": ranks}).encode()


def read_heartbeats(run: Path, unread: set[int] | None = None) -> dict[int, Heard]:
    """The heartbeats of the run's last start, by rank. What is missing, half written or broken is left out, and its
    rank added to `unread`.

    The clocks of hosts and file servers may differ. An age is by the one that makes it smaller, so that a rank is not
    taken for silent because of its clock.
    """
    heartbeats: dict[int, Heard] = {}
    with suppress(OSError):
        names = [_NAME.fullmatch(path.name) for path in (run / FOLDER).iterdir()]
        for name in names:
            if name is None:
                continue
            heard = _of_rank(run, int(name[2])) if name[1] == "rank" else _of_host(run, int(name[2]))
            _keep_newest(heartbeats, heard)
            if not heard and unread is not None:
                unread.add(int(name[2]))
    if not heartbeats:
        return {}
    first = heartbeats.get(0) or max(heartbeats.values(), key=lambda heard: heard.beat.time)  # each start has a rank 0
    return {rank: heard for rank, heard in sorted(heartbeats.items()) if heard.beat.start == first.beat.start}


def read_heartbeat(run: Path, rank: int) -> Heard | None:
    """The last heartbeat of one rank, of whichever start, as far as the rank itself has written it; None where there is
    none that can be read."""
    heartbeats: dict[int, Heard] = {}
    _keep_newest(heartbeats, [*_of_rank(run, rank), *_of_host(run, rank)])
    return heartbeats.get(rank)


def _keep_newest(heartbeats: dict[int, Heard], heard: Iterable[Heard]) -> None:
    for each in heard:
        beat, known = each.beat, heartbeats.get(each.beat.rank)
        if known is None or (beat.time, beat.beat) > (known.beat.time, known.beat.beat):
            heartbeats[beat.rank] = each


def _of_rank(run: Path, rank: int) -> list[Heard]:
    """The heartbeat in the rank's own file, if it can be read."""
    with suppress(OSError, ValueError, RecursionError):
        path = heartbeat_file(run, rank)
        beat = heartbeat_of(json.loads(read_bounded(path, _BYTES)))
        return [Heard(beat, _age(path, beat.time))] if beat.rank == rank else []
    return []


def _of_host(run: Path, rank: int) -> list[Heard]:
    """The heartbeats that `rank` has written for its host, if all of them can be read."""
    with suppress(OSError, ValueError, RecursionError):
        path = host_file(run, rank)
        written, beats = _beats_of_host(json.loads(read_bounded(path, _HOST_BYTES)))
        age = _age(path, written)
        return [Heard(beat, before + age) for beat, before in beats]
    return []


def _age(path: Path, written: float) -> float:
    now = time.time()
    return max(0.0, min(now - written, now - path.stat().st_mtime))


def _beats_of_host(value: Any) -> tuple[float, list[tuple[Heartbeat, float]]]:
    """When the file was written, and the heartbeats that its JSON holds, with how old they were then, in seconds.
    Raises ValueError: as `heartbeat_of`."""
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    same, ranks = _known(value.get("same")), value.get("ranks")
    if not isinstance(ranks, list):
        raise ValueError("no heartbeats of a host")
    beats = [(_with({**same, **_known(own)}), max(0.0, _seconds(own))) for own in ranks]
    return _seconds(value, "written"), beats


def _seconds(value: Mapping[str, Any], key: str = "age") -> float:
    seconds = value.get(key)
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise ValueError(f"{key} is no number")
    return float(seconds)


def heartbeat_of(value: Any) -> Heartbeat:
    """The heartbeat that a file's JSON holds; keys of a later version are left out. Raises ValueError: it lacks a key,
    or a value has another type."""
    return _with(_known(value))


def _known(value: Any) -> dict[str, Any]:
    """The keys of a heartbeat, whose values have the right types. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    known = {name: each for name, each in value.items() if name in _KINDS}
    is_infinite = any(isinstance(each, float) and not math.isfinite(each) for each in known.values())
    if is_infinite or not all(isinstance(each, _KINDS[name]) for name, each in known.items()):
        raise ValueError("a value of another type")
    return known


def _with(known: dict[str, Any]) -> Heartbeat:
    if any(name not in known for name in _REQUIRED):
        raise ValueError("a key is missing")
    return Heartbeat(**known)


_HINTS: Final = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(Heartbeat).items()}
_KINDS: Final = {name: (*types, int) if float in types else types for name, types in _HINTS.items()}
_REQUIRED: Final = [field.name for field in dataclasses.fields(Heartbeat) if field.default is dataclasses.MISSING]


class Ages:
    """Ages of heartbeats by the clock of this process, for who looks at them again and again: after the first look,
    clocks of other hosts do not matter, as what changes has just been written."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # by rank: which heartbeat was seen last, when it was written, and when it was looked for
        self._last: dict[int, tuple[tuple[str, int, int], float, float]] = {}

    def aged(self, heard: Heard) -> Heard:
        """The same heartbeat with its age by the clock of this process."""
        now, beat = self._clock(), heard.beat
        which, written = (beat.start, beat.pid, beat.beat), now - heard.age
        known = self._last.get(beat.rank)
        if known is not None:
            _, known_written, looked_at = known
            written = known_written if known[0] == which else max(looked_at, written)  # written since the last look
        self._last[beat.rank] = which, written, now
        return Heard(beat, max(0.0, now - written))


class Listener:
    """Listens to the ranks of the run in the folder `run` over time."""

    def __init__(self, run: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._ages = run, Ages(clock)
        self.unread: set[int] = set()  # ranks whose files could not be read when they were looked at last

    def hear(self) -> dict[int, Heard]:
        """The heartbeats of the last start, by rank, with their ages by the clock of this process."""
        self.unread = set()
        heartbeats = read_heartbeats(self._run, self.unread)
        return {rank: self._ages.aged(heard) for rank, heard in heartbeats.items()}
