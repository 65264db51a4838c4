"""Which records training has used: the data from which `hvdtrain shard verify` proves its result.

    RUN/audit/catalog.npz      the training records: which record an id is
    RUN/audit/ledger.jsonl     one line for each start of the run and each segment of steps, in the order of time
    RUN/audit/segment_*.bin    the ids that a segment's steps were trained on, all ranks together

A segment is written before the checkpoint that ends it. The next start's line says at which checkpoint it resumed: what
counts are the segments that led to it, and not the steps that a crash undid.
"""

import json
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from data_sharding import Catalog, CoverageAudit, LoadedBatch
from data_sharding.errors import CatalogError, MissingDataError
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import SAVE_SECONDS, agree, broadcast_json, do_while_others_wait, gather_bytes, gather_json
from hvdtrain.errors import HvdtrainError
from hvdtrain.files import open_lines, unwritable, write_atomically

LEDGER: Final = "ledger.jsonl"
CATALOG: Final = "catalog.npz"

_COUNTED_TOGETHER: Final = 64  # batches: what counting costs is mostly its number of numpy calls

_SUM_RECEIVES: Final = 2  # times its array: what a ring's allreduce brings to a rank

_OfAllRanks = CoverageAudit | list[bytes]
"""The audit of all ranks together, or the bytes of each."""

_log = logging.getLogger("hvdtrain.data")


@dataclass(eq=False)
class CoverageLedger:
    """Counts the records of committed steps, on every rank; writes them on rank 0."""

    comm: Communicator
    folder: Path  # RUN/audit
    catalog: Catalog  # of the training records
    raw: Callable[[int], bytes]  # the bytes of the record with that id, as they are in its file
    steps_per_epoch: int  # of the plan
    quarantine: Path | None = None  # folder that keeps the bytes of damaged records; None: they are only named

    def __post_init__(self) -> None:
        self._first = 0
        self._unwritten: deque[tuple[dict[str, Any], _OfAllRanks]] = deque()  # on rank 0
        self._reset()

    def start(self, step: int) -> None:
        """Write down that training starts or resumes after `step` updates. Collective. Raises HvdtrainError: on all
        ranks, where rank 0 could not write."""
        self._first = step
        topology, catalog = self.comm.topology, self.catalog
        line = {"event": "started", "step": step, "steps_per_epoch": self.steps_per_epoch}
        line |= {"records": len(catalog), "data": catalog.fingerprint, "world_size": topology.size}
        problem = do_while_others_wait(
            self.comm, lambda: self._write_start(line) if topology.is_root else None, "hvdtrain.audit", SAVE_SECONDS
        )
        problem = broadcast_json(self.comm, problem, "hvdtrain.audit.written")
        if problem:
            raise HvdtrainError(
                f"The audit of trained records could not be written: {problem}.",
                "Without it nobody can tell whether every record was used once.",
                "free space; --resume auto continues from the last checkpoint.",
            ).on_all_ranks()

    def add(self, batch: LoadedBatch) -> None:
        """Count a batch that the model was trained on."""
        self._uncounted.append((batch.ids, batch.weights))
        if len(self._uncounted) == _COUNTED_TOGETHER:
            self._count()
        self._planned += batch.global_weight
        for record_id in batch.damaged.tolist():
            self._set_aside(record_id, batch.reasons.get(record_id, ""))

    def end_segment(self, step: int) -> Callable[[], None]:
        """End the segment of steps since the last one after update `step`. Collective.

        Returns what writes it, on rank 0, before the checkpoint of `step` is written. It may be called in another
        thread, and raises OSError; then the next one writes both segments.
        """
        if step != self._first:
            self._count()
            of_all, damaged = self._of_all_ranks()
            line = {
                "event": "segment",
                "first": self._first,
                "end": step,
                "samples": int(self._planned),
                "damaged": damaged,
                "world_size": self.comm.topology.size,
            }
            if self.comm.topology.is_root:
                self._unwritten.append((line, of_all))
            self._first = step
            self._reset()
        return self._write_unwritten

    def _of_all_ranks(self) -> tuple[_OfAllRanks, list[int]]:
        """What all ranks have used in the segment, and the ids of damaged records, ascending.

        Few ids are sent as they are. Where a sum of bitmaps is shorter, that is sent, whose length does not depend on
        the number of ranks; it tells everything unless a record was used twice.
        """
        audit, part = self._audit, self._audit.to_bytes()
        numbers = np.array([len(part), audit.count, len(self._damaged)], np.int64)
        length, count, damaged = self.comm.allreduce(numbers, "hvdtrain.audit.sizes").tolist()
        names = gather_json(self.comm, self._damaged, "hvdtrain.audit.damaged") if damaged else []
        of_all: _OfAllRanks | None = None
        if length > _SUM_RECEIVES * len(self.catalog) / 8 and count <= len(self.catalog):
            words = self.comm.allreduce(audit.words(), "hvdtrain.audit.words")
            of_all = CoverageAudit.from_sums(words, count, len(self.catalog))
        if of_all is None:
            of_all = gather_bytes(self.comm, part, "hvdtrain.audit.counts")
        return of_all, sorted({record_id for ids in names for record_id in ids})

    def _reset(self) -> None:
        self._audit = CoverageAudit(len(self.catalog))
        self._uncounted: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
        self._planned = 0.0
        self._damaged: list[int] = []

    def _count(self) -> None:
        if self._uncounted:
            ids, weights = zip(*self._uncounted, strict=True)
            self._audit.add(np.concatenate(ids), np.concatenate(weights))
            self._uncounted = []

    def _set_aside(self, record_id: int, reason: str) -> None:
        where = self.catalog.describe(record_id) + (f": {reason}" if reason else "")
        _log.warning("record %d is damaged or refused, and was skipped: %s", record_id, where)
        self._damaged.append(record_id)
        if self.quarantine is not None:
            self._keep_bytes(self.quarantine, record_id, where)

    def _keep_bytes(self, folder: Path, record_id: int, where: str) -> None:
        """This rank alone may fail here; the others learn it when it leaves."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if stored := self.raw(record_id):  # an object's item has none
                write_atomically(folder / f"record_{record_id}.bin", stored)
            write_atomically(folder / f"record_{record_id}.txt", f"{where}\n".encode())
        except OSError as error:
            raise HvdtrainError(
                f"The damaged record {record_id} could not be kept in {folder}: {error}.",
                "--data.on-corrupt quarantine promises that its bytes are kept.",
                "make the folder writable, or use --data.on-corrupt mask; --resume auto continues.",
            ) from error

    def _write_unwritten(self) -> None:
        while self._unwritten:
            line, of_all = self._unwritten[0]
            self._append({**line, "file": self._write_segment(line, of_all)})
            self._unwritten.popleft()

    def _write_start(self, line: dict[str, Any]) -> str | None:
        """Why the folder could not be prepared; else None."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._prepare_folder()
            self._append(line)
        except OSError as error:
            return str(error)
        return None

    def _append(self, line: dict[str, Any]) -> None:
        with open_lines(self.folder / LEDGER) as ledger:
            size = os.fstat(ledger.fileno()).st_size
            try:
                ledger.write(json.dumps({**line, "time": round(time.time(), 3)}) + "\n")
                ledger.flush()
                os.fsync(ledger.fileno())  # the checkpoint that follows must not outlive it
            except OSError:
                os.truncate(self.folder / LEDGER, size)  # it is written again, and must not be there twice
                raise

    def _prepare_folder(self) -> None:
        kept = None
        with suppress(MissingDataError, CatalogError):  # it is written again
            kept = Catalog.load(self.folder / CATALOG)
        if kept is None or kept.fingerprint != self.catalog.fingerprint:
            self.catalog.save(self.folder / CATALOG)
        else:
            _warn_of_changes(kept, self.catalog)

    def _write_segment(self, line: dict[str, Any], of_all: _OfAllRanks) -> str:
        if not isinstance(of_all, CoverageAudit):
            of_all = CoverageAudit.union_of_bytes(of_all, len(self.catalog))
        stem = f"segment_{line['first']:08d}-{line['end']:08d}"
        number = len(list(self.folder.glob(f"{stem}*.bin")))
        name = f"{stem}.bin" if number == 0 else f"{stem}_{number}.bin"  # a repetition after a crash
        write_atomically(self.folder / name, of_all.to_bytes())
        return name


def copy_audit(origin: Path, folder: Path) -> None:
    """Copy a run's record of used data, without the rights of its files. Raises OSError.

    The ledger is read first, as that run may go on meanwhile, and written last: where it is, what it names is.
    """
    ledger = (origin / LEDGER).read_bytes() if (origin / LEDGER).exists() else None
    folder.mkdir(parents=True, exist_ok=True)
    for file in origin.iterdir():
        if file.is_file() and file.name != LEDGER and not file.name.startswith("."):  # it may be renamed
            shutil.copyfile(file, folder / file.name)
    if ledger is not None:
        write_atomically(folder / LEDGER, ledger)


def trained_updates(folder: Path) -> int:
    """After how many updates the last segment ends of which the ledger in `folder` tells; 0: of none."""
    try:
        lines = (folder / LEDGER).read_text(errors="replace").splitlines()
    except OSError:
        return 0
    return max((_end_of(line) for line in lines), default=0)


def _end_of(line: str) -> int:
    with suppress(ValueError, TypeError, AttributeError):  # of a line that was cut short
        return int(json.loads(line).get("end", 0))
    return 0


def _warn_of_changes(before: Catalog, now: Catalog) -> None:
    """Files that were rewritten since an earlier start, where no checksum tells whether their content changed."""
    versions = {file.path: file.version for file in before.files}
    changed = [file.path for file in now.files if versions.get(file.path, file.version) != file.version]
    if changed and now.crcs is None:
        text = "%d data files were modified since this run began, the first is %s; this format has no checksums, so "
        text += "that nothing can tell whether the records are still the same"
        _log.warning(text, len(changed), changed[0])


def audit_of(resume: str) -> Path | None:
    """The audit of the run whose checkpoint `--resume PATH` names: PATH is RUN, RUN/checkpoints or a step in there."""
    if resume in ("auto", "never"):
        return None
    path = Path(resume).absolute()
    return next((p / "audit" for p in (path, path.parent, path.parent.parent) if (p / "audit").is_dir()), None)


PIPE_NOTE: Final = "pipe.txt"  # in RUN/audit: this run trained from pipes, so it has no ids of records

_NOTE: Final = """\
This run was trained from pipes, whose records have no ids that outlive a pass: there is no account of which were used.
Where the pipe plan knew how many records reach each worker, the count was checked at the end of each pipe.
"""


@dataclass(eq=False)
class NoLedger:
    """Implements the engine's `Ledger` where records have no ids that outlive a pass: all it writes, in `folder`, is
    that. Every record came once where the reader could compare counts at the end of each FIFO."""

    comm: Communicator
    folder: Path

    def start(self, step: int) -> None:  # noqa: ARG002
        """Say so, once, in a file of the folder. Collective. Raises UsageError: on all ranks, where rank 0 could not
        write."""
        agree(self.comm, self._write_note, "hvdtrain.pipe.note")

    def add(self, batch: LoadedBatch) -> None:
        """Nothing."""

    def end_segment(self, step: int) -> Callable[[], None]:  # noqa: ARG002
        """Nothing."""
        return lambda: None

    def _write_note(self) -> None:
        if not self.comm.topology.is_root:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / PIPE_NOTE, _NOTE.encode())
        except OSError as error:
            raise unwritable(self.folder, error) from error
