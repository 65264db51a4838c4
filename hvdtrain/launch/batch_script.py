"""What the scripts for schedulers share: whether a second start continues, and how workers start in an allocation.

Schedulers without a launcher of their own give a job a list of hosts. There `hvdtrain launch ssh` starts the workers,
which needs no MPI, or mpirun.
"""

import math
import os
import re
import shlex
from argparse import Namespace
from dataclasses import dataclass, field, replace

from hvdtrain.errors import UsageError
from hvdtrain.launch import launcher_api
from hvdtrain.launch import option_groups as groups
from hvdtrain.launch.execute import find_program
from hvdtrain.launch.job_spec import JobSpec, is_script
from hvdtrain.launch.mpirun import mpi_flavor, mpirun_arguments
from hvdtrain.launch.rendering import ELASTIC, wrap_command
from hvdtrain.launch.supervisor.restarts import no_run_folder, option_value, trains
from hvdtrain.launch.worker_environment import needed_names

MIN_NOTICE_SECONDS = 60  # before the time limit: schedulers look at limits about once a minute: sbatch(1), --signal
UNSUPPORTED = (*ELASTIC, "hosts", "image", "ssh_port", "start_timeout")
"""Fields of JobSpec for which no scheduler's script has anything."""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,:@+-]{0,127}")
_HOSTS = "$hosts"  # the script's variable
LEFT = "$left"  # another one, of a script that counts the time that is left
USR1 = 'kill -USR1 "$job" || true'
_TERM = 'kill "$job" || true'

_HOSTS_AND_SLOTS = """\
# No host has more workers than slots, of which a scheduler may give more on one host than on another{exception}.
counted=$(awk '
    {{ {each} }}
    END {{
        for (i = 1; i <= hosts; i++) {{
            workers = n[name[i]] < {slots} ? n[name[i]] : {slots}
            slots += workers; list = list comma name[i]{workers}; comma = ","
        }}
        print slots + 0, list
    }}' {source})
slots=${{counted%% *}} hosts=${{counted#* }}
if [ "$slots" -lt {np} ]; then
    echo "hvdtrain: The job has {np} workers, {slots} on a host." \\
        "{scheduler} gives it $slots slots: ${{hosts:-no host}}." >&2
    echo "HINT: ask for {hosts} hosts with {slots} slots each, or start fewer workers with -np." >&2
    exit 2
fi
"""

_IMPORT = """\
if ! {python} -c 'import hvdtrain'; then
    echo "hvdtrain: {shown} cannot import hvdtrain on $(hostname). Its workers would end at once." >&2
    echo "HINT: install hvdtrain there, or name an interpreter that has it with --python." >&2
    exit 2
fi
"""

_RUN = """\
# A shell runs its traps between two commands, or while it waits: so the command runs in the background. It reads
# nothing, as a shell may read this script from its standard input.
{begin}{command} < /dev/null{end_of_command} &
job=$!
{why}
ended=0
trap 'ended=1; {end}' {ended_by}
trap '{ask}' {asked_by}
while kill -0 "$job" 2> /dev/null; do wait "$job" || true; done
code=0
wait "$job" || code=$?
"""

_COUNT = """\
# Exit codes: 0 is done; 2 is wrong usage, which a restart does not correct; 75 has saved a checkpoint and always goes
# on; others are failures, and counted.
failures="{name}-{number}.failures"
again=no
case "$code" in
    0) rm -f "$failures" ;;
    2) ;;
    75) again=yes ;;
    *)
        echo "$code" >> "$failures"
        [ "$(wc -l < "$failures")" -gt {most} ] || again=yes
        ;;
esac
"""

_NO_COUNT = """\
# 75 has saved a checkpoint and goes on. After a failure, hvdtrain launch ssh has started the workers again by itself.
again=no
[ "$code" -ne 75 ] || again=yes
"""


OPTIONS = (
    *(*groups.JOB, *groups.CLUSTER, *groups.MACHINES, *groups.RESTARTS),
    *(groups.TIME_LIMIT, groups.MPI, groups.BINDING, groups.ALLOW_ROOT),
)
"""Of every scheduler's launcher, beside its own."""


def job_of(options: Namespace, command: tuple[str, ...]) -> JobSpec:
    """The job. mpirun passes on no variable by itself. Raises as `launcher_api.job_from`."""
    return launcher_api.job_from(options, command, env=needed_names(os.environ) if options.start == "mpirun" else ())


def start_of(options: Namespace) -> dict[str, str]:
    """The fields of a scheduler's options that say what starts the workers: `inner`, and of an mpirun its name."""
    if options.start != "mpirun":
        return {"inner": options.start}
    program = find_program("mpirun")
    return {"inner": "mpirun", "mpirun": program or "mpirun", "flavor": options.mpi or mpi_flavor(program)}


@dataclass(frozen=True, slots=True)
class Start:
    """How workers are started inside an allocation."""

    words: tuple[str, ...]  # of the command, up to what each worker runs
    command: tuple[str, ...]  # what each worker runs, as the starter takes it
    env: dict[str, str] = field(default_factory=dict)  # to export before
    # bash that asks the workers to save and stop; None: nothing does. Not by TERM, at which mpirun ends workers at once
    ask: str | None = USR1
    flavor: str | None = None  # of mpirun, where it is that
    restarts_itself: bool = False  # after failures, while the allocation lasts


def start_by_ssh(job: JobSpec) -> Start:
    """`hvdtrain launch ssh` on the hosts in $hosts."""
    words = ["launch", "ssh", "-np", str(job.np), "-H", _HOSTS]
    if job.max_restarts:
        words += ["--max-restarts", str(job.max_restarts)]
    if job.grace != JobSpec.__dataclass_fields__["grace"].default:
        words += ["--grace", f"{job.grace:g}"]
    if job.nics:
        words += ["--nic", ",".join(job.nics)]
    for option, number in (("--gpus-per-host", job.gpus_per_host), ("--cores-per-host", job.cores_per_host)):
        if number:
            words += [option, str(number)]
    for name in job.env:
        words += ["--pass-env", name]
    return Start((job.python, "-m", "hvdtrain", *words, "--"), job.command, restarts_itself=True)


def start_by_mpirun(job: JobSpec, flavor: str, mpirun: str) -> Start:
    """Some MPI's mpirun on the hosts in $hosts, whether or not it knows the scheduler."""
    arguments = mpirun_arguments(replace(job, time_limit=None, working_dir=None), flavor)
    named = {
        "mpich": ("-hosts", _HOSTS),
        "intel": ("-hosts", _HOSTS, "-ppn", str(job.slots)),  # whose -hosts takes names alone
    }.get(flavor, ("--host", _HOSTS))
    ask = USR1 if flavor.startswith("openmpi") else None
    words = (mpirun, *arguments.options[:2], *named, *arguments.options[2:])
    return Start(words, job.argv, arguments.env, ask=ask, flavor=flavor)


def hosts_of_lines(job: JobSpec, start: Start, file: str) -> str:
    """Bash that makes $hosts from a file of PBS with a line for each slot, and refuses too few slots."""
    return _hosts(job, start, "if (!n[$1]++) name[++hosts] = $1", file, "PBS")


def hosts_of_pairs(job: JobSpec, start: Start, variable: str) -> str:
    """As `hosts_of_lines`, from a variable of LSF such as "a 4 b 4"."""
    each = "for (i = 1; i < NF; i += 2) { if (!n[$i]) name[++hosts] = $i; n[$i] += $(i + 1) }"
    return _hosts(job, start, each, f'<<< "${variable}"', "LSF")


def _hosts(job: JobSpec, start: Start, each: str, source: str, scheduler: str) -> str:
    workers = "" if start.flavor == "intel" else ' ":" workers'  # whose mpirun takes names without slots
    exception = " (Intel MPI takes one number for all)" if start.flavor == "intel" else ""
    numbers = {"np": job.np, "slots": job.slots, "hosts": job.num_hosts}
    texts = {"each": each, "workers": workers, "source": source, "scheduler": scheduler, "exception": exception}
    return _HOSTS_AND_SLOTS.format(**numbers, **texts)


def command_text(job: JobSpec, start: Start, job_number: str, before: tuple[str, ...] = ()) -> str:
    """The command in bash. `job_number` is bash for what is the same in each start of the job; `before` are words that
    come first."""
    words = (*before, *start.words, *start.command)
    text = wrap_command(words)
    for variable in (_HOSTS, LEFT):  # of the script
        if variable in (*before, *start.words):
            text = text.replace(shlex.quote(variable), f'"{variable}"', 1)
    if may_continue(job) and option_value(job.argv, "output-dir") is None:
        # Double quotes let the shell put the number in.
        text += f' \\\n    --output-dir "runs/{job.name}-{job_number}"'
    return text


def run_text(start: Start, command: str, why: str, ended_by: str, asked_by: str, spared: str = "") -> str:
    """Bash that runs `command` and sets `code`. At signals in `ended_by`, which end the job for good and set `ended`,
    and at those in `asked_by`, workers save and stop. `why` is a comment on them. `spared`: one of them that comes to
    the command and all its processes too, which ignore it."""
    return _RUN.format(
        begin=f"(trap '' {spared}; exec " if spared else "",
        command=command,
        end_of_command=")" if spared else "",
        why=why,
        end=start.ask or _TERM,
        ended_by=ended_by,
        ask=start.ask or ":",
        asked_by=asked_by,
    )


def again_or_not(job: JobSpec, start: Start, job_number: str) -> str:
    """Bash that sets `again` by `code`. `job_number` as of `command_text`."""
    if start.restarts_itself:
        return _NO_COUNT
    return _COUNT.format(name=job.name, number=job_number, most=job.max_restarts)


def require_import(job: JobSpec, inner: str) -> str:
    """Bash that refuses an interpreter without hvdtrain, where one is needed: else each start counts as a failure."""
    if inner != "ssh" and is_script(job.command):
        return ""
    shown = re.sub(r'["\\$`]', "?", job.python)
    return _IMPORT.format(python=shlex.quote(job.python), shown=shown)


def require_inside(variable: str, scheduler: str, submit: str) -> str:
    """Bash that refuses to run where `scheduler` has not started it."""
    return (
        f'if [ -z "${{{variable}:-}}" ]; then\n'
        f'    echo "hvdtrain: {variable} is not set. This script runs inside a job of {scheduler}." >&2\n'
        f'    echo "HINT: submit it: {submit}" >&2\n'
        "    exit 2\nfi\n"
    )


def may_continue(job: JobSpec) -> bool:
    """Whether a second start finds what the first one saved; UsageError where it does not and --max-restarts is set."""
    if option_value(job.argv, "output-dir") is not None or (
        trains(job.argv) and option_value(job.argv, "config") is None
    ):
        return True
    if job.max_restarts:
        raise no_run_folder(f"--max-restarts is {job.max_restarts}, and the command has no --output-dir.")
    return False


def clock(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def notice_of(job: JobSpec) -> int:
    """Seconds before the time limit at which workers are asked to save. Raises UsageError: the limit is no longer."""
    notice = max(MIN_NOTICE_SECONDS, math.ceil(job.grace))
    if job.time_limit is not None and job.time_limit <= notice:
        raise UsageError(
            f"--time-limit is {job.time_limit} s.",
            f"Workers are asked to save {notice} s before it, so they would stop as soon as they start.",
            f"give more than {notice} s.",
        )
    return notice


def require_word(option: str, value: str | None, scheduler: str, hint: str) -> None:
    """Raise UsageError for a name that a scheduler cannot have; None is none."""
    if value is not None and not _WORD.fullmatch(value):
        raise UsageError(
            f"{option} is {value[:80]!r}.",
            f"Names in {scheduler} have letters, digits and a few signs between them.",
            hint,
        )
