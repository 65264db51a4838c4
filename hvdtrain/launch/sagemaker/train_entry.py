"""What SageMaker runs in a container, as `IMAGE train` or under its training toolkit: `python -m` this module.

An image of one's own has an executable `train` on its PATH that runs this (`launch/sagemaker/train.sh`). It starts
`processes_per_host` workers, and those of several hosts find each other without ssh and MPI. Under `sagemaker-training`
the toolkit's mpirun runs a program of the source archive, which calls `main` in every rank.

`train` is not a console script of hvdtrain, because the toolkit has one of that name: in an image with both, the one
that was installed last would run.

Exit codes are hvdtrain's: 0 done, 1 failure, 2 wrong hyperparameter or channel, 75 stopped and resumable, 143 stopped.
SageMaker takes all but 0 for a failure, and shows the cause that is left in /opt/ml/output/failure.
"""

import errno
import os
import secrets
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.errors import RESUMABLE, HvdtrainError
from hvdtrain.launch.processes.orphan_reaper import JOB_TOKEN_VARIABLE, OrphanReaper, kill_job, with_job_token
from hvdtrain.launch.processes.worker import WorkerSpec
from hvdtrain.launch.processes.worker_group import LocalWorkerGroup
from hvdtrain.launch.sagemaker.container.contract import Container, folders_of, read_container
from hvdtrain.launch.sagemaker.container.program import WorkerCommand, fetch_source, worker_command
from hvdtrain.launch.sagemaker.container.variables import assigned_ranks, rendezvous_variables, script_variables
from hvdtrain.launch.sagemaker.failure_file import OutputParser, await_first_cause, cause_of, write_failure
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.diagnosis import JobOutcome, how_it_ended
from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.launch.supervisor.supervisor import Supervisor
from hvdtrain.launch.supervisor.worker_state import WorkerState
from hvdtrain.launch.worker_environment import share_of_host, worker_environment
from hvdtrain.topology.launcher_variables import without_launcher
from hvdtrain.topology.source_address import LOOPBACK
from hvdtrain.topology.topology import RankAssignment

GRACE_SECONDS = 100.0
"""For workers to save in: SageMaker kills a container 120 s after SIGTERM (API_StopTrainingJob; spot instances too)."""
START_SECONDS = 300.0  # within which the workers of a host must have found each other
ELSEWHERE = "Another machine's failure ended the workers of this one: its own account tells the cause."
"""How the failure file of a machine begins whose workers ended only because others did."""

_RESUME = "HINT: a job with a checkpoint location (checkpoint_s3_uri) goes on from there when it is started again."
_PERHAPS_ELSEWHERE = (
    "If nobody stopped the job and it had time left, another machine has failed: its own account tells the cause."
)

_WEIGHTS, _RESULT = "model*.safetensors", "result.json"  # several where --checkpoint-writers wrote it
_OTHERS_WORDS_SECONDS = 3.0  # for the rank that failed first to write its cause


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """How the workers of a container ended: with an exit code, and why they failed, the most important line first."""

    code: int
    cause: str = ""
    by_itself: bool = True  # and not only because workers of other machines did


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Train as the container's files say; returns the exit code."""
    output = folders_of(environ).output
    try:
        ended = _train(environ)
        if ended.code == 0:
            return 0
        if not ended.by_itself:
            await_first_cause(output, _OTHERS_WORDS_SECONDS)
    except HvdtrainError as error:
        ended = ContainerExit(error.exit_code, str(error))
        print(f"hvdtrain: {error}", file=sys.stderr, flush=True)
    except Exception:
        ended = ContainerExit(1, cause_of(traceback.format_exc()))
        traceback.print_exc()
    try:
        write_failure(output, ended.cause)
    except HvdtrainError as error:
        print(f"hvdtrain: {error}", file=sys.stderr, flush=True)
    return ended.code


def _train(environ: Mapping[str, str]) -> ContainerExit:
    container = read_container(environ)
    fetch_source(container)
    command = worker_command(container)
    ended = run_workers(command, container, environ)
    # The run folder is rank 0's; a user's own script writes its model itself.
    if ended.code == 0 and command.run_folder is not None and assigned_ranks(container, environ)[0].rank == 0:
        export_model(command.run_folder, container.folders.model)
    return ended


def export_model(run_folder: Path, model: Path) -> bool:
    """Copy the final weights, the config and the result, which SageMaker packs into model.tar.gz. False where there is
    no result, as of a dry run. HvdtrainError: no weights, or the folder cannot be written."""
    if not (run_folder / _RESULT).is_file():
        return False
    try:
        checkpoints = run_folder / "checkpoints"
        newest = checkpoints / (checkpoints / "latest").read_text().strip()
        weights = sorted(newest.glob(_WEIGHTS))
        if not weights:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(newest / _WEIGHTS))
        model.mkdir(parents=True, exist_ok=True)
        for source in (*weights, run_folder / "config.yaml", run_folder / _RESULT):
            temporary = model / f".{source.name}.tmp"  # a job that is stopped meanwhile leaves no half file
            shutil.copyfile(source, temporary)
            temporary.replace(model / source.name)
    except OSError as error:
        raise HvdtrainError(
            f"The model cannot be copied from {run_folder} to {model}: {error}.",
            "SageMaker would keep no model of this job.",
            "see that the disk has room; the weights are in the run folder's newest checkpoint.",
        ) from error
    return True


def run_workers(command: WorkerCommand, container: Container, environ: Mapping[str, str]) -> ContainerExit:
    """Run the workers that fall to this process until all have ended; signals are passed on to them.

    All of a host that is alone find each other by a server of this process; others by hvdtrain's own rendezvous. Raises
    UsageError: they cannot be started; HvdtrainError: nobody reads their output.
    """
    places = assigned_ranks(container, environ)
    token = secrets.token_hex(16)
    inherited = {**environ, **script_variables(container)}
    with SignalInbox() as inbox, OrphanReaper(token), ExitStack() as stack:
        stack.callback(kill_job, token)
        server, host = None, ""
        if places[0].size > len(places):
            host = container.current_host
            command = _connecting(command, inherited)
            variables = [_variables_among_hosts(inherited, container, each, token) for each in places]
        else:
            server = stack.enter_context(RendezvousServer(LOOPBACK, len(places), notify=inbox.wake))
            variables = [worker_environment(inherited, each, server.environment, "lo", token, 0) for each in places]
        # Workers are numbered as on this host: ranks of other hosts are none of this supervisor's business.
        orders = [WorkerSpec(number, command.argv, each) for number, each in enumerate(variables)]
        outputs = [OutputParser() for _ in orders]
        workers = [WorkerState(number, host, tail=output.tail) for number, output in enumerate(outputs)]
        group = stack.enter_context(closing(LocalWorkerGroup(orders, str(command.folder))))
        watched = server is not None and command.run_folder is not None and len(places) > 1
        start_timeout = START_SECONDS if watched else None
        outcome = Supervisor([group], workers, Console(), inbox, start_timeout, GRACE_SECONDS, server).run()
    return _container_exit(outcome, workers, places, outputs, command)


def _connecting(command: WorkerCommand, inherited: Mapping[str, str]) -> WorkerCommand:
    """`hvdtrain train` finds the ranks of other hosts by itself; a script that only calls `hvd.init()` does not."""
    if command.run_folder is not None or inherited.get("HOROVOD_CONTROLLER") == "mpi":
        return command
    return replace(command, argv=(sys.executable, "-P", "-m", "hvdtrain.comm.script_start", *command.argv))


def _variables_among_hosts(
    inherited: Mapping[str, str], container: Container, assignment: RankAssignment, token: str
) -> dict[str, str]:
    if inherited.get("HOROVOD_CONTROLLER") == "mpi":
        of_rank = dict(inherited)
    else:
        of_rank = without_launcher(inherited) | rendezvous_variables(container, assignment, inherited)
    return {
        **share_of_host(assignment.local_size),
        **({"NCCL_SOCKET_IFNAME": container.network_interface} if container.network_interface else {}),
        **of_rank,
        JOB_TOKEN_VARIABLE: with_job_token(inherited, token),
    }


def _container_exit(
    outcome: JobOutcome,
    workers: Sequence[WorkerState],
    places: Sequence[RankAssignment],
    outputs: Sequence[OutputParser],
    command: WorkerCommand,
) -> ContainerExit:
    if outcome.code == 0:
        return ContainerExit(0)
    is_all = places[0].size == len(places)
    is_whole_machine = not is_all and places[0].local_size == len(places)
    failed = [worker for worker in workers if worker.code != 0]
    elsewhere = ELSEWHERE if is_whole_machine and failed and all(worker.is_consequence for worker in failed) else ""
    if outcome.root_cause_rank is None or outcome.code == RESUMABLE:
        why = elsewhere or (_PERHAPS_ELSEWHERE if is_whole_machine else "")
        return ContainerExit(outcome.code, _lines(outcome.message or _resumable(command), why), by_itself=is_all)
    worker, assignment = workers[outcome.root_cause_rank], places[outcome.root_cause_rank]
    if worker.code == 0:  # it left while others still needed it
        return ContainerExit(outcome.code, _lines(elsewhere, outcome.message), by_itself=not elsewhere)
    cause = _cause(worker, outputs[worker.rank]) if worker.code > 0 else ""
    heading = f"Rank {assignment.rank} of {assignment.size}{worker.on_host} {how_it_ended(worker.code)}."
    text = _lines(elsewhere, heading, cause, outcome.message)
    return ContainerExit(outcome.code, text, by_itself=not worker.is_consequence)


def _lines(*parts: str) -> str:
    return "\n".join(filter(None, parts))


def _resumable(command: WorkerCommand) -> str:
    """The message about workers that exited with 75, because they can be started again."""
    stopped = "The workers stopped before the end of the training"
    if command.run_folder is None:
        return f"{stopped}: the script left with exit code {RESUMABLE}."
    latest = command.run_folder / "checkpoints" / "latest"
    if not latest.is_file():
        return f"{stopped}; there is no checkpoint here."
    return f"{stopped}; the newest checkpoint is {latest.read_text().strip()[:80]}.\n{_RESUME}"


def _cause(worker: WorkerState, output: OutputParser) -> str:
    """Why the worker failed, by its record; a traceback that is not in the record was printed."""
    failure = worker.failure
    if failure is None or failure.is_consequence:
        return output.cause
    return cause_of(failure.detail) or (failure.kind == "exception" and output.cause) or failure.cause


if __name__ == "__main__":
    sys.exit(main())
