"""The folder of one run: the places of its files, and the check that nothing is overwritten."""

import logging
import time
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.horovod_world import node_name
from hvdtrain.comm.messages import agree, broadcast_json
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.files import unwritable, write_atomically
from hvdtrain.history.run_state import LOCK_NAME, LOOK_SECONDS
from hvdtrain.models.exchange import some
from hvdtrain.rank_summary import summarizes
from hvdtrain.run.begun import goes_on_after_loss, holds_run, is_elsewhere
from hvdtrain.run.log_files import host_log, rank_log
from hvdtrain.run.shared_folder import hosts_that_see_another
from hvdtrain.run.watch.local_folder import LocalFolder

_log = logging.getLogger("hvdtrain.run")

_LOST_SECONDS: Final = 60.0
"""A worker of a job that goes on waits so long for one that was lost: its host may be frozen, and end it later."""

_PROBE_BYTES = 2**16  # a full disk still makes empty files


class RunFolder:
    """Paths in a run folder; heartbeats/rank_N.json, or host_of_rank_N.json of many ranks, say what each does now."""

    def __init__(self, path: Path, keep_checkpoints: int) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.env = path / "env.json"
        self.metrics = path / "metrics.jsonl"
        self.metrics_table = path / "metrics.csv"
        self.hashes = path / "hashes.jsonl"  # checksums of the weights, if asked for
        self.result = path / "result.json"
        self.logs = path / "logs"  # rank_N.log, or host_NAME.log of many ranks
        self.audit = path / "audit"  # which records were trained on
        self.quarantine = path / "quarantine"  # damaged records, if asked for
        self.stalls = path / "stalls"  # START/: what each rank did when training did not go on
        self.traces = path / "traces"  # steps_A_B.json.gz: what all ranks did in these updates, if asked for
        self.tensorboard = path / "tb"
        self.wandb, self.mlflow = path / "wandb.json", path / "mlflow.json"  # which run this is there
        # step_NNNNNNNN/, and latest and best, the names of two of these folders
        self.checkpoints = CheckpointStore(path / "checkpoints", keep_checkpoints)
        self._lock = FileLock(path / LOCK_NAME)

    def claim(self) -> None:
        """Hold the folder until this process ends. Rank 0 only.

        Raises:
            UsageError: another job is running in it.
            HvdtrainError: this job goes on after a loss, and a process holds it for long: a worker that is not gone.
        """
        goes_on = goes_on_after_loss()
        try:
            self._lock.acquire(timeout=_LOST_SECONDS if goes_on else LOOK_SECONDS)
        except Timeout as error:
            if goes_on:
                raise HvdtrainError(
                    f"A process holds {self.path} for more than {_LOST_SECONDS:g} s.",
                    "It may be a worker of this job on a host that was lost, which has not ended.",
                    "look for it there and end it; then start the same command again.",
                ) from error
            raise UsageError(
                f"Another job is running in {self.path}.",
                "Two jobs in one folder would delete each other's checkpoints.",
                "wait until that job has ended, or use another run folder (--output-dir).",
            ) from error
        except OSError as error:
            raise unwritable(self.path, error) from error

    def release(self) -> None:
        """End what `claim` began, on any rank."""
        self._lock.release()

    def open_log(self, rank: int, level: str = "info", host: str = "") -> None:
        """Append this rank's log records from `level` on to logs/rank_N.log, or to that of all ranks of `host`, if that
        is given; rank 0's warnings go to standard error, too. Raises UsageError: the folder cannot be written on this
        rank's host."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            local = LocalFolder(self.path, host)
            handler = host_log(self.logs, rank, host, local) if host else rank_log(self.logs, rank)
        except OSError as error:
            raise unwritable(self.path, error) from error
        handler.setLevel(level.upper())
        logger = logging.getLogger("hvdtrain")
        logger.addHandler(handler)
        if rank == 0:
            console = logging.StreamHandler()
            console.setLevel(logging.WARNING)
            console.setFormatter(logging.Formatter("hvdtrain: %(levelname)s: %(message)s"))
            logger.addHandler(console)
        logger.setLevel(min(handler.level, logging.WARNING))
        logger.propagate = False


def open_folder(config: TrainConfig, framework: str, comm: Communicator) -> RunFolder:
    """Rank 0 chooses, makes and claims the folder; every rank opens its log in it. Collective. Raises UsageError: on
    all ranks, as `choose_folder`, `RunFolder.claim` and `RunFolder.open_log`."""
    is_root = comm.topology.is_root
    chosen = agree(comm, lambda: str(choose_folder(config, framework)) if is_root else None, "hvdtrain.folder")
    folder = RunFolder(Path(broadcast_json(comm, chosen, "hvdtrain.folder.path")), config.keep_checkpoints)
    agree(comm, lambda: folder.claim() if is_root else None, "hvdtrain.folder.claim")
    elsewhere = hosts_that_see_another(folder.path, comm, config.resume == "auto" or goes_on_after_loss())
    host = node_name() if summarizes(config.metrics_detail, comm.topology.size) else ""
    agree(comm, lambda: folder.open_log(comm.topology.rank, config.log_level, host), "hvdtrain.folder.logs")
    if elsewhere and is_root:
        _log.warning(
            "%s is not shared by the hosts: %s see%s another folder. Their logs stay there, and a start with rank 0 on "
            "another host finds no checkpoint. HINT: use an --output-dir that all hosts share",
            folder.path,
            some(elsewhere),
            "s" * (len(elsewhere) == 1),
        )
    return folder


def close_logs() -> None:
    """Close what `RunFolder.open_log` opened, for a process that continues after its run."""
    logger = logging.getLogger("hvdtrain")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def choose_folder(config: TrainConfig, framework: str) -> Path:
    """The run folder, made if it is not there. Rank 0 only. Raises UsageError: it cannot be written, or holds a run
    that is not the one to resume."""
    path = Path(config.output_dir) if config.output_dir else new_folder(config.task, framework)
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / ".writable", bytes(_PROBE_BYTES))
        (path / ".writable").unlink()
    except OSError as error:
        raise unwritable(path, error) from error
    if holds_run(path) and (config.resume == "never" or is_elsewhere(config.resume, path)):
        raise UsageError(
            f"{path} already holds a run.",
            f"--resume {config.resume} would mix another one into it.",
            "choose another --output-dir, or continue it with --resume auto.",
        )
    return path.absolute()


def new_folder(task: str, how: str) -> Path:
    """A folder in runs/ that is not there yet, named after the task, `how` it is trained, and the time."""
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in task.rpartition(":")[2])
    stem = Path("runs") / f"{name}-{how}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = stem, 1
    while path.exists():
        number += 1
        path = stem.with_name(f"{stem.name}-{number}")
    return path
