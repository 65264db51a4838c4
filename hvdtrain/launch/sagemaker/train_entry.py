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
import shutil
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.errors import HvdtrainError
from hvdtrain.launch.sagemaker.container.contract import folders_of, read_container
from hvdtrain.launch.sagemaker.container.program import fetch_source, worker_command
from hvdtrain.launch.sagemaker.container.variables import assigned_ranks
from hvdtrain.launch.sagemaker.container.workers import ContainerExit, run_workers
from hvdtrain.launch.sagemaker.failure_file import await_first_cause, cause_of, write_failure

_WEIGHTS, _RESULT = "model*.safetensors", "result.json"  # several where --checkpoint-writers wrote it
_OTHERS_WORDS_SECONDS = 3.0  # for the rank that failed first to write its cause


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
        _print_error(ended.cause)
    except Exception:
        ended = ContainerExit(1, cause_of(traceback.format_exc()))
        traceback.print_exc()
    try:
        write_failure(output, ended.cause)
    except HvdtrainError as error:
        _print_error(str(error))
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


def _print_error(text: str) -> None:
    sys.stderr.write(f"hvdtrain: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
