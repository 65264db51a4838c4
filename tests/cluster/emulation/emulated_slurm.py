"""A real Slurm on emulated hosts: slurmctld on the first one, slurmd on each, munged with a key of its own."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from emulated_hosts import EmulatedHosts
from support.processes import Finished, Spawned, wait_until

CORES = 4
KILL_WAIT_SECONDS = 20
_READY_SECONDS = 30
_COMMAND_SECONDS = 20
_ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"})

_CONF = """\
ClusterName=emulated
SlurmctldHost={first}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge},cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=2,sched_interval=2
MpiDefault=none
ReturnToService=2
KillWait={kill_wait}
OverTimeLimit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=30 MaxTime=60 State=UP
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF MaxTime=60 State=UP
"""


class EmulatedSlurm:
    """The cluster of one test run. Commands run on the first host.

    Args:
        hosts: started.
    """

    def __init__(self, hosts: EmulatedHosts) -> None:
        self.hosts = hosts
        self._folder = hosts.slot.folder / "slurm"
        self._environment = {"SLURM_CONF": str(self._folder / "slurm.conf")}

    def start(self) -> None:
        """Start all services; returns when every node is idle."""
        self._write_files()
        first = self.hosts.names[0]
        self._service(first, "munged", *self._munged())
        wait_until("munged listens", self._munge_socket.exists, _READY_SECONDS, lambda: self._log("munged"))
        self._service(first, "slurmctld", "slurmctld", "-D", "-c")
        for name in self.hosts.names:
            self._service(name, f"slurmd.{name}", "slurmd", "-D", "-N", name)
        wait_until("all nodes are idle", self._all_idle, _READY_SECONDS, lambda: self._log("slurmctld"))
        self.hosts.adopt_services()

    def run(
        self,
        argv: Sequence[str],
        deadline_s: float = _COMMAND_SECONDS,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Finished:
        """Run srun, sbatch, … on the first host; arguments as `EmulatedHosts.run`."""
        return self.spawn(argv, env, cwd).wait(deadline_s)

    def spawn(self, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Spawned:
        """Start such a command; arguments as `run`."""
        return self.hosts.spawn(self.hosts.names[0], argv, {**self._environment, **(env or {})}, cwd)

    def submit(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> str:
        """Run a command that submits a job, such as ["sbatch", "job.sh"]; returns the job's number.

        Raises:
            AssertionError: it submits none.
        """
        done = self.run(argv, env=env, cwd=cwd)
        number = re.search(r"Submitted batch job (\d+)", done.stdout)
        assert number is not None, done.tail()
        return number[1]

    def facts(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says: JobState, ExitCode, Restarts, Reason, …"""
        shown = self.run(["scontrol", "--oneliner", "show", "job", job]).stdout
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def wait_for_end(self, job: str, deadline_s: float) -> dict[str, str]:
        """Wait until a job has ended; returns its `facts`.

        Raises:
            AssertionError: it has not after `deadline_s` seconds.
        """
        wait_until(
            f"job {job} ends", lambda: self.facts(job)["JobState"] in _ENDED, deadline_s, lambda: str(self.facts(job))
        )
        return self.facts(job)

    def cancel_all(self) -> None:
        """End all jobs without grace, and wait until every node is idle again."""
        self.run(["scancel", "--user=root", "--signal=KILL", "--full"])
        self.run(["scancel", "--user=root"])
        wait_until("all nodes are idle", self._all_idle, _READY_SECONDS, lambda: self._log("slurmctld"))

    def _all_idle(self) -> bool:
        shown = self.run(["sinfo", "--noheader", "--states=idle", "--format=%D", "--partition=low"]).stdout.split()
        return shown == [str(len(self.hosts.names))]

    @property
    def _munge_socket(self) -> Path:
        return self._folder / "munge.socket"

    def _munged(self) -> list[str]:
        names = ("key", "log", "pid", "seed")
        files = [f"--{name}-file={self._folder}/munge.{name}" for name in names]
        return ["munged", "--foreground", "--force", f"--socket={self._munge_socket}", *files]

    def _service(self, host: str, log: str, *argv: str) -> None:
        self.hosts.start_service(host, argv, self._environment, self._folder / f"{log}.out")

    def _write_files(self) -> None:
        for name in ("state", *(f"{kind}.{host}" for kind in ("spool", "tmp") for host in self.hosts.names)):
            (self._folder / name).mkdir(parents=True)
        key = self._folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        (self._folder / "cgroup.conf").write_text(f"CgroupPlugin={_cgroup_plugin()}\n")
        shape = f"CPUs={CORES} Boards=1 SocketsPerBoard=1 CoresPerSocket={CORES} ThreadsPerCore=1 RealMemory=4000"
        nodes = [f"NodeName={n} NodeAddr={self.hosts.address(n)} {shape} State=UNKNOWN" for n in self.hosts.names]
        (self._folder / "slurm.conf").write_text(
            _CONF.format(
                first=self.hosts.names[0],
                munge=self._munge_socket,
                folder=self._folder,
                kill_wait=KILL_WAIT_SECONDS,
                nodes="\n".join(nodes),
            )
        )

    def _log(self, name: str) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in self._folder.glob(f"{name}*.*"))


def _cgroup_plugin() -> str:
    """slurmd loads such a plugin though nothing here uses it, and the default one dies where systemd is not running."""
    shown = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, timeout=10, check=True).stdout
    version = tuple(int(part) for part in re.findall(r"\d+", shown)[:2])
    return "disabled" if version >= (23, 11) else "cgroup/v1"
