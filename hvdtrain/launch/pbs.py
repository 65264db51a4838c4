"""A script for qsub of OpenPBS and PBS Professional, or of Torque: `hvdtrain launch ssh` or MPI on the job's nodes.

PBS gives a job nodes and starts its script on the first of them; PBS_NODEFILE names them. It sends no signal before
the time limit, and lets no user queue a job again. So the script does both: `timeout` asks the workers to save, and a
job that has saved submits the script again.

Sources: qsub(1B), qrerun(1B), pbs_resources(7B) of OpenPBS 23.06; qsub(1B) of Torque 6.1.
"""

import re
import shlex
import subprocess
from argparse import Namespace
from dataclasses import dataclass

from hvdtrain.errors import UsageError
from hvdtrain.launch import batch_script, launcher_api
from hvdtrain.launch import option_groups as groups
from hvdtrain.launch.batch_script import LEFT, UNSUPPORTED, Start, may_continue, notice_of, require_word
from hvdtrain.launch.execute import find_program, run_program
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.rendering import LaunchPlan, Note, comment, require_supported, shared_notes

INNER = ("ssh", "mpirun")
KINDS = ("openpbs", "torque")
_VERSION_SECONDS = 30.0
_FIRST_JOB = "HVDTRAIN_FIRST_JOB"  # the number of the first of the jobs that the script submits one after the other

_BEFORE = """\
# The same in each job that this script submits: the number of the first one.
first=${{{variable}:-${{PBS_JOBID%%.*}}}}
first=${{first//[[]/-}}  # 12[3], an element of an array, is 12-3
first=${{first//]/}}
"""

_LEFT = """\
# Seconds until the workers are asked to save. SECONDS counts those of this script.
left=$(({seconds} > SECONDS ? {seconds} - SECONDS : 1))
"""

_HOSTS = """\
# Each node once, with its workers: PBS names a node once for each of its slots, which may be its cores.
"""

_WHY = """\
# PBS sends TERM when it ends the job ("ended"): at qdel and at the time limit. `qsig -s SIGUSR1` asks for a
# checkpoint."""

_AGAIN = """\
# Users may not queue a job of PBS again, so this one submits the script for a new job.
if [ "$again" = yes ] && [ -n "${{PBS_ARRAY_INDEX:-${{PBS_ARRAYID:-}}}}" ]; then
    echo "hvdtrain: This element of an array is not submitted again: the script would start all of them." >&2
elif [ "$again" = yes ] && [ "$ended" -eq 0 ]; then
    export {variable}="$first"
    cd "$PBS_O_WORKDIR"
    qsub {script}
fi
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PbsOptions:
    """What only PBS asks for."""

    inner: str = "ssh"  # what starts the workers in the allocation: "ssh" (hvdtrain's own launcher) or "mpirun"
    flavor: str = "openmpi4"  # of mpirun, where `inner` is that: one of `option_groups.FLAVORS`
    mpirun: str = "mpirun"  # its name or path, where `inner` is that
    kind: str = "openpbs"  # one of KINDS: they ask for nodes in different ways
    queue: str | None = None  # None: the site's own choice
    account: str | None = None  # who pays; None: the site's own choice
    project: str | None = None  # likewise; OpenPBS alone has both

    def __post_init__(self) -> None:
        for option, value in (("--queue", self.queue), ("--account", self.account), ("--project", self.project)):
            require_word(option, value, "PBS", "`qstat -Q` lists queues; the site tells accounts and projects.")
        if self.project is not None and self.kind == "torque":
            raise UsageError(
                f"--project is {self.project!r}, and qsub is of Torque.",
                "Torque has no projects: its -P names another user.",
                "say who pays with --account.",
            )


def render(job: JobSpec, options: PbsOptions | None = None, program: str = "qsub") -> LaunchPlan:
    """The script of a job for which PBS finds nodes, and its qsub; UsageError: PBS cannot do what it asks for."""
    options = options or PbsOptions()
    unsupported = UNSUPPORTED if options.inner == "mpirun" else (*UNSUPPORTED, "allow_root", "binding")
    require_supported(job, "pbs", unsupported)
    script = f"{job.name}.pbs"
    return LaunchPlan(
        launcher="qsub",
        argv=(program, script),
        files={script: _script(job, options)},
        notes=(("script", f"{script}, which stays for you to edit and submit again"),),
    )


def _script(job: JobSpec, options: PbsOptions) -> str:
    start = _start_of(job, options)
    title = f"PBS job {job.name}: qsub {job.name}.pbs"
    folder = '"$PBS_O_WORKDIR"' if job.working_dir is None else shlex.quote(job.working_dir)
    parts = [
        "\n".join(["#!/bin/bash", *_directives(job, options)]) + "\n",
        comment(title, _notes(job, options, start)) + "\n",
        "set -eu\n",
        batch_script.require_inside("PBS_NODEFILE", "PBS", f"qsub {job.name}.pbs"),
        f"cd {folder}\n{_exports(job, start)}",
        batch_script.require_import(job, options.inner),
        _HOSTS + batch_script.hosts_of_lines(job, start, '"$PBS_NODEFILE"'),
        _BEFORE.format(variable=_FIRST_JOB) if may_continue(job) else "",
    ]
    return "\n".join(part for part in parts if part) + "\n" + _commands(job, start)


def _directives(job: JobSpec, options: PbsOptions) -> list[str]:
    is_openpbs = options.kind == "openpbs"
    settings: list[tuple[str, str | None]] = [
        ("-S", "/bin/bash"),
        ("-N", job.name),
        ("-q", options.queue),
        ("-A", options.account),
        ("-P", options.project),
        ("-l", _select(job) if is_openpbs else _nodes(job)),
        ("-l", "place=scatter" if is_openpbs and job.num_hosts > 1 else None),
        ("-l", f"walltime={batch_script.clock(job.time_limit)}" if job.time_limit is not None else None),
        ("-j", "oe"),
        ("-k", "doe" if is_openpbs else None),  # the log is written where it will be, while the job runs
        ("-r", "y" if may_continue(job) else "n"),
    ]
    return [*(f"#PBS {option} {value}" for option, value in settings if value is not None), "#PBS -V"]


def _chunks(job: JobSpec) -> list[tuple[int, int]]:
    """How many nodes, and with how many workers each."""
    full, rest = divmod(job.np, job.slots)
    return [(full, job.slots), *([(1, rest)] if rest else [])]


def _select(job: JobSpec) -> str:
    gpus = f":ngpus={job.gpus_per_host}" if job.gpus_per_host else ""
    chunks = [f"{n}:ncpus={job.cores_per_host or slots}:mpiprocs={slots}{gpus}" for n, slots in _chunks(job)]
    return "select=" + "+".join(chunks)


def _nodes(job: JobSpec) -> str:
    gpus = f":gpus={job.gpus_per_host}" if job.gpus_per_host else ""
    return "nodes=" + "+".join(f"{n}:ppn={job.cores_per_host or slots}{gpus}" for n, slots in _chunks(job))


def _start_of(job: JobSpec, options: PbsOptions) -> Start:
    if options.inner == "mpirun":
        return batch_script.start_by_mpirun(job, options.flavor, options.mpirun)
    return batch_script.start_by_ssh(job)


def _exports(job: JobSpec, start: Start) -> str:
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(start.env.items())]
    if job.cores_per_worker is None:
        lines.insert(0, "unset OMP_NUM_THREADS  # where PBS writes the cores of all workers of a node\n")
    return "".join(lines)


def _commands(job: JobSpec, start: Start) -> str:
    before: tuple[str, ...] = ()
    left = ""
    if job.time_limit is not None and start.ask is not None:
        seconds = job.time_limit - notice_of(job)
        before = ("timeout", "--foreground", "--preserve-status", "--signal=USR1", LEFT)
        left = _LEFT.format(seconds=seconds)
    command = batch_script.command_text(job, start, "$first", before)
    text = left + batch_script.run_text(start, command, _WHY, "TERM", "USR1")
    if job.max_restarts:
        again = batch_script.again_or_not(job, start, "$first")
        text += "\n" + again + _AGAIN.format(variable=_FIRST_JOB, script=f"{job.name}.pbs")
    return text + 'exit "$code"\n'


def _notes(job: JobSpec, options: PbsOptions, start: Start) -> tuple[Note, ...]:
    how = {
        "ssh": "hvdtrain launch ssh, by ssh between the nodes and without MPI; --start mpirun is the other way",
        "mpirun": "mpirun starts them on the nodes of PBS_NODEFILE",
    }
    nic = {
        "ssh": "of each node, the one that leads to the first",
        "mpirun": "MPI tries all interfaces that are up but the loopback, docker0 too",
    }
    notes = shared_notes(job, nic[options.inner], ("start", how[options.inner]))
    notes += [("restart", _restart_note(job, start)), ("signal", _signal_note(job, start))]
    notes.append(("variables", "qsub takes your whole environment along (-V)"))
    return tuple(notes)


def _restart_note(job: JobSpec, start: Start) -> str:
    if not may_continue(job):
        return "never, as the command has no --output-dir to continue in"
    if not job.max_restarts:
        return "by PBS when a node fails, or to make room for another job; otherwise only with --max-restarts"
    where = "in the job" if start.restarts_itself else "by a new job"
    return (
        f"at most {job.max_restarts} after failures, {where}; a new job any number of times, if the workers have saved"
    )


def _signal_note(job: JobSpec, start: Start) -> str:
    if start.ask is None:
        return "none before the time limit: this mpirun passes none on; give the command a --max-time"
    if job.time_limit is None:
        return "none before the queue's time limit, which this script does not know: give --time-limit"
    return f"USR1 for the workers {notice_of(job)} s before the time limit, so that they save"


def kind_of(program: str | None) -> str:
    """Which PBS the qsub at `program` belongs to; OpenPBS where there is none, or it does not tell."""
    if program is None:
        return "openpbs"
    try:
        done = run_program([program, "--version"], _VERSION_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return "openpbs"
    # OpenPBS says "pbs_version = 23.06.06", Torque "Version: 6.1.3" and, before 5, "version: 4.2.10".
    return "torque" if re.match(r"\s*version:", done.stdout + done.stderr, re.IGNORECASE) else "openpbs"


def _start(options: Namespace, command: tuple[str, ...]) -> int:
    job = batch_script.job_of(options, command)
    settings = PbsOptions(
        **batch_script.start_of(options),
        kind=options.pbs or kind_of(find_program("qsub")),
        queue=options.queue,
        account=options.account,
        project=options.project,
    )
    return launcher_api.print_or_execute(render(job, settings), options.dry_run, options.overwrite)


LAUNCHER = launcher_api.Launcher(
    "a qsub script for PBS Pro, OpenPBS or Torque, with hvdtrain launch ssh, or with MPI",
    (
        *batch_script.OPTIONS,
        groups.option("--start", choices=INNER, default="ssh", help="what starts the workers (default: ssh)"),
        groups.option("--pbs", choices=KINDS, help="which PBS qsub belongs to (default: what `qsub --version` says)"),
        groups.option("--queue"),
        groups.option("--account"),
        groups.option("--project"),
    ),
    _start,
)
