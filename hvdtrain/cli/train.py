"""`hvdtrain train`: parse, open, restore, train, report. Read it from top to bottom."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hvdtrain.adapters.open import take_own_share
from hvdtrain.cli.main import who
from hvdtrain.comm import Communicator
from hvdtrain.comm.open import open_communicator
from hvdtrain.config import TrainConfig
from hvdtrain.config_parser import parse_train_config
from hvdtrain.errors import HvdtrainError
from hvdtrain.preparation import prepare
from hvdtrain.stop_signals import StopSignals
from hvdtrain.tasks import load_task
from hvdtrain.topology import Topology, detect_topology
from hvdtrain.training import dry_run, train


def run(argv: Sequence[str]) -> int:
    """Train as `argv` says; returns the exit code."""
    begin = time.perf_counter()
    config = parse_train_config(argv)
    topology = detect_topology(os.environ)
    with StopSignals(who(), answers=topology.is_root) as signals:
        return _run(config, topology, begin, signals)


def _run(config: TrainConfig, topology: Topology, begin: float, signals: StopSignals) -> int:
    faulthandler.enable()
    _quiet_tensorflow()
    with _task_must_not_exit():
        kind = load_task(config.task, config.framework)
    take_own_share(kind.framework, topology)
    comm = open_communicator(kind.framework, topology, config.stall_timeout)
    with _task_must_not_exit(), _leaving_together(comm, config) as outcome:
        prepared = prepare(config, kind, comm)
        if config.dry_run:
            dry_run(prepared, comm)
        else:
            outcome.code = train(prepared, comm, begin, signals.asked)
    return outcome.code


class _ExitCode:
    code = 0


@contextmanager
def _leaving_together(comm: Communicator, config: TrainConfig) -> Iterator[_ExitCode]:
    """Close in order after success, and after a failure that all ranks share; any other leaves this rank at once."""
    outcome = _ExitCode()
    try:
        yield outcome
    except HvdtrainError as error:
        if not error.joint or config.debug:
            raise
        outcome.code = error.exit_code
        if comm.topology.is_root:
            sys.stderr.write(f"hvdtrain: {error}\n")
            sys.stderr.flush()
    comm.close()


@contextmanager
def _task_must_not_exit() -> Iterator[None]:
    """Else a rank could leave with exit code 0 while the others wait for it."""
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"the task called sys.exit({error.code!r}) before training was done") from error


def _quiet_tensorflow() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
