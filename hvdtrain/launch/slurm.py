"""An sbatch script: plain `srun python -m hvdtrain` without ssh and MPI, or MPI inside the allocation.

Sources: sbatch(1) and srun(1) of Slurm 22.05; its release notes, for srun no longer taking over --cpus-per-task.
"""

import re
import shlex
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.launch import batch_script, launcher_api
from hvdtrain.launch import option_groups as groups
from hvdtrain.launch.batch_script import UNSUPPORTED, clock, may_continue, notice_of, require_word
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.mpirun import MpirunArguments, mpirun_arguments
from hvdtrain.launch.rendering import (
    LaunchPlan,
    Note,
    comment,
    require_supported,
    shared_notes,
    worker_variables,
    wrap_command,
)
from hvdtrain.launch.supervisor.restarts import option_value

INNER = ("srun", "pmix", "mpirun")
LAST_SECONDS = 30  # between the end of the first worker and that of the last

_TRAP = """\
# When Slurm ends the job it signals this script too. It must outlive the workers, which save meanwhile.
ended=0
trap ended=1 TERM
"""

_LONGEST_NOTICE = 65_535  # of --signal (slurm.schedmd.com, sbatch)

_REQUEUE = Path(__file__).with_name("requeue.sh")
"""The end of a script that counts failures; {command} and {max_restarts} are put in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What only Slurm asks for."""

    # what starts the workers in the allocation: "srun" (hvdtrain's own rendezvous), "pmix" (srun with MPI) or "mpirun"
    inner: str = "srun"
    flavor: str = "openmpi4"  # of mpirun, where `inner` is that: one of `option_groups.FLAVORS`
    mpirun: str = "mpirun"  # its name or path, where `inner` is that
    partition: str | None = None  # where to run; None: the site's own choice
    account: str | None = None  # who pays; None: the site's own choice

    def __post_init__(self) -> None:
        hint = "`sinfo` lists partitions, `sacctmgr show associations` accounts."
        require_word("--partition", self.partition, "Slurm", hint)
        require_word("--account", self.account, "Slurm", hint)


def render(job: JobSpec, options: SlurmOptions | None = None, program: str = "sbatch") -> LaunchPlan:
    """The script of a job for which Slurm finds nodes, and its sbatch; UsageError: Slurm cannot do what it asks for."""
    options = options or SlurmOptions()
    require_supported(job, "slurm", UNSUPPORTED if options.inner == "mpirun" else (*UNSUPPORTED, "allow_root"))
    script = f"{job.name}.sbatch"
    return LaunchPlan(
        launcher="sbatch",
        argv=(program, script),
        files={script: _script(job, options)},
        notes=(("script", f"{script}, which stays for you to edit and submit again"),),
    )


def _script(job: JobSpec, options: SlurmOptions) -> str:
    title = f"Slurm job {job.name}: sbatch {job.name}.sbatch"
    parts = ["#!/bin/bash", *_directives(job, options), "", comment(title, _notes(job, options)), "", "set -eu", ""]
    parts.extend(f"export {name}={shlex.quote(value)}" for name, value in sorted(_mpirun(job, options).env.items()))
    if job.cores_per_worker is not None:
        parts.append("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK")
    parts += ["", _TRAP]
    return "\n".join(parts) + _commands(job, options)


def _directives(job: JobSpec, options: SlurmOptions) -> list[str]:
    signalled = options.inner != "mpirun"
    settings: list[tuple[str, object]] = [
        ("job-name", job.name),
        ("partition", options.partition),
        ("account", options.account),
        ("nodes", job.num_hosts),
        ("ntasks", job.np),
        ("ntasks-per-node", job.slots),
        ("cpus-per-task", job.cores_per_worker),
        ("threads-per-core", 1 if job.binds_to_cores else None),
        ("gpus-per-node", job.gpus_per_host or None),
        ("time", clock(job.time_limit) if job.time_limit is not None else None),
        ("chdir", _quoted(job.working_dir) if job.working_dir is not None else None),
        ("output", "%x-%j.log"),
        ("open-mode", "append"),
        ("signal", f"TERM@{_notice_of(job)}" if signalled else None),
    ]
    lines = [f"#SBATCH --{name}={value}" for name, value in settings if value is not None]
    return [*lines, "#SBATCH --requeue" if may_continue(job) else "#SBATCH --no-requeue"]


def _notice_of(job: JobSpec) -> int:
    if (notice := notice_of(job)) > _LONGEST_NOTICE:
        raise UsageError(
            f"--grace is {job.grace:g} s.",
            f"Slurm sends a signal at most {_LONGEST_NOTICE} s before the time limit.",
            "give less.",
        )
    return notice


def _quoted(path: str) -> str:
    """A path for a #SBATCH line, whose quoting is sbatch's own."""
    if '"' in path or "\\" in path or not path.isprintable():
        raise UsageError(
            f"The working directory is {path!r}.",
            "sbatch cannot read double quotes, backslashes and control characters there.",
            "choose a folder without them.",
        )
    return path if re.fullmatch(r"[\w./+@%:,-]+", path) else f'"{path}"'


def _commands(job: JobSpec, options: SlurmOptions) -> str:
    argv = job.meeting_argv if options.inner == "srun" else job.argv
    command = wrap_command((*_starter(job, options), *argv))
    if may_continue(job) and option_value(job.argv, "output-dir") is None:
        # The job's number stays the same when Slurm starts it again; double quotes let the shell put it in.
        command += f' \\\n    --output-dir "runs/{job.name}-$SLURM_JOB_ID"'
    if not job.max_restarts:
        return command + "\n"
    return _REQUEUE.read_text().format(command=command, max_restarts=job.max_restarts)


def _starter(job: JobSpec, options: SlurmOptions) -> tuple[str, ...]:
    if options.inner == "mpirun":
        return (options.mpirun, *_mpirun(job, options).options)
    # Ranks that stop with a checkpoint all end with 75; --kill-on-bad-exit=1 would kill the second one for the first
    # one's code, and report that. Without any limit, a task that hangs would hold the nodes until the time limit.
    words = ["--kill-on-bad-exit=0", f"--wait={LAST_SECONDS}"]
    if job.binds_to_cores or job.binding == "none":  # else the cluster's own settings decide
        words.append(f"--cpu-bind={'cores' if job.binds_to_cores else 'none'}")
    if job.gpus_per_host:
        words.append("--gpu-bind=none")
    return ("srun", *(["--mpi=pmix"] if options.inner == "pmix" else []), *words)


def _mpirun(job: JobSpec, options: SlurmOptions) -> MpirunArguments:
    if options.inner != "mpirun":
        return MpirunArguments(env=worker_variables(job))
    return mpirun_arguments(replace(job, time_limit=None), options.flavor)  # Slurm keeps the time


def _notes(job: JobSpec, options: SlurmOptions) -> tuple[Note, ...]:
    start = {
        "srun": "srun starts them; they find each other by Slurm's own variables, without ssh and MPI",
        "pmix": "srun starts them and gives them to MPI, which must have been built with PMIx",
        "mpirun": "mpirun starts them, and learns the nodes from Slurm",
    }
    notes = shared_notes(job, "each worker takes the interface that leads to rank 0", ("start", start[options.inner]))
    notes.append(("restart", f"{_restart_note(job)}; the log is appended to"))
    notice = "TERM for the workers before the time limit, so that they save"
    none = "none before the time limit: Slurm's would reach mpirun's helpers, not the workers"
    notes.append(("signal", none if options.inner == "mpirun" else notice))
    if job.env:
        notes.append(("variables", f"{', '.join(job.env)}: sbatch takes your whole environment along"))
    return tuple(notes)


def _restart_note(job: JobSpec) -> str:
    if not may_continue(job):
        return "never, as the command has no --output-dir to continue in"
    if job.max_restarts:
        return f"at most {job.max_restarts} after failures; any number after the time limit, if the workers have saved"
    # A worker that leaves within the grace time ends the job before Slurm would put it back into the queue.
    return "by Slurm when a node fails; after other failures and preemptions only with --max-restarts"


def _start(options: Namespace, command: tuple[str, ...]) -> int:
    job = batch_script.job_of(options, command)
    settings = SlurmOptions(**batch_script.start_of(options), partition=options.partition, account=options.account)
    return launcher_api.print_or_execute(render(job, settings), options.dry_run, options.overwrite)


LAUNCHER = launcher_api.Launcher(
    "an sbatch script with srun, or with MPI",
    (
        *batch_script.OPTIONS,
        groups.option("--start", choices=INNER, default="srun", help="what starts the workers (default: srun)"),
        groups.option("--partition"),
        groups.option("--account"),
    ),
    _start,
)
