"""How one start of a job ended: which rank caused it, with which exit code, and what to say."""

import re
import signal
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile

from hvdtrain.errors import RESUMABLE, UsageError
from hvdtrain.failure_record import EARLY_END, STALL, signal_name
from hvdtrain.launch.supervisor.signals import for_workers
from hvdtrain.launch.supervisor.worker_state import CRASH, WorkerState

USAGE = UsageError.exit_code

SHOWN_LINES = 20
GIST_LINES = 3  # of a rank whose lines were printed before
SHOWN_CHARACTERS = 300
_CRASHED_THREAD = "Current thread 0x"
_EXCEPTION = "terminate called"  # the C++ library's words about an exception that nobody catches; "what():" follows
_EXCEPTION_LINES = 6
_TRACEBACK = "Traceback (most recent call last)"
_CAUSE_CHARACTERS = 300
_NAMED = 8  # of the workers that still run
_QUOTED_RANKS = 4  # of those that never came
_ITS_WORDS = re.compile(r" (?:It wrote nothing\.|Its last lines:|The last lines of rank \d+:|Rank \d+ wrote nothing\.)")
_MISSING = "Missing ranks:"
_MISSING_RANK = re.compile(r"(\d{1,6}): \[")


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One start of a job."""

    code: int  # exit code: 0, 2, 75, 128 + signal, a worker's own, else 1
    root_cause_rank: int | None = None  # the rank whose failure ended the job, where there is one
    message: str = ""  # what to say; empty where a worker has said it all
    may_restart: bool = False  # whether trying again makes sense
    mended: int = 0  # losses after which the job went on without being started again
    first_cause: str = ""  # of the loss with which it began, where the others tried to go on; else empty
    mended_causes: tuple[str, ...] = ()  # of the last ones that were mended, the newest last

    @property
    def cause(self) -> str:
        """Its first sentence or two, without what workers wrote: for the record of a restart."""
        return self.first_cause or cause_in(self.message)


def cause_in(message: str) -> str:
    """The first sentence or two of a report, without what workers wrote."""
    line = message.partition("\n")[0].removeprefix("hvdtrain launch: ")
    return _ITS_WORDS.split(line)[0][:_CAUSE_CHARACTERS]


def diagnose(
    workers: Sequence[WorkerState],
    stopped_by: signal.Signals | None,
    all_connected: bool = False,
    held: Container[int] = (),
    hurried_by: signal.Signals | None = None,
    size: int | None = None,
) -> JobOutcome:
    """The outcome once every worker has ended. `stopped_by` was forwarded to them, `hurried_by` is the second signal,
    for which they were killed at once.

    `all_connected`: whether all ranks were connected once, as a wrong call shows before that; lines of ranks that are
    `held` were not shown yet, and are quoted in full. `size`: of their world, where some of it were replaced.
    """
    size = len(workers) if size is None else size
    if stopped_by is not None:
        return _after_signal(workers, stopped_by, hurried_by, size)
    failed = sorted((worker for worker in workers if worker.end and worker.end.failed), key=lambda w: w.order)
    if not failed:
        return JobOutcome(0)
    causes = [worker for worker in failed if not worker.is_consequence]
    if not causes:
        return _without_cause(workers, failed, held, size)
    root = next((worker for worker in causes if worker.rank == 0 and _failed_alike(worker, causes[0])), causes[0])
    if root.code == USAGE and not all_connected and root.tail.text():  # else nobody has said why
        return JobOutcome(USAGE, root.rank)
    if root.code == RESUMABLE:
        said = _untold(workers, size)  # no failure, and rank 0 has said how to continue
        return JobOutcome(RESUMABLE, root.rank, said)
    message = report(root, size, root.rank in held)
    if root.code in (USAGE, 130, 143):
        return JobOutcome(root.code, root.rank, message)
    return JobOutcome(max(root.code, 1), root.rank, message, may_restart=True)


def has_cause(outcome: JobOutcome) -> bool:
    """Whether the job has failed because of one rank, and was not asked to stop."""
    stops = (0, RESUMABLE, 128 + signal.SIGINT, 128 + signal.SIGTERM)
    return outcome.root_cause_rank is not None and outcome.code not in stops


def words_of_others(workers: Sequence[WorkerState], root: int | None) -> list[str]:
    """What workers other than `root` have left to this launcher to print, unless `root` has failed alike."""
    cause = next((w.failure.cause for w in workers if w.rank == root and w.failure), None)
    failures = [(worker.rank, worker.failure) for worker in workers if worker.rank != root and worker.failure]
    return [f"[{rank}] {each.detail}" for rank, each in failures if each.detail and each.cause != cause]


def start_timed_out(
    workers: Sequence[WorkerState], there: Iterable[Container[int]], seconds: float, held: Container[int]
) -> JobOutcome:
    """The outcome where not all ranks have met in time; `there` has those that got so far, the furthest first."""
    missing = [worker for worker in workers if worker.end is None]
    for ranks in there:
        missing = [worker for worker in missing if worker.rank not in ranks] or missing
    named = ", ".join(f"rank {worker.rank} (process {worker.process}{worker.on_host})" for worker in missing)
    words = [quoted(worker, worker.rank in held, by_name=True) for worker in missing[:_QUOTED_RANKS]]
    fact = f"hvdtrain launch: {named} did not join the other ranks within {seconds:g} seconds."
    hint = "HINT: if it only needs longer to begin, give --start-timeout more seconds."
    return JobOutcome(1, missing[0].rank, "\n".join([fact, *words, hint]), may_restart=True)


def lingering(workers: Sequence[WorkerState], seconds: float) -> str:
    """What to say of workers that run so long after the first one has ended well."""
    running = [worker for worker in workers if worker.end is None]
    named = ", ".join(f"rank {worker.rank} (process {worker.process}{worker.on_host})" for worker in running[:_NAMED])
    more = f" and {len(running) - _NAMED} more" if len(running) > _NAMED else ""
    runs, they = ("runs", "it is") if len(running) == 1 else ("run", "they are")
    return f"hvdtrain launch: {named}{more} still {runs} {seconds:g} s after the first worker ended; {they} waited for."


def _failed_alike(worker: WorkerState, other: WorkerState) -> bool:
    """Rank 0 then speaks for all, although another was faster."""
    if worker.failure and other.failure:
        return worker.failure.cause == other.failure.cause
    return worker.code == other.code == USAGE


def _without_cause(
    workers: Sequence[WorkerState], failed: Sequence[WorkerState], held: Container[int], size: int
) -> JobOutcome:
    """Every failure is the consequence of another one: of a rank that stalls, of one that left early, or unknown."""
    first = failed[0]
    stalled = sorted({rank for worker in failed for rank in stalled_ranks(worker.tail.text())} - {first.rank})
    early = [worker.rank for worker in workers if worker.end and worker.end.code == 0 and worker.order < first.order]
    blamed, hint = first.rank, ""
    if stalled and stalled[-1] < size:
        blamed = stalled[0]
        why = f"{_ranks(stalled)} of {size} took no part in a collective operation for which others waited"
    elif early:
        blamed = early[0]
        them = "them" if len(early) > 1 else "it"
        hint = "\nHINT: give all ranks the same number of batches, or let one that has fewer call hvd.join()."
        why = f"{_ranks(early)} of {size} left with exit code 0 while others still needed {them}"
    else:
        of_watchdogs = (w.failure.cause for w in failed if w.failure and w.failure.kind == "stall")
        why = next((cause.rstrip(".") for cause in of_watchdogs if cause.startswith(STALL)), "")
        silent = [worker for worker in workers if worker.end and worker.end.by_us]
        if silent and not why:
            blamed = silent[0].rank
        why = why or _silent(silent, size) or "the ranks lost each other, and none of them says more"
    others = _ranks([worker.rank for worker in failed])
    text = f"hvdtrain launch: {why}; {others} stopped only because of that. "
    said = quoted(first, first.rank in held, by_name=True)
    return JobOutcome(max(first.code, 1), blamed, text + said + hint, may_restart=True)


def _silent(workers: Sequence[WorkerState], size: int) -> str:
    """Of workers that had to be killed when the others had lost each other."""
    named = [f"rank {worker.rank} (process {worker.process}{worker.on_host})" for worker in workers]
    if not named:
        return ""
    known = f"{', '.join(named)} of {size} answered the others no more and did not end when asked to"
    return f"{known}: a process that hangs, or was frozen"


def stalled_ranks(lines: Sequence[str]) -> set[int]:
    """Ranks for which others wait. Only Horovod's log names them: stall_inspector.cc, "Missing ranks:", "1: [a]"."""
    missing: set[int] = set()
    listing = False
    for line in lines:
        match = _MISSING_RANK.match(line)
        if match and listing:
            missing.add(int(match[1]))
        else:
            listing = line.rstrip().endswith(_MISSING)
    return missing


def _after_signal(
    workers: Sequence[WorkerState], stopped_by: signal.Signals, hurried_by: signal.Signals | None, size: int
) -> JobOutcome:
    codes = {worker.code for worker in workers}
    if codes == {0}:
        return JobOutcome(0)
    if codes <= {RESUMABLE, 0}:
        return JobOutcome(RESUMABLE)
    killed = [worker.rank for worker in workers if worker.end and worker.end.by_us]
    how = f"stopped by {stopped_by.name}"
    if killed and hurried_by is not None:
        were = "were" if len(killed) > 1 else "was"
        how += f"; {hurried_by.name} came as a second request, so {_ranks(killed)} {were} killed at once"
    elif killed:
        how += f"; {_ranks(killed)} did not leave in time and had to be killed"
    failed = [worker for worker in workers if worker.end and worker.end.failed]
    # something else than the request has ended these
    lost = [w for w in failed if (w.end and w.end.lost) or (w.code < 0 and w.code != -for_workers(stopped_by))]
    if lost:
        ends = " and ".join(f"rank {worker.rank}{worker.on_host} {_how(worker)}" for worker in lost)
        how += f"; {ends} meanwhile, so the last steps may be in no checkpoint"
    said = [f"hvdtrain launch: {how}.", _untold(workers, size)]
    return JobOutcome(128 + stopped_by, message="\n".join(filter(None, said)))


def _untold(workers: Sequence[WorkerState], size: int) -> str:
    """The report of the first rank that has left its traceback to this launcher to print."""
    first = min((w for w in workers if w.failure and w.failure.detail), key=lambda w: w.order, default=None)
    return "" if first is None else report(first, size, in_full=True)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def report(worker: WorkerState, size: int, in_full: bool) -> str:
    """How a worker of `size` ended, and its last lines: all of them, or the end of what was shown before."""
    how = _how(worker)
    if worker.end and worker.end.out_of_memory and worker.code == -signal.SIGKILL:
        how += "; out of memory? The kernel has killed a process for it meanwhile"
    elif worker.failure and worker.failure.kind == "signal":
        how += f" because of a signal: {worker.failure.cause}"
    who = f"rank {worker.rank} of {size}" if worker.rank < size else "a further worker, which had not joined yet,"
    return f"hvdtrain launch: {who}{worker.on_host} {how}. {quoted(worker, in_full)}"


def quoted(worker: WorkerState, in_full: bool, by_name: bool = False) -> str:
    """The worker's last lines, as they end a message; of what was shown before, only the end. `by_name`: the message
    does not speak of this worker."""
    if worker.failure and worker.failure.detail:
        lines = worker.failure.detail.splitlines()
    else:
        text = worker.tail.text()
        lines = crash_report(text) or last_words(text)
        lines = lines if in_full else _gist(lines)
    if not lines:
        return f"Rank {worker.rank} wrote nothing." if by_name else "It wrote nothing."
    begin = f"The last lines of rank {worker.rank}:" if by_name else "Its last lines:"
    return "\n".join([begin, *(f"  [{worker.rank}] {line[:SHOWN_CHARACTERS]}" for line in lines)])


def _how(worker: WorkerState) -> str:
    if worker.failure and worker.failure.kind == "unfinished":
        return EARLY_END
    if worker.end and worker.end.by_us:
        return "answered no more, and was killed by the launcher"
    return f"was lost: {worker.end.lost}" if worker.end and worker.end.lost else how_it_ended(worker.code)


def _gist(lines: list[str]) -> list[str]:
    """A traceback says what it was at its end, the interpreter's own report of a crash at its beginning."""
    crash = next((i for i, line in enumerate(lines) if CRASH in line), None)
    if crash is None:
        return lines[-GIST_LINES:]
    begin = _words_of_cpp(lines, crash, default=crash)
    return lines[begin : max(begin + GIST_LINES, crash + 1)]


def crash_report(lines: Sequence[str]) -> list[str]:
    """Of what faulthandler writes about all threads: what happened, with C++'s words or the line before it, and the
    stack of the thread that crashed, if that runs Python code. Empty where `lines` do not end with such a report."""
    fatal = max((i for i, line in enumerate(lines) if CRASH in line), default=None)
    if fatal is None or any(_TRACEBACK in line for line in lines[fatal:]):
        return []
    begin = _words_of_cpp(lines, fatal, default=max(0, fatal - 1))
    what = [line for line in lines[begin : fatal + 1] if line.strip()]
    stack = list(dropwhile(lambda line: not line.startswith(_CRASHED_THREAD), lines[fatal:]))
    return [*what, *stack[:1], *takewhile(lambda line: line.startswith("  "), stack[1:SHOWN_LINES])]


def _words_of_cpp(lines: Sequence[str], crash: int, default: int) -> int:
    """Where they begin, which come before the line `crash` if that is the end of an exception that nobody catches."""
    near = range(max(0, crash - _EXCEPTION_LINES), crash)
    return min((i for i in near if lines[i].startswith(_EXCEPTION)), default=default)


def how_it_ended(code: int) -> str:
    """For people: "failed with exit code 3", "was killed by SIGKILL"."""
    return f"failed with exit code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"


def last_words(lines: Sequence[str]) -> list[str]:
    """From the line before the last traceback on; without one, the last SHOWN_LINES. Blank lines are omitted."""
    begin = max((i for i, line in enumerate(lines) if _TRACEBACK in line), default=None)
    chosen = lines[-SHOWN_LINES:] if begin is None else lines[max(0, begin - 1) :]
    return [line for line in chosen if line.strip()]
