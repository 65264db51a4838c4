"""`hvdtrain train`: parse, open, restore, train, report. Read it from top to bottom."""

import gc
import os
import time
from collections.abc import Sequence

from hvdtrain.cli.main import who
from hvdtrain.comm.interface import Communicator
from hvdtrain.config.parser import parse_train_config
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.failure_record import write_failure
from hvdtrain.run.dry_run import dry_run
from hvdtrain.run.job import load_kind, run_job
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.training import train
from hvdtrain.stop_requests import StopSignals
from hvdtrain.topology import detect_topology

_NEXT = "Next: `hvdtrain --task MODULE:CLASS` trains your own task (README.md); `hvdtrain help` lists all commands."
"""Below the table of a run that was started without an option."""


def run(argv: Sequence[str]) -> int:
    """Train as `argv` says; returns the exit code."""
    begin = time.perf_counter()
    config = parse_train_config(argv)
    topology = detect_topology(os.environ)

    def leave_record(cause: str, code: int) -> None:
        write_failure("signal", topology.rank, cause, code)

    with StopSignals(who(), answers=topology.is_root, at_second=leave_record) as signals:

        def work(setup: RunSetup, comm: Communicator) -> int:
            if config.dry_run:
                dry_run(setup, comm)
                return 0
            code = train(setup, comm, begin, signals.asked)[0]
            if code == 0 and comm.topology.is_root and config == TrainConfig():
                print(_NEXT, flush=True)
            return code

        kind = load_kind(config)
        gc.freeze()  # what was imported lives as long as the process: later collections need not visit it
        return run_job(config, kind, topology, work)
