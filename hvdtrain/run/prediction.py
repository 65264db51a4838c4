"""What a checkpoint's model predicts for each record of a set, by all ranks, into one file; resumable."""

import hashlib
import io
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from data_sharding import LoadedBatch
from data_sharding.storage.redaction import redacted
from hvdtrain.comm.messages import agree, broadcast_json, gather_bytes
from hvdtrain.data.catalog_source import CatalogSource, require_little_lost
from hvdtrain.engine.limits import RunLimits
from hvdtrain.engine.stop_vote import StopRequest, StopVote
from hvdtrain.errors import UsageError
from hvdtrain.run.code_checksum import code_checksum
from hvdtrain.run.predicted_values import NO_CLASS, predicted_values
from hvdtrain.run.prediction_files import Columns, format_of, joined, write_npz
from hvdtrain.run.prediction_parts import PredictionParts
from hvdtrain.run.trained_model import TrainedModel

_BATCHES_A_PART: Final = 16
"""Bounds what is in memory: the predictions of so many global batches of the training. A stop loses them at most."""


_log = logging.getLogger("hvdtrain.run")

THEN: Final = "it ends after this batch, and keeps the parts that are complete"
"""What a request to stop leads to."""


class Predicted(NamedTuple):
    records: int
    left_out: int  # damaged ones


def predict_set(
    trained: TrainedModel, sets: Mapping[str, str | None] | None, output: Path, force: bool, asked: StopRequest
) -> Predicted | str:
    """Write the predictions for a set into `output`. Returns what asked, where a request stopped it; the parts that are
    complete stay then. Collective.

    Rank 0 writes alone, so only its host must see `output`. Columns: "id", "file", "offset" (byte or row in it), and
    what `Task.predict` names. Arguments: `sets`: one, as `TrainedModel.open_sets` takes them; `force`:
    replace what is there. Raises UsageError: on all ranks; there are several sets, or `output` is there, cannot be
    written, or has an unknown suffix.
    """
    comm, root = trained.comm, trained.comm.topology.is_root
    write = agree(comm, lambda: format_of(output), "hvdtrain.predict.format")
    source = _only(trained.open_sets(sets))
    limits = RunLimits(epochs=1, max_masked=trained.config.data.max_corrupt)
    require_little_lost([source.catalog], limits.max_masked)
    with PredictionParts(output) as parts:
        begun = agree(comm, lambda: parts.begin(_plan(trained, source), force) if root else 0, "hvdtrain.predict.begin")
        done = int(broadcast_json(comm, begun, "hvdtrain.predict.done"))
        count = -(-source.plan(0).steps // steps_a_part(trained.training_batch, source.global_batch))
        if done < count and (reason := _predict_from(trained, source, parts, done, asked)):
            return reason
        found = agree(comm, lambda: parts.records(count) if root else (0, 0), "hvdtrain.predict.count")
        records, unknown = map(int, broadcast_json(comm, found, "hvdtrain.predict.records"))
        if root and unknown:
            _log.warning(
                "%s of %s records have the label %d: the model returns NaN for them", unknown, records, NO_CLASS
            )
        total = len(source.catalog)
        limits.require_few_masked(total - records, total, "prediction")
        agree(comm, lambda: parts.join(count, write) if root else None, "hvdtrain.predict.join")
        return Predicted(records, total - records)


def _only(sources: Mapping[str, CatalogSource]) -> CatalogSource:
    if len(sources) > 1:
        raise UsageError(
            f"There are {len(sources)} sets of records: {', '.join(sources)}.",
            "One file holds the predictions of one set.",
            f"give one, for example --set {next(iter(sources))}.",
        ).on_all_ranks()
    return next(iter(sources.values()))


def _predict_from(
    trained: TrainedModel, source: CatalogSource, parts: PredictionParts, done: int, asked: StopRequest
) -> str:
    """Make the parts from number `done` on; returns what asked to stop, if anything did. Collective."""
    vote = StopVote(trained.comm, asked)
    steps, of_part = source.plan(0).steps, steps_a_part(trained.training_batch, source.global_batch)
    rows: list[dict[str, Any]] = []
    stopped = vote.open()
    with trained.adapter.evaluating(), source.loader(0, done * of_part) as loader:
        for batch in loader:
            if stopped:
                loader.abandon()
                return vote.reason()
            rows.append(_rows(trained, source, batch))
            after = batch.step + 1
            if after % of_part == 0 or after == steps:
                _write_part(trained, parts, batch.step // of_part, rows)
                rows = []
            stopped = vote.after_step() and after < steps
    vote.close()
    return ""


def _rows(trained: TrainedModel, source: CatalogSource, batch: LoadedBatch) -> dict[str, Any]:
    """This rank's records of a batch, without those that are damaged or fill it up."""
    real, catalog = batch.weights > 0, source.catalog
    ids = batch.ids[real]
    where = {
        "id": ids,
        "file": np.array([redacted(catalog.files[number].path) for number in catalog.file_ids[ids]], dtype=np.str_),
        "offset": catalog.frame_offsets(ids),
    }
    predicted = predicted_values(trained.adapter, trained.task, batch)
    if taken := where.keys() & predicted.keys():
        raise UsageError(
            f"{type(trained.task).__name__}.predict() returns {', '.join(sorted(taken))}.",
            "These columns say which record a row belongs to.",
            "choose other names.",
        )
    return {**where, **{name: values[real] for name, values in predicted.items()}}


def _write_part(trained: TrainedModel, parts: PredictionParts, number: int, rows: list[dict[str, Any]]) -> None:
    """Rank 0 writes what all ranks have. Collective."""
    buffer = io.BytesIO()
    own = joined(rows)
    write_npz(buffer, lambda: iter([own]))
    everywhere = gather_bytes(trained.comm, buffer.getvalue(), "hvdtrain.predict.rows")
    root = trained.comm.topology.is_root
    agree(
        trained.comm,
        lambda: parts.write(number, joined([_loaded(rows) for rows in everywhere])) if root else None,
        "hvdtrain.predict.part",
    )


def _loaded(content: bytes) -> Columns:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def steps_a_part(training_batch: int, batch: int) -> int:
    """So that parts begin at the same records for any number of workers up to that of a part's records."""
    return max(1, _BATCHES_A_PART * training_batch // batch)


def _plan(trained: TrainedModel, source: CatalogSource) -> Mapping[str, Any]:
    """All that decides about the parts; the number of workers does not."""
    weights = hashlib.sha256()
    for name, array in sorted(trained.adapter.view_state().items()):
        weights.update(name.encode())
        weights.update(np.ascontiguousarray(array).tobytes())
    return {
        "task": trained.config.task,
        "task_args": repr(trained.config.task_args),
        "code": code_checksum(trained.task),
        "framework": trained.task.framework,
        "step": trained.step,
        "state": weights.hexdigest(),
        "data": source.catalog.fingerprint,
        "records_a_part": steps_a_part(trained.training_batch, source.global_batch) * source.global_batch,
    }
