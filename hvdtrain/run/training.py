"""One training run, from its setup to its result."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hvdtrain.adapters.adapter_protocol import TunableAdapter
from hvdtrain.adapters.chosen_framework import device_kind
from hvdtrain.checkpoints.format import Position
from hvdtrain.checkpoints.parts import require_shared
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.horovod_world import node_name
from hvdtrain.comm.host_names import counted_hosts, gather_hosts
from hvdtrain.comm.messages import SAVE_SECONDS, agree, do_while_others_wait
from hvdtrain.config.yaml_file import dump_config
from hvdtrain.data.catalog_source import require_little_lost, warn_of_damage
from hvdtrain.engine.limits import RunResult
from hvdtrain.engine.stop_vote import StopRequest
from hvdtrain.engine.validator import require_measured
from hvdtrain.errors import RESUMABLE
from hvdtrain.files import unwritable, write_atomically, write_json
from hvdtrain.rank_summary import summarizes
from hvdtrain.run.assemble import Assembly
from hvdtrain.run.ending import Ending
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.result import Totals, describe, environment
from hvdtrain.run.run_folder import RunFolder, open_folder
from hvdtrain.run.start import (
    begin_run,
    named_checkpoint,
    newest_checkpoint,
    open_own_adapter,
    restore_and_broadcast,
    with_common_resume,
)
from hvdtrain.run.tuning.choice import tune
from hvdtrain.run.watch.watchdog import watched
from hvdtrain.task.task import callbacks_of
from hvdtrain.world_channel import is_change

_log = logging.getLogger("hvdtrain.run")


class TrainingEnd(NamedTuple):
    code: int  # exit code: 0, or RESUMABLE where a request stopped it early
    folder: Path | None  # of the run; None where nothing was trained
    stopped_by: str  # that request; else empty


def train(setup: RunSetup, comm: Communicator, begin: float, asked: StopRequest) -> TrainingEnd:
    """Train, and leave result.json. `begin`: `time.perf_counter()` when the process began its work; `asked`: whether
    this rank was asked to stop."""
    setup = with_common_resume(setup, comm)
    require_little_lost(setup.catalogs, setup.config.data.max_corrupt)
    named = agree(comm, lambda: named_checkpoint(setup, comm), "hvdtrain.resume.named")
    adapter = open_own_adapter(setup, comm)  # which may be refused, and then leaves no folder
    folder = open_folder(setup.config, setup.task.framework, comm)
    try:
        checkpoint = agree(comm, lambda: newest_checkpoint(setup, folder, comm), "hvdtrain.resume") or named
        _introduce(setup, comm, adapter, folder)
        position = restore_and_broadcast(setup, adapter, checkpoint, comm)
        if setup.validation and setup.config.best_metric is not None:
            require_measured(adapter, comm, setup.validation, setup.config.best_metric)
        begin_run(setup, folder, named, comm)
        about_checkpoint = {} if checkpoint is None else checkpoint.about
        del checkpoint, named  # rank 0 needs their arrays no more
        tuned = tune(setup, adapter, comm, position.step, about_checkpoint)
        setup = replace(setup, about={**setup.about, "tuned": tuned})
        stopped_by = _train_from(position, Assembly(setup, comm, adapter, folder), begin, asked)
        return TrainingEnd(RESUMABLE if stopped_by else 0, folder.path, stopped_by)
    finally:
        folder.release()  # a later run of this process may go on in it


def _introduce(setup: RunSetup, comm: Communicator, adapter: TunableAdapter, folder: RunFolder) -> None:
    """Say what is trained, and what of it may not be as the user expects."""
    lines = describe(setup, comm, adapter.parameter_count(), folder.path)
    if comm.topology.is_root:
        print("\n".join(lines), flush=True)
        warn_of_damage(setup.catalogs)
        if setup.config.precision == "fp16" and device_kind(setup.task.framework) == "CPU":
            print("hvdtrain: fp16 is many times slower than fp32 on CPUs; bf16 is made for them", flush=True)
    for line in lines:
        _log.info("%s", line)


def _train_from(position: Position, run: Assembly, begin: float, asked: StopRequest) -> str:
    """Train from where the adapter is; returns what has asked to stop, where that left something undone."""
    setup, comm, folder, is_root = run.setup, run.comm, run.folder, run.comm.topology.is_root
    hosts = gather_hosts(comm, node_name(), "hvdtrain.start.hosts")
    before = agree(comm, lambda: _write_facts(run, position, hosts) if is_root else {}, "hvdtrain.folder.config")
    if setup.config.checkpoint_writers > 1:
        require_shared(folder.checkpoints.folder, comm)
    totals = Totals(comm.topology.size)
    if is_root:
        totals.resume_from(folder.metrics, position.step)
    of_task = agree(comm, lambda: callbacks_of(setup.task), "hvdtrain.start.callbacks")
    started_s = time.perf_counter() - begin
    ending = Ending(setup, run.adapter, folder, totals, begin, started_s, comm.topology.launcher, before)
    with (
        watched(setup, comm, folder, position.step),
        run.open_callbacks(totals, of_task, position.step, begin) as callbacks,
    ):
        engine = run.build_engine(callbacks, asked, partial(_write_result, ending, comm, hosts), hosts)
        saved = setup.config.resume != "never" and position.step > 0  # its checkpoint is in this folder
        outcome = engine.run(position, saved)
    if not is_change(outcome.stopped_by):  # else this run goes on in a moment
        do_while_others_wait(comm, lambda: ending.print(outcome) if is_root else None, "hvdtrain.report", SAVE_SECONDS)
    return outcome.stopped_by


def _write_result(ending: Ending, comm: Communicator, hosts: Sequence[str], outcome: RunResult) -> None:
    """Collective where ranks are summarized."""
    if summarizes(ending.setup.config.metrics_detail, comm.topology.size):
        ending.totals.gather(comm, hosts)
    if comm.topology.is_root:
        ending.write(outcome)


def _write_facts(run: Assembly, position: Position, hosts: Sequence[str]) -> Mapping[Path, bytes]:
    """config.yaml, env.json, and to which checkpoints the pointers lead. Returns what the two files were before."""
    config, folder = run.setup.config, run.folder
    try:
        before = {file: file.read_bytes() for file in (folder.config, folder.env) if file.exists()}
        write_atomically(folder.config, dump_config(config).encode())
        listed = counted_hosts(hosts) if summarizes(config.metrics_detail, run.comm.topology.size) else hosts
        write_json(folder.env, {**environment(run.comm.topology), "hosts": listed})
        folder.checkpoints.resume_from(position)
        return before
    except OSError as error:
        raise unwritable(folder.path, error) from error
