"""A job of `hvdtrain launch local`, which faults come when, the same for the same seed, and what each of them does."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, get_args

from hvdtrain.errors import UsageError
from hvdtrain.launch.processes.orphan_reaper import descendants, process_table
from hvdtrain.launch.supervisor.restarts import option_value, trains

Kind = Literal["kill", "stop", "slow", "term", "corrupt", "full"]
KINDS: Final[tuple[str, ...]] = get_args(Kind)

_SHORTEST_SECONDS: Final = 0.2
_PAUSES: Final = (0.5, 3.0)  # seconds of what lasts
_SLICE_SECONDS: Final = 0.05
_SHARE: Final = 0.25  # of the CPU that a slow worker gets


class Job:
    """Starts the launcher, and again where it has ended with a checkpoint.

    Args:
        restarts: how often the launcher may start `size` workers again.
        least: with how few the others go on while one is missing; None: all are started again.
        command: `train …`, with --output-dir.

    Raises UsageError: the command trains nothing.
    """

    def __init__(self, size: int, restarts: int, command: Sequence[str], least: int | None = None) -> None:
        whole = [sys.executable, "-m", "hvdtrain", *command]
        folder = option_value(whole, "output-dir")
        if not trains(whole) or folder is None:
            raise UsageError(
                f"The command to disturb is `{' '.join(command)}`.",
                "A training with a run folder is needed, to continue in it.",
                "write hvdtrain chaos -np 2 -- train --output-dir RUN.",
            )
        self.folder = Path(folder)
        self.size = size
        self._argv = [sys.executable, "-m", "hvdtrain", "launch", "local", "-np", str(size)]
        self._argv += ["--max-restarts", str(restarts), "--backoff", "0.2"]
        self._argv += [*([] if least is None else ["--min-workers", str(least)]), "--", *command]
        self.starts = 0
        self.launcher: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the launcher, which ends with this process."""
        self.starts += 1
        self.launcher = subprocess.Popen(self._argv)

    def worker(self, rank: int) -> int | None:
        """The process of `rank`, as they were started: ranks may change. None while there are not so many."""
        if self.launcher is None:
            return None
        launcher, table = self.launcher.pid, process_table()
        children = sorted(process for process, seen in table.items() if seen.parent == launcher)
        workers = [child for child in children if _variable(child, "HOROVOD_RANK") is not None]
        return workers[rank] if rank < len(workers) else None

    def processes(self, rank: int) -> list[int]:
        """The process of `rank` and all that it has started."""
        first = self.worker(rank)
        return [] if first is None else [first, *sorted(descendants(first, (), process_table()))]

    @property
    def trained_lines(self) -> int:
        """Lines of training in metrics.jsonl: while this number grows, training goes on."""
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b'"split": "train"') if path.exists() else 0

    def checkpoints(self) -> list[Path]:
        """The oldest first."""
        return sorted((self.folder / "checkpoints").glob("step_*"))

    def end(self) -> None:
        """Whatever happens, no process stays."""
        if self.launcher is not None and self.launcher.poll() is None:
            for rank in range(self.size):
                send(self.worker(rank), signal.SIGCONT)
            self.launcher.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.launcher.wait(30)
            self.launcher.kill()  # its workers end with it
            self.launcher.wait()


def send(process: int | None, number: signal.Signals) -> bool:
    """Whether the process was still there."""
    if process is None:
        return False
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def _variable(process: int, name: str) -> str | None:
    try:
        words = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), None)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    # kill (SIGKILL of a worker, or of a process that it has started), stop (SIGSTOP for a while), slow (a quarter of
    # the CPU for a while), term (SIGTERM to the launcher, as a scheduler sends it), corrupt (one byte of the newest
    # checkpoint is changed, and a worker is killed), full (the process of rank 0 can write no file for a while, as on a
    # full disk)
    kind: Kind
    after: float  # seconds for which training goes on before
    rank: int  # of the worker
    seconds: float  # how long it lasts, for stop, slow and full
    choice: float  # from 0 to 1: which of the worker's processes, or which byte


def schedule(seed: int, kinds: Sequence[Kind], size: int, every: float) -> Iterator[Fault]:
    """Faults without end.

    Args:
        kinds: each of them as often as the others.
        size: how many workers there are.
        every: mean seconds between faults, distributed exponentially.
    """
    draw = random.Random(seed)
    while True:
        after = max(_SHORTEST_SECONDS, draw.expovariate(1 / every))
        yield Fault(draw.choice(kinds), after, draw.randrange(size), draw.uniform(*_PAUSES), draw.random())


def inject(job: Job, fault: Fault) -> str:
    """Do it; returns what was done, for people, "" where it came too late."""
    return _KINDS[fault.kind](job, fault)


def _kill(job: Job, fault: Fault) -> str:
    processes = job.processes(fault.rank)
    if not processes:
        return ""
    chosen = processes[int(fault.choice * len(processes))]
    what = "" if chosen == processes[0] else ", a process that it had started"
    return f"SIGKILL for rank {fault.rank}{what}" if send(chosen, signal.SIGKILL) else ""


def _stop(job: Job, fault: Fault) -> str:
    process = job.worker(fault.rank)
    if not send(process, signal.SIGSTOP):
        return ""
    time.sleep(fault.seconds)
    send(process, signal.SIGCONT)
    return f"rank {fault.rank} stopped for {fault.seconds:.1f} s"


def _slow(job: Job, fault: Fault) -> str:
    process, end = job.worker(fault.rank), time.monotonic() + fault.seconds
    while time.monotonic() < end:
        if not send(process, signal.SIGSTOP):
            return ""
        time.sleep(_SLICE_SECONDS * (1 - _SHARE))
        send(process, signal.SIGCONT)
        time.sleep(_SLICE_SECONDS * _SHARE)
    return f"rank {fault.rank} slow for {fault.seconds:.1f} s"


def _term(job: Job, _fault: Fault) -> str:
    return "SIGTERM for the launcher" if job.launcher and send(job.launcher.pid, signal.SIGTERM) else ""


def _corrupt(job: Job, fault: Fault) -> str:
    done = _kill(job, fault)
    checkpoints = job.checkpoints()
    if not done or len(checkpoints) < 2:  # with its only checkpoint lost, a job cannot continue, and says so
        return done
    file = min(checkpoints[-1].glob("model*.safetensors"))
    return f"{done}, and a byte of {checkpoints[-1].name} changed" if _flip_byte(file, fault.choice) else done


def _full(job: Job, fault: Fault) -> str:
    """A limit instead of a disk: no file of the process can grow (setrlimit(2), RLIMIT_FSIZE)."""
    process = job.worker(0)
    if process is None:
        return ""
    try:
        before = resource.prlimit(process, resource.RLIMIT_FSIZE)
        resource.prlimit(process, resource.RLIMIT_FSIZE, (0, before[1]))
        time.sleep(fault.seconds)
        resource.prlimit(process, resource.RLIMIT_FSIZE, before)
    except ProcessLookupError:
        pass  # it has ended because of that
    return f"no file of rank 0 could grow for {fault.seconds:.1f} s"


def _flip_byte(file: Path, place: float) -> bool:
    try:
        with file.open("r+b") as content:
            at = int(place * file.stat().st_size)
            content.seek(at)
            byte = content.read(1)
            content.seek(at)
            content.write(bytes([byte[0] ^ 1]))
    except OSError:
        return False
    return True


_KINDS: Final[Mapping[str, Callable[[Job, Fault], str]]] = MappingProxyType(
    {"kill": _kill, "stop": _stop, "slow": _slow, "term": _term, "corrupt": _corrupt, "full": _full}
)
