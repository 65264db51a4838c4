"""One training run, from what was prepared to its result."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from data_sharding import Catalog
from hvdtrain import events
from hvdtrain.adapters.device_kind import device_kind
from hvdtrain.adapters.interface import Adapter
from hvdtrain.checkpoints import Checkpoint, CheckpointWriter
from hvdtrain.comm import Communicator, agree, broadcast_json
from hvdtrain.config_parser import dump_config
from hvdtrain.coverage import CoverageLedger, audit_of
from hvdtrain.dry_run import try_batches
from hvdtrain.engine import Engine
from hvdtrain.files import open_lines, write_atomically, write_json
from hvdtrain.finite_weights import infinite_from_the_start
from hvdtrain.knobs import chosen
from hvdtrain.limits import Limits
from hvdtrain.loop_interface import Ledger
from hvdtrain.lost_data import require_little_lost, warn_of_damage
from hvdtrain.optimizers.settings import describe as describe_optimizer
from hvdtrain.outcome import Outcome
from hvdtrain.pipe_ledger import NoLedger
from hvdtrain.position import Position
from hvdtrain.preparation import Prepared
from hvdtrain.progress import Bar, progress_callback
from hvdtrain.recorder import MetricsFile, RankLog, Totals
from hvdtrain.resume import checkpoint_at, checkpoints_of, require_same_training
from hvdtrain.run_folder import RunFolder, choose_folder, unwritable
from hvdtrain.source import CatalogSource
from hvdtrain.start import open_own_adapter, start_equal
from hvdtrain.stop_report import RESUMABLE, asked_or_late, how_to_continue
from hvdtrain.stop_vote import Asked
from hvdtrain.summary import environment, print_table, result
from hvdtrain.topology import Topology
from hvdtrain.validation import require_measured
from hvdtrain.validation_flags import judge_of
from hvdtrain.versions import versions

_log = logging.getLogger("hvdtrain.run")


def train(prepared: Prepared, comm: Communicator, begin: float, asked: Asked) -> tuple[int, Path]:
    """Train, and leave result.json. Returns the run folder and the exit code: 0, or RESUMABLE where a request stopped
    it early.

    Args:
        prepared: what to train.
        comm: the other ranks.
        begin: `time.perf_counter()` when the process began its work, for the times in the result.
        asked: whether this rank was asked to stop.
    """
    require_little_lost(_catalogs(prepared), prepared.config.data.max_corrupt)
    named = agree(comm, lambda: _named_checkpoint(prepared, comm), "hvdtrain.resume.named")
    adapter = open_own_adapter(prepared, comm)  # which may be refused, and then leaves no folder
    folder = _open_folder(prepared, comm)
    try:
        return _train_in(folder, named, adapter, prepared, comm, begin, asked), folder.path
    finally:
        folder.release()  # a later run of this process may go on in it


def _train_in(
    folder: RunFolder,
    named: Checkpoint | None,
    adapter: Adapter,
    prepared: Prepared,
    comm: Communicator,
    begin: float,
    asked: Asked,
) -> int:
    checkpoint = agree(comm, lambda: named or _own_checkpoint(prepared, folder, comm), "hvdtrain.resume")
    if comm.topology.is_root:
        _say(describe(prepared, comm))
    if comm.topology.is_root:
        warn_of_damage(_catalogs(prepared))
        _warn_of_slow_precision(prepared)
    _log.info("%s", describe(prepared, comm))
    position = start_equal(prepared, adapter, checkpoint, comm)
    if prepared.validation is not None and prepared.config.best_metric is not None:
        require_measured(adapter, comm, prepared.validation, prepared.config.best_metric)
    agree(comm, lambda: _write_down(prepared, folder, position, comm), "hvdtrain.folder.config")
    totals = Totals(comm.topology.size)
    if comm.topology.is_root:
        totals.take_up(folder.metrics, position.step)
    start_seconds = time.perf_counter() - begin
    with ExitStack() as stack:
        callbacks: list[events.Callback] = [
            totals,
            RankLog(comm.topology.rank),
            *_root_callbacks(prepared, folder, comm, stack),
        ]
        asked = asked_or_late(asked, prepared.config, begin)
        engine = _engine(prepared, comm, adapter, folder, callbacks, asked)
        own = prepared.config.resume == "auto" and position.step > 0  # the checkpoint is this folder's
        outcome = engine.run(position, own)
    if comm.topology.is_root:
        _report(prepared, folder, outcome, totals, (time.perf_counter() - begin, start_seconds), adapter)
    return RESUMABLE if outcome.stopped_by else 0


def _report(
    prepared: Prepared,
    folder: RunFolder,
    outcome: Outcome,
    totals: Totals,
    seconds: tuple[float, float],
    adapter: Adapter,
) -> None:
    """result.json and the closing table; a run that trained nothing leaves an existing result of its kind alone."""
    summary = result(prepared.about, outcome, totals, seconds, adapter.parameter_count())
    if totals.samples or not folder.result.exists() or _status(folder.result) != summary["status"]:
        write_json(folder.result, summary)
    elif not outcome.stopped_by:
        _say("nothing was left to train; result.json stays as it was")
    inside = folder.path.is_relative_to(Path.cwd())
    print_table(summary, os.path.relpath(folder.path) if inside else str(folder.path))
    if outcome.stopped_by:
        _say(
            f"hvdtrain: stopped by {outcome.stopped_by} after step {outcome.step}, which a checkpoint holds; "
            f"to go on, {how_to_continue(prepared.config, folder.path)}"
        )


def _status(result_file: Path) -> str:
    status: str = json.loads(result_file.read_text())["status"]
    return status


def _write_down(prepared: Prepared, folder: RunFolder, position: Position, comm: Communicator) -> None:
    if not comm.topology.is_root:
        return
    try:
        write_atomically(folder.config, dump_config(prepared.config).encode())
        write_json(folder.env, environment(comm.topology))
        folder.checkpoints.take_up(position, checkpoints_of(prepared.config.resume))
    except OSError as error:
        raise unwritable(folder.path, error) from error


def _warn_of_slow_precision(prepared: Prepared) -> None:
    if prepared.config.precision == "fp16" and device_kind(prepared.task.framework) == "CPU":
        _say("hvdtrain: fp16 is many times slower than fp32 on CPUs; bf16 is made for them")


def dry_run(prepared: Prepared, comm: Communicator) -> None:
    """Say what would be trained, and try it on one batch. Collective; writes nothing."""
    named = agree(comm, lambda: _named_checkpoint(prepared, comm), "hvdtrain.resume.named")
    adapter = open_own_adapter(prepared, comm)
    start_equal(prepared, adapter, named, comm)
    say = _say if comm.topology.is_root else _say_nothing
    say(describe(prepared, comm))
    if prepared.validation is not None and prepared.config.best_metric is not None:
        require_measured(adapter, comm, prepared.validation, prepared.config.best_metric)
    for line in try_batches(prepared, adapter, comm):
        say(f"dry run: {line}")
    say("dry run: nothing was written, and the weights are discarded")


def describe(prepared: Prepared, comm: Communicator) -> str:
    """What is trained, in one line: nothing that changes the numbers is left unsaid."""
    config, schedule, topology = prepared.config, prepared.schedule, comm.topology
    plan = prepared.train.plan(0)
    return (
        f"hvdtrain: {config.task} in {prepared.task.framework}, {_workers(topology)}; "
        f"{plan.num_records:,} records, global batch {plan.global_batch}, {plan.steps} steps × {prepared.epochs} "
        f"epochs; lr {schedule.peak:g} (scaling {config.lr_scaling}), "
        f"warm-up {schedule.warmup_steps} steps, {schedule.describe()}; "
        f"{'' if config.optimizer is None else f'{describe_optimizer(config)}; '}"
        f"{''.join(f'{knob}; ' for knob in chosen(config))}"
        f"seed {config.seed}"
    )


def _workers(topology: Topology) -> str:
    return f"{topology.size} workers by {topology.launcher}" if topology.is_distributed else "1 worker"


def _open_folder(prepared: Prepared, comm: Communicator) -> RunFolder:
    """Rank 0 chooses and makes the folder, every rank opens its log in it."""

    def choose() -> str | None:
        return str(choose_folder(prepared.config, prepared.task.framework)) if comm.topology.is_root else None

    path = broadcast_json(comm, agree(comm, choose, "hvdtrain.folder"), "hvdtrain.folder.path")
    folder = RunFolder(Path(path), prepared.config.keep_checkpoints)
    agree(comm, lambda: folder.claim() if comm.topology.is_root else None, "hvdtrain.folder.claim")
    agree(comm, lambda: folder.open_log(comm.topology.rank), "hvdtrain.folder.logs")
    return folder


def _named_checkpoint(prepared: Prepared, comm: Communicator) -> Checkpoint | None:
    """On rank 0 the checkpoint that `--resume PATH` names. It may be refused, so this comes before the run folder."""
    if not comm.topology.is_root or prepared.config.resume in ("auto", "never"):
        return None
    checkpoint = checkpoint_at(Path(prepared.config.resume))
    require_same_training(checkpoint, prepared.about)
    return checkpoint


def _own_checkpoint(prepared: Prepared, folder: RunFolder, comm: Communicator) -> Checkpoint | None:
    """On rank 0, with `--resume auto`, the newest sound checkpoint of the run folder, if there is one."""
    if not comm.topology.is_root or prepared.config.resume != "auto":
        return None
    checkpoint = folder.checkpoints.newest()
    if checkpoint is not None:
        require_same_training(checkpoint, prepared.about)
    return checkpoint


def _root_callbacks(
    prepared: Prepared, folder: RunFolder, comm: Communicator, stack: ExitStack
) -> list[events.Callback]:
    if not comm.topology.is_root:
        return []
    metrics = MetricsFile(stack.enter_context(open_lines(folder.metrics)))
    progress = progress_callback(prepared.config.progress, sys.stderr, comm.topology.launcher)
    if isinstance(progress, Bar):
        stack.callback(progress.close)
    return [metrics] + ([progress] if progress is not None else [])


def _engine(
    prepared: Prepared,
    comm: Communicator,
    adapter: Adapter,
    folder: RunFolder,
    callbacks: list[events.Callback],
    asked: Asked,
) -> Engine:
    config = prepared.config
    found = dict(prepared.task.found)
    about = {**prepared.about, "found": found, "config": asdict(config), "versions": versions()}
    infinite = infinite_from_the_start(adapter.state()) if comm.topology.is_root else frozenset()
    return Engine(
        adapter=adapter,
        comm=comm,
        train=prepared.train,
        validation=prepared.validation,
        schedule=prepared.schedule,
        limits=Limits(
            prepared.epochs, config.max_steps, config.log_interval, config.checkpoint_interval, config.data.max_corrupt
        ),
        checkpoints=CheckpointWriter(comm, folder.checkpoints, about, infinite),
        ledger=_ledger(prepared, comm, folder),
        callbacks=callbacks,
        asked=asked,
        judge=judge_of(config),
    )


def _ledger(prepared: Prepared, comm: Communicator, folder: RunFolder) -> Ledger:
    if not isinstance(prepared.train, CatalogSource):
        return NoLedger(comm, folder.audit)
    quarantine = folder.quarantine if prepared.config.data.on_corrupt == "quarantine" else None
    return CoverageLedger(
        comm, folder.audit, prepared.train, prepared.train.plan(0).steps, quarantine, audit_of(prepared.config.resume)
    )


def _catalogs(prepared: Prepared) -> list[Catalog]:
    return [source.catalog for source in (prepared.train, prepared.validation) if isinstance(source, CatalogSource)]


def _say(line: str) -> None:
    print(line, flush=True)


def _say_nothing(line: str) -> None:
    pass
