"""What SageMaker runs in a container, as `IMAGE train` or under its training toolkit: `python -m` this module.

An image of one's own has an executable `train` on its PATH that runs this (`launch/sagemaker/train.sh`). It starts
`processes_per_host` workers, and those of several hosts find each other without ssh and MPI. Under `sagemaker-training`
the toolkit's mpirun runs a program of the source archive, which calls `main` in every rank.

`train` is no console script of hvdtrain's, because the toolkit has one of that name: in an image with both, the one
that was installed last would run.

Exit codes are hvdtrain's: 0 done, 1 failure, 2 wrong hyperparameter or channel, 75 stopped and resumable, 143 stopped.
SageMaker takes all but 0 for a failure, and shows the cause that is left in /opt/ml/output/failure.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping

from hvdtrain.errors import HvdtrainError
from hvdtrain.launch.sagemaker.container.artifacts import export_model, fetch_source
from hvdtrain.launch.sagemaker.container.command import WorkerCommand, worker_command
from hvdtrain.launch.sagemaker.container.contract import Container, folders_of, read_container
from hvdtrain.launch.sagemaker.container.variables import assigned_ranks
from hvdtrain.launch.sagemaker.container.workers import Ending, run_workers
from hvdtrain.launch.sagemaker.failure import await_first_cause, cause_of, write_failure

_OTHERS_WORDS_SECONDS = 3.0  # for the rank that failed first to write its cause


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Train as the container's files say; returns the exit code."""
    output = folders_of(environ).output
    try:
        ending = _train(environ)
        if ending.code == 0:
            return 0
        if not ending.by_itself:
            await_first_cause(output, _OTHERS_WORDS_SECONDS)
    except HvdtrainError as error:
        ending = Ending(error.exit_code, str(error))
        _say(ending.cause)
    except Exception:
        ending = Ending(1, cause_of(traceback.format_exc().splitlines()))
        traceback.print_exc()
    try:
        write_failure(output, ending.cause)
    except HvdtrainError as error:
        _say(str(error))
    return ending.code


def _train(environ: Mapping[str, str]) -> Ending:
    container = read_container(environ)
    fetch_source(container)
    command = worker_command(container)
    ending = run_workers(command, container, environ)
    if ending.code == 0:
        _leave_model(container, command, environ)
    return ending


def _leave_model(container: Container, command: WorkerCommand, environ: Mapping[str, str]) -> None:
    """Where rank 0 ran, whose run folder it is; a user's own script leaves its model itself."""
    if command.run_folder is not None and assigned_ranks(container, environ)[0].rank == 0:
        export_model(command.run_folder, container.folders.model)


def _say(text: str) -> None:
    sys.stderr.write(f"hvdtrain: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
