"""Go on after a failure: when, how often, and with which command, so that a job resumes in one run folder."""

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.hosts.host import total_slots
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.diagnosis import JobOutcome
from hvdtrain.launch.supervisor.signals import SignalInbox

MAX_BACKOFF_SECONDS = 60.0
_MOST_OVER_GLOO = 1300  # workers: each puts 150 bytes for each into the server, which takes 256 MiB (docs/scale.md)
_TOLD_CAUSES = 8  # of the last losses, which workers are told


def run_with_restarts(
    attempt: Callable[[int, str], JobOutcome], job: JobSpec, console: Console, inbox: SignalInbox
) -> int:
    """Attempt until the job has ended, with as many restarts as it allows; returns the exit code.

    `attempt` starts all workers and returns when they have ended; it is told how many restarts came before, and what
    the last ones were for, a line each. Each restart waits twice as long as the one before, at most
    MAX_BACKOFF_SECONDS; a signal in `inbox` ends that. Raises HvdtrainError: what `attempt` raised, or the launcher has
    an error of its own.
    """
    _warn_of_many(job.world_sizes[1], console)
    restarts, causes, most = 0, list[str](), job.max_restarts
    while True:
        outcome = _attempted(attempt, restarts, "\n".join(causes))
        restarts += outcome.mended
        if not outcome.may_restart or restarts >= most:
            if outcome.may_restart and most:
                console.say(f"hvdtrain launch: given up after {restarts} of {most} restarts.")
            return outcome.code
        seconds = min(job.backoff * 2 ** min(restarts, 20), MAX_BACKOFF_SECONDS)
        console.say(f"hvdtrain launch: restart {restarts + 1} of {most} in {seconds:g} s.")
        stopped_by = inbox.sleep(seconds)
        if stopped_by is not None:
            console.say(f"hvdtrain launch: stopped by {stopped_by.name} before the restart.")
            return 128 + stopped_by
        restarts, causes = restarts + 1, [*causes, *outcome.mended_causes, outcome.cause][-_TOLD_CAUSES:]


def _warn_of_many(workers: int, console: Console) -> None:
    if workers > _MOST_OVER_GLOO:
        console.say(
            f"hvdtrain launch: WARNING: {workers:,} workers are to meet over Gloo, whose server has room for the "
            f"addresses of some {_MOST_OVER_GLOO:,}.\nHINT: start so many by MPI, with `hvdtrain launch mpirun`."
        )


def _attempted(attempt: Callable[[int, str], JobOutcome], restarts: int, causes: str) -> JobOutcome:
    try:
        return attempt(restarts, causes)
    except HvdtrainError:
        raise
    except Exception as error:
        raise HvdtrainError(
            f"The launcher itself failed: {type(error).__name__}: {error}.",
            "Nobody would watch over the workers, so all of them were ended.",
            "start the job again with --resume auto, and report this, for it is an error of hvdtrain:\n"
            + traceback.format_exc(),
        ) from error


@dataclass(eq=False)
class Losses:
    """The losses of an elastic job in one start: at most `most` are mended, and it went on after `restarts`, those of
    earlier starts too."""

    most: int
    restarts: int
    mended: int = 0  # losses of this start after which its workers went on
    cause: str = ""  # of the loss that is being mended; of one that could not be mended, to the end
    causes: list[str] = field(default_factory=list)  # of the last losses, the newest last
    # whether the job was asked to stop: then going on is for saving alone, and is not counted
    is_stopping: bool = False

    @property
    def is_affordable(self) -> bool:
        """Whether one more may be mended: a world is lost once."""
        return bool(self.cause) or self.is_stopping or self.restarts < self.most

    def begin(self, cause: str) -> str:
        """The first loss of a world; returns how it is mended, for people."""
        self.cause = cause
        if self.is_stopping:
            return "the last checkpoint is read and saved again for the stop"
        self.restarts += 1
        self.causes = [*self.causes, cause][-_TOLD_CAUSES:]
        return f"restart {self.restarts} of {self.most}"

    @property
    def mended_causes(self) -> tuple[str, ...]:
        return tuple(self.causes[:-1] if self.cause and not self.is_stopping else self.causes)

    def end(self) -> None:
        self.mended += bool(self.cause) and not self.is_stopping
        self.cause = ""


def with_run_folder(command: tuple[str, ...], max_restarts: int) -> tuple[str, ...]:
    """`command` with a run folder named in it, where it is hvdtrain's training. Raises UsageError: the run folder may
    be in a config file, which only hvdtrain itself reads."""
    if not trains(command) or option_value(command, "output-dir") is not None:
        return command
    if option_value(command, "config") is not None:
        raise no_run_folder(f"--max-restarts is {max_restarts}, and the command has --config but no --output-dir.")
    folder = Path("runs") / f"launched-{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 1_000_000:06d}"
    return (*command, "--output-dir", str(folder))


def no_run_folder(fact: str) -> UsageError:
    hint = "add --output-dir FOLDER to the command, even if a config file has it."
    return UsageError(fact, "A restart must know the run folder to continue in it.", hint)


def require_changes_possible(job: JobSpec) -> None:
    """Raise UsageError where the number of workers may change and no restart is allowed, each worker has a batch of its
    own, a model is in stages, or there can never be room for the most workers that were asked for; and where a restart
    would not find the run folder."""
    slots = total_slots(job.hosts)
    if job.host_discovery_script is None and job.max_workers is not None and job.hosts and job.max_workers > slots:
        raise UsageError(
            f"--max-workers is {job.max_workers}, and there are {slots} slots for workers.",
            "Without --host-discovery-script nothing names more, so the job could never grow to that.",
            f"use --max-workers {slots}, or name hosts and their slots by --host-discovery-script.",
        )
    stages = option_value(job.argv, "parallel.stages")
    if job.host_discovery_script is not None and trains(job.argv) and stages not in (None, "1"):
        raise UsageError(
            f"--host-discovery-script is given with --parallel.stages {stages}.",
            "The number of workers follows the script, and stages need a multiple of their number.",
            "leave the script out; with --max-restarts, a loss starts all workers again.",
        )
    _require_same_batch(job)
    if job.max_restarts:
        with_run_folder(job.argv, job.max_restarts)


def _require_same_batch(job: JobSpec) -> None:
    changes = job.world_sizes != (job.np, job.np) or job.host_discovery_script is not None
    if changes and not job.max_restarts:
        raise UsageError(
            "The job may continue with more or fewer workers, and has no --max-restarts.",
            "It changes their number when it is started again after a loss.",
            "add --max-restarts 3, say.",
        )
    per_worker = option_value(job.argv, "batch-size")
    if changes and trains(job.argv) and per_worker is not None:
        is_number = per_worker.isascii() and per_worker.isdigit()
        raise UsageError(
            f"The job may continue with more or fewer workers, and has --batch-size {per_worker}.",
            "That is per worker, so another number of workers would train with other batches.",
            f"give the batch of all together: --global-batch-size {int(per_worker) * job.np if is_number else 'N'}.",
        )


def trains(command: Sequence[str]) -> bool:
    """Whether `command` is `python -m hvdtrain` or `hvdtrain`, with `train` or with no subcommand."""
    rest = after_program(command)
    return rest is not None and (not rest or rest[0] == "train" or rest[0].startswith("-"))


def after_program(command: Sequence[str]) -> Sequence[str] | None:
    """What follows `-m hvdtrain` or the console script; None for another program."""
    for number, word in enumerate(command):
        if word == "-m":
            return command[number + 2 :] if "hvdtrain" in command[number + 1 : number + 2] else None
        if Path(word).name == "hvdtrain":
            return command[number + 1 :]
        if number and not word.startswith("-"):
            return None  # another script
    return None


def option_value(command: Sequence[str], name: str) -> str | None:
    """The last value given to `--name`, as `--name VALUE` or `--name=VALUE`, with `-` or `_` between words."""
    last = None
    for i, word in enumerate(command):
        option, equals, value = word.partition("=")
        if option.replace("_", "-") == f"--{name}":
            last = value if equals else (command[i + 1] if i + 1 < len(command) else None)
    return last
