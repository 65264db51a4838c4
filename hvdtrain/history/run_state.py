"""Whether a run is running, which its lock tells best, and how it ended where it is not."""

import fcntl
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from hvdtrain.history.heartbeats import Heard, read_heartbeat, read_heartbeats
from hvdtrain.history.metrics_end import MetricsEnd, read_metrics_end
from hvdtrain.history.reading import text
from hvdtrain.history.run_facts import read_result
from hvdtrain.world_channel import is_change

Word = Literal["running", "finished", "stopped", "failed", "lost", "unknown"]

RESTART_SECONDS: Final = 30.0
"""A launcher with --max-restarts needs less to start a run again. Until its workers have imported their framework,
nobody holds the folder."""

LOCK_NAME: Final = ".lock"
LOOK_SECONDS: Final = 1.0
"""Who claims a folder waits so long for those that only look. Each of them needs microseconds."""

_LONGEST_NOTE: Final = 300
_MOST_NAMED: Final = 4
_OTHERS: Final = "PeerError"  # the name of the error of a rank that ends because another one has ended


@dataclass(frozen=True)
class RunState:
    """The state of a run."""

    # "running"; "finished": all was trained; "stopped": it was asked to stop, and the same command continues it;
    # "failed": it ended with an error; "lost": it has no last line, and nobody holds its folder; "unknown": what would
    # say it cannot be read
    word: Word
    note: str = ""  # for people, what `word` does not say; may be empty


def is_over(run: Path) -> bool:
    """Whether the run in the folder `run` has ended, and no launcher is about to start it again after a failure."""
    result, end, locked = read_result(run), read_metrics_end(run / "metrics.jsonl"), is_locked(run)
    heartbeats = telling_heartbeats(run, end, locked)
    word = state_of(run, result, end, heartbeats, locked).word
    if word in ("failed", "lost", "unknown"):
        ages = [heard.age for heard in heartbeats.values()] + ([] if end.time is None else [time.time() - end.time])
        return min(ages, default=math.inf) > RESTART_SECONDS
    return word != "running"


def telling_heartbeats(run: Path, end: MetricsEnd, locked: bool | None) -> Mapping[int, Heard]:
    """Those that `state_of` needs. Of a run that has ended well, those of rank 0 are enough: there may be many runs, of
    many ranks each."""
    if locked or text(end.end, "event") != "ended":
        return read_heartbeats(run)
    first = read_heartbeat(run, 0)
    return {} if first is None else {0: first}


def tells_end(state: RunState) -> bool:
    """Whether the run's result.json is of its end: else it is of an earlier part, which was continued."""
    return state.word in ("finished", "stopped")


def state_of(
    run: Path, result: Mapping[str, Any] | None, end: MetricsEnd, heartbeats: Mapping[int, Heard], locked: bool | None
) -> RunState:
    """The state that follows from these facts."""
    is_heard = any(not heard.is_silent and not heard.beat.end for heard in heartbeats.values())
    # With its rank 0 on this host, a running run would be seen to hold its lock.
    is_unlocked = locked is False and 0 in heartbeats and heartbeats[0].beat.host == socket.gethostname()
    if locked or (is_heard and not is_unlocked):
        return RunState("running", _silence(heartbeats))
    failure = _failure(end, heartbeats)
    if failure:
        return RunState("failed", failure)
    if _changes_workers(end):
        return RunState("running", "its workers change")
    if end.end is not None or (end.is_empty and result is not None):  # without its metrics, the result tells
        return state_at_end(result, end)
    if end.problem:
        return RunState("unknown", f"how it ended is not known: {end.problem}")
    return RunState("lost", _resumes_from(run))


def state_at_end(result: Mapping[str, Any] | None, end: MetricsEnd) -> RunState:
    """Of a run whose last line, or else its result, is there. It may still hold its folder."""
    status = text(result, "status") or ("finished" if (end.end or {}).get("finished") is True else "")
    unknown = "" if result else "its result is not known"
    if status == "finished":
        return RunState("finished", unknown)
    cause = text(end.end, "stopped_by")
    if not cause:
        return RunState("stopped", unknown or "the same command continues it")
    continues = "a larger one continues it" if cause == "--max-steps" else "the same command continues it"
    return RunState("stopped", f"{cause} has ended it; {unknown or continues}")


def _changes_workers(end: MetricsEnd) -> bool:
    """Whether an elastic job has just stopped, to go on with other workers."""
    is_recent = end.time is not None and time.time() - end.time < RESTART_SECONDS
    return is_recent and is_change(text(end.end, "stopped_by"))


def _silence(heartbeats: Mapping[int, Heard]) -> str:
    silent = [rank for rank, heard in heartbeats.items() if heard.is_silent]
    if not silent:
        return ""
    longest = max(heartbeats[rank].age for rank in silent)
    who = f"rank {silent[0]} is" if len(silent) == 1 else f"{len(silent)} ranks are"
    return f"{who} silent for {longest:.0f} s"


def _failure(end: MetricsEnd, heartbeats: Mapping[int, Heard]) -> str:
    """The error that ended the run; "" where none is known. That of the rank which failed first says most."""
    error = text(end.end, "error") if text(end.end, "event") == "failed" else ""
    of_ranks = [
        f"rank {rank}: {heard.beat.error or 'it failed'}"
        for rank, heard in heartbeats.items()
        if heard.beat.end == "failed"
    ]
    errors = [*([error] if error else []), *of_ranks]
    known = [error for error in errors if _OTHERS not in error]
    wordless = [rank for rank, heard in heartbeats.items() if not heard.beat.end]
    if not known and 0 < len(wordless) <= len(of_ranks):  # else the launcher may have killed most of them
        return f"{_named(wordless)} ended without a word, as a killed process does; the others failed for that reason"
    first = next(iter(known), next(iter(errors), ""))
    return first.partition("\n")[0][:_LONGEST_NOTE]


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - _MOST_NAMED} others" if len(ranks) > _MOST_NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:_MOST_NAMED]))}{more}"


def _resumes_from(run: Path) -> str:
    try:
        has_checkpoint = any((run / "checkpoints").glob("step_*"))
    except OSError:
        return ""
    if has_checkpoint:
        return "it ended without a word, as a killed run does; the same command continues it from its last checkpoint"
    return "it ended without a word, as a killed run does, and has no checkpoint"


def is_locked(run: Path) -> bool | None:
    """Whether a process on a host that shares its locks with this one holds the run folder. None: nobody can tell, as
    on a file system without locks."""
    try:
        lock = os.open(run / LOCK_NAME, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # several may look at once
        fcntl.flock(lock, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(lock)
    return False
