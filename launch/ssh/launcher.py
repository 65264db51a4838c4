"""`hvdtrain launch ssh`: workers on several hosts, started, watched and restarted by this process."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hvdtrain.errors import UsageError
from hvdtrain.launch.job import JobSpec
from hvdtrain.launch.ssh.address import is_this_machine
from hvdtrain.launch.ssh.attempt import Attempt
from hvdtrain.launch.ssh.command import SshOptions
from hvdtrain.launch.ssh.host_agents import HostAgents
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.restarts import RestartPolicy, run_with_restarts
from hvdtrain.launch.supervisor.resume_command import flag, trains
from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.launch.unsupported import reject_unsupported, require_hosts

_UNSUPPORTED = ("image", "slots_per_host", "time_limit", "allow_root", "binding")


def run(job: JobSpec, options: SshOptions) -> int:
    """Run `job` on its hosts; returns the exit code. Whatever ends this process ends every process of the job.

    Raises:
        UsageError: hosts that cannot be reached at the start, a command that cannot be started, or a job that this
            launcher cannot run.
        HvdtrainError: processes cannot be killed, or nobody reads the output.
    """
    require_runnable(job, os.environ)
    if not options.checks_host_keys:
        Console().say("hvdtrain launch: WARNING: host keys are not checked; whoever answers gets the job's variables.")
    hosts = job.hosts if job.max_restarts else job.used_hosts  # others may step in where one is lost
    with SignalInbox() as inbox, HostAgents(hosts, options, is_this_machine, inbox, job.start_timeout) as agents:
        console = Console(inbox)
        attempt = Attempt(job, agents, console, inbox)
        return run_with_restarts(attempt.run, RestartPolicy(job.max_restarts, job.backoff), console, inbox)


def require_runnable(job: JobSpec, environ: Mapping[str, str]) -> None:
    """Raise UsageError unless this launcher can run the job; `environ` has the variables that are to be passed on."""
    require_hosts(job, "hvdtrain launch ssh")
    reject_unsupported(job, "hvdtrain launch ssh", _UNSUPPORTED)
    unset = next((name for name in job.env if name not in environ), None)
    if unset is not None:
        raise UsageError(f"{unset} is to be passed on.", "It is not set here.", f"export {unset}, or leave it out.")
    _require_same_batch(job)


def _require_same_batch(job: JobSpec) -> None:
    changes = (job.min_workers or job.np) != job.np or (job.max_workers or job.np) != job.np
    if changes and not job.max_restarts:
        raise UsageError(
            "The job may continue with more or fewer workers, and has no --max-restarts.",
            "It changes their number when it is started again after a loss.",
            "add --max-restarts 3, say.",
        )
    per_worker = flag(job.argv, "batch-size")
    if changes and trains(job.argv) and per_worker is not None:
        raise UsageError(
            f"The job may continue with more or fewer workers, and has --batch-size {per_worker}.",
            "That is per worker, so another number of workers would train with other batches.",
            f"give the batch of all together: --global-batch-size {_product(per_worker, job.np)}.",
        )


def _product(per_worker: str, np: int) -> str:
    return str(int(per_worker) * np) if per_worker.isascii() and per_worker.isdigit() else "N"
