"""A script for bsub of IBM Spectrum LSF: `hvdtrain launch ssh` or MPI on the job's hosts, or jsrun.

LSF gives a job slots, which are cores at most sites, and starts its script on the first host; LSB_MCPU_HOSTS names
them. On machines with IBM's Cluster System Manager, such as Summit and Lassen, jobs ask for whole nodes, the script
runs beside them, and jsrun starts processes there.

Before the time limit LSF sends one signal to all processes of a job. It is SIGURG here: nothing but the script's trap
listens to it, and the trap asks the workers to save. Another signal would end the ssh or the daemons that they hang on.

Sources: IBM Spectrum LSF 10.1, command reference, bsub, options -gpu, -nnodes, -Q, -R, -wa, -wt; JSM 10.3, jsrun and
jskill.
"""

import math
import shlex
from argparse import Namespace
from dataclasses import dataclass, replace

from hvdtrain.errors import UsageError
from hvdtrain.launch import batch_script, launcher_api
from hvdtrain.launch import option_groups as groups
from hvdtrain.launch.batch_script import UNSUPPORTED, Start, may_continue, notice_of, require_word
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.rendering import LaunchPlan, Note, comment, require_supported, shared_notes, worker_variables

INNER = ("ssh", "mpirun", "jsrun")
_SIGUSR1 = 10  # jskill takes numbers; Linux has this one on all processors that run LSF

_NUMBER = """\
# Of this job, and of its element where it is an array.
number=$LSB_JOBID
[ "${LSB_JOBINDEX:-0}" = 0 ] || number=$number-$LSB_JOBINDEX
"""

_SPARED = ("bash", "-c", "trap '' USR2; exec \"$@\"", "bash")
"""What starts a worker that ignores LSF's USR2: mpirun listens to that itself, and passes it on."""

_HOSTS = """\
# Each host once, with its workers: LSF names hosts with their slots, which may be their cores.
"""

_JSRUN = """\
if ! command -v jsrun > /dev/null; then
    echo "hvdtrain: There is no jsrun on $(hostname), which is to start the workers." >&2
    echo "HINT: load the module that has it in front of bsub, or render the script with --start ssh." >&2
    exit 2
fi
"""

_WHY = """\
# LSF sends INT and TERM to all processes when it ends the job ("ended"), URG before the time limit, and USR2 at the
# queue's limit, ten minutes before it ends the job. Workers ignore USR2."""

_AGAIN = """\
# LSF queues a job again that ends with 75, also one that it was told to end.
[ "$again" = no ] || code=75
[ "$ended" -eq 0 ] || [ "$code" -ne 75 ] || code=143
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LsfOptions:
    """What only LSF asks for."""

    # what starts the workers in the allocation: "ssh" (hvdtrain's own launcher), "mpirun" or "jsrun"
    inner: str = "ssh"
    flavor: str = "openmpi4"  # of mpirun, where `inner` is that: one of `option_groups.FLAVORS`
    mpirun: str = "mpirun"  # its name or path, where `inner` is that
    queue: str | None = None  # None: the site's own choice
    project: str | None = None  # who pays; None: the site's own choice

    def __post_init__(self) -> None:
        for option, value in (("--queue", self.queue), ("--project", self.project)):
            require_word(option, value, "LSF", "`bqueues` lists queues; the site tells projects.")


def render(job: JobSpec, options: LsfOptions | None = None, program: str = "bsub") -> LaunchPlan:
    """The script of a job for which LSF finds hosts, and its bsub; UsageError: LSF cannot do what it asks for."""
    options = options or LsfOptions()
    unsupported = {"ssh": ("allow_root", "binding"), "mpirun": (), "jsrun": ("allow_root",)}[options.inner]
    require_supported(job, "lsf", (*UNSUPPORTED, *unsupported))
    script = f"{job.name}.lsf"
    return LaunchPlan(
        launcher="bsub",
        argv=(program,),
        stdin=script,  # where bsub reads a script's #BSUB lines; those of a file that it is to run are comments to it
        files={script: _script(job, options)},
        notes=(("script", f"{script}, which stays for you to edit and submit again"),),
    )


def _script(job: JobSpec, options: LsfOptions) -> str:
    start = _start_of(job, options)
    submit, by_jsrun = f"bsub < {job.name}.lsf", options.inner == "jsrun"
    parts = [
        "\n".join(["#!/bin/bash", *_directives(job, options, start)]) + "\n",
        comment(f"LSF job {job.name}: {submit}", _notes(job, options, start)) + "\n",
        "set -eu\n",
        batch_script.require_inside("LSB_JOBID" if by_jsrun else "LSB_MCPU_HOSTS", "LSF", submit),
        _exports(job, start),
        _NUMBER if may_continue(job) else "",
        batch_script.require_import(job, options.inner),
        _JSRUN if by_jsrun else _HOSTS + batch_script.hosts_of_pairs(job, start, "LSB_MCPU_HOSTS"),
    ]
    return "\n".join(part for part in parts if part) + "\n" + _commands(job, start)


def _directives(job: JobSpec, options: LsfOptions, start: Start) -> list[str]:
    by_nodes = options.inner == "jsrun"
    each = job.cores_per_host or job.slots
    total = job.num_hosts * job.cores_per_host if job.cores_per_host else job.np
    gpus = f'"num={job.gpus_per_host}:mode=shared:j_exclusive=yes"' if job.gpus_per_host and not by_nodes else None
    settings: list[tuple[str, object]] = [
        ("J", job.name),
        ("q", options.queue),
        ("P", options.project),
        ("nnodes", job.num_hosts if by_nodes else None),
        ("n", total if not by_nodes else None),
        ("R", f'"span[ptile={each}]"' if not by_nodes else None),
        ("gpu", gpus),
        ("o", f"{job.name}-%J.log"),  # appended to when the job is queued again
        ("Q", '"75"' if job.max_restarts else None),
    ]
    if job.time_limit is not None:
        minutes = -(-job.time_limit // 60)
        settings.append(("W", f"{minutes // 60}:{minutes % 60:02d}"))
        if start.ask is not None:
            settings += [("wa", "URG"), ("wt", _notice_minutes(job, minutes))]
    lines = [f"#BSUB -{name} {value}" for name, value in settings if value is not None]
    return [*lines, "#BSUB -r" if may_continue(job) else "#BSUB -rn"]


def _notice_minutes(job: JobSpec, limit: int) -> int:
    """LSF knows whole minutes. Raises UsageError: the time limit is no longer than the notice."""
    notice = math.ceil(notice_of(job) / 60)
    if limit <= notice:
        raise UsageError(
            f"--time-limit is {job.time_limit} s, which are {limit} min for LSF, and --grace is {job.grace:g} s.",
            f"Workers are asked to save {notice} min before it, so they would stop as soon as they start.",
            f"give more than {notice} min.",
        )
    return notice


def _start_of(job: JobSpec, options: LsfOptions) -> Start:
    if options.inner == "mpirun":
        start = batch_script.start_by_mpirun(job, options.flavor, options.mpirun)
        return replace(start, command=(*_SPARED, *start.command))
    return _start_by_jsrun(job) if options.inner == "jsrun" else batch_script.start_by_ssh(job)


def _start_by_jsrun(job: JobSpec) -> Start:
    """One resource set for each host, so that each worker sees all GPUs of its host and NCCL the links between them."""
    if job.np % job.slots:
        raise UsageError(
            f"The job has {job.np} workers, {job.slots} on a host.",
            "jsrun gives each host the same number of workers.",
            f"use -np {job.num_hosts * job.slots}.",
        )
    binds = f"packed:{job.cores_per_worker}" if job.binds_to_cores else "none"
    words = (
        *("jsrun", f"--nrs={job.num_hosts}", "--rs_per_host=1", f"--tasks_per_rs={job.slots}"),
        f"--cpu_per_rs={job.cores_per_host or 'ALL_CPUS'}",
        f"--gpu_per_rs={job.gpus_per_host or 'ALL_GPUS'}",
        *("--launch_distribution=packed", f"--bind={binds}"),
    )
    return Start(words, job.argv, worker_variables(job), ask=f"jskill -s {_SIGUSR1} all || true")


def _exports(job: JobSpec, start: Start) -> str:
    folder = [f"cd {shlex.quote(job.working_dir)}\n"] if job.working_dir is not None else []
    return "".join(folder + [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(start.env.items())])


def _commands(job: JobSpec, start: Start) -> str:
    command = batch_script.command_text(job, start, "$number")
    text = batch_script.run_text(start, command, _WHY, "INT TERM", "URG USR1 USR2", spared="USR2")
    if job.max_restarts:
        text += "\n" + batch_script.again_or_not(job, start, "$number") + _AGAIN
    return text + 'exit "$code"\n'


def _notes(job: JobSpec, options: LsfOptions, start: Start) -> tuple[Note, ...]:
    how = {
        "ssh": "hvdtrain launch ssh, by ssh between the hosts and without MPI; --start mpirun or jsrun are other ways",
        "mpirun": "mpirun starts them on the hosts of LSB_MCPU_HOSTS",
        "jsrun": "jsrun starts them, with one resource set for each host",
    }
    mpi = "MPI tries all interfaces that are up but the loopback, docker0 too"
    nic = {"ssh": "of each host, the one that leads to the first", "mpirun": mpi, "jsrun": "Spectrum MPI chooses"}
    notes = shared_notes(job, nic[options.inner], ("start", how[options.inner]))
    if options.inner != "jsrun":
        notes.append(("slots", "one for each core that the job is to have; a worker may have several"))
    notes += [("restart", _restart_note(job, start)), ("signal", _signal_note(job, start))]
    if job.env:
        notes.append(("variables", f"{', '.join(job.env)}: bsub takes your whole environment along"))
    return tuple(notes)


def _restart_note(job: JobSpec, start: Start) -> str:
    if not may_continue(job):
        return "never, as the command has no --output-dir to continue in"
    if not job.max_restarts:
        return "by LSF when a host fails; after other failures and after the time limit only with --max-restarts"
    where = "in the job" if start.restarts_itself else "by LSF"
    return f"at most {job.max_restarts} after failures, {where}; by LSF any number of times, if the workers have saved"


def _signal_note(job: JobSpec, start: Start) -> str:
    if start.ask is None:
        return "none before the time limit: this mpirun passes none on; give the command a --max-time"
    if job.time_limit is None:
        return "USR2 at the queue's time limit, after which LSF waits ten minutes, and USR1 for the workers"
    return f"URG for this script {math.ceil(notice_of(job) / 60)} min before the time limit, and USR1 for the workers"


def _start(options: Namespace, command: tuple[str, ...]) -> int:
    job = batch_script.job_of(options, command)
    settings = LsfOptions(**batch_script.start_of(options), queue=options.queue, project=options.project)
    return launcher_api.print_or_execute(render(job, settings), options.dry_run, options.overwrite)


LAUNCHER = launcher_api.Launcher(
    "a bsub script for LSF, with hvdtrain launch ssh, with MPI, or with jsrun",
    (
        *batch_script.OPTIONS,
        groups.option("--start", choices=INNER, default="ssh", help="what starts the workers (default: ssh)"),
        groups.option("--queue"),
        groups.option("--project"),
    ),
    _start,
)
