"""Saves on behalf of all ranks: rank 0 copies its state, a thread writes it, and all ranks learn how that ended.

With several writers each of them copies the state and writes a part of it (`parts.py`); rank 0 makes one checkpoint of
the parts when all ranks know that the last one is written.

Training goes on while the thread writes. It writes one checkpoint after the other, each after the ledger of the records
that led to it. So a crash at any moment leaves what was durable before.
"""

import shutil
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

from numpy.typing import NDArray

from data_sharding.background import in_background
from hvdtrain.algorithms.early_stopping import Best
from hvdtrain.checkpoints.format import (
    MODEL,
    Checkpoint,
    DamagedCheckpointError,
    Position,
    publish,
    read_manifest,
    state_bytes,
    weights_not_finite,
    write_position,
)
from hvdtrain.checkpoints.kept_copy import kept_copy
from hvdtrain.checkpoints.parts import part_of, write_part, writing_ranks
from hvdtrain.checkpoints.saved import FINITE_BY_OPTIONS, Saved, diverged, failure_of, not_finite, not_written
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import SAVE_SECONDS, broadcast_json, do_while_others_wait, gather_json
from hvdtrain.named_arrays import NO_STATE, State, weights_digest

COPIES: Final = 2  # of the state, at most: one that is written, and one that waits

CopyState = Callable[[Mapping[str, NDArray[Any]]], State]  # as `Adapter.state`

_all_writes: Final[weakref.WeakSet[Future[Saved]]] = weakref.WeakSet()


@dataclass(eq=False)
class CheckpointWriter:
    comm: Communicator
    store: CheckpointStore  # used by rank 0; the other writers put their parts into its folder
    about: dict[str, Any]  # what the manifest says besides position and hashes
    infinite: frozenset[str] = frozenset()  # names of weights and buffers that may hold infinity
    writers: int = 1  # how many ranks write a part of each checkpoint
    keeps: bool = False  # whether rank 0 keeps a copy of the newest one in memory, if it alone writes
    models: Collection[str] = MODEL  # whose weights must be finite: what their names begin with, before "/"
    finite_hint: str = FINITE_BY_OPTIONS  # what a user can do where they are not

    def __post_init__(self) -> None:
        ranks = writing_ranks(self.comm.topology.size, self.writers)
        self._parts, rank = len(ranks), self.comm.topology.rank
        self._part = ranks.index(rank) if rank in ranks else None
        self._begun: deque[tuple[Position, Best | None]] = deque()
        self._writes: deque[Future[Saved]] = deque()  # on ranks that write, of these
        self._free: list[Mapping[str, NDArray[Any]]] = []
        self.collected = 0  # how many checkpoints were collected. The same on all ranks

    @property
    def under_way(self) -> int:
        """Checkpoints that were begun and not collected. The same on all ranks."""
        return len(self._begun)

    @property
    def copies(self) -> bool:
        """Whether this rank copies the state."""
        return self._part is not None

    def ended(self) -> int:
        """Checkpoints that were collected or of which this rank has done its part. The least of all ranks counts."""
        if self._part is None:
            return self.collected + len(self._begun)
        return self.collected + sum(write.done() for write in self._writes)

    def begin(
        self,
        copy: CopyState,
        position: Position,
        best: Best | None = None,
        write_ledger: Callable[[], None] = lambda: None,
        reuses: bool = True,
        digest_of_others: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Copy the state, which all ranks have, and begin to write it. Fewer than `COPIES` are under way.

        Args:
            copy: called on ranks that write.
            best: where `best` is to point; default: to the best that `position` knows.
            write_ledger: called on rank 0, in the thread, before the checkpoint is written. Raises OSError.
            reuses: whether a later copy may be made in the memory of this one, which is kept until then.
            digest_of_others: called on all ranks when those that write have their copies: the digest that the copies'
                weights must have; None: it is not known. Collective.
        """
        if len(self._begun) >= COPIES:
            raise RuntimeError("a checkpoint was begun before an earlier one was collected")
        state = None if self._part is None else copy(self.spare())
        digest = digest_of_others()
        self._begun.append((position, best))
        if state is not None:
            before = self._writes[-1] if self._writes else None
            work = partial(self._write, state, position, best, write_ledger, reuses, digest, before)
            self._writes.append(in_background(work))
            _all_writes.add(self._writes[-1])

    def spare(self) -> Mapping[str, NDArray[Any]]:
        """A copy that nobody needs any more, in whose memory another may be made; it is given once."""
        return self._free.pop() if self._free else NO_STATE

    def collect(self) -> Saved:
        """What became of the oldest checkpoint under way, once it is written. Collective. Raises HvdtrainError: on all
        ranks; this failure is fatal. Older checkpoints are intact."""
        write = self._writes.popleft() if self._writes else None
        position, best = self._begun.popleft()
        self.collected += 1
        saved = self._wait_for(lambda: write.result() if write else None)
        if self._parts > 1:
            parts = gather_json(self.comm, saved and asdict(saved), "hvdtrain.checkpoint.parts")
            written = [Saved(**part) for part in parts if part is not None]
            saved = self._wait_for(self._on_root(lambda: self._join(written, position, best)))
        return self._told_to_all(saved)

    def save_history(self, position: Position, best: Best | None = None) -> Saved:
        """Write the validation history of `position` into its checkpoint, which is the newest. Collective. Raises
        HvdtrainError: on all ranks; it could not be written."""
        write = partial(write_position, position=position)
        saved = self._told_to_all(self._wait_for(self._on_root(lambda: self._put(position, best, write))))
        if saved.failure is not None:
            raise failure_of(saved)
        return saved

    def abandon(self, seconds: float) -> None:
        """Training has failed: give what is under way some time to become durable. Not collective, raises nothing."""
        wait(self._writes, seconds)

    def failures(self) -> list[tuple[str, str, str]]:
        """Of this rank's writes that have ended and were not collected. Not collective."""
        failed: list[tuple[str, str, str]] = []
        for (position, _), write in zip(self._begun, self._writes, strict=False):
            if write.done():
                error = write.exception()
                saved = write.result() if error is None else not_written(position.step, error)
                failed += [] if saved.failure is None else [saved.failure]
        return failed

    def _wait_for(self, work: Callable[[], Saved | None]) -> Saved | None:
        return do_while_others_wait(self.comm, work, "hvdtrain.checkpoint", SAVE_SECONDS)

    def _on_root(self, work: Callable[[], Saved]) -> Callable[[], Saved | None]:
        return work if self.comm.topology.is_root else lambda: None

    def _told_to_all(self, saved: Saved | None) -> Saved:
        """Rank 0's."""
        common = Saved(**broadcast_json(self.comm, saved and asdict(saved), "hvdtrain.checkpoint.saved"))
        if common.failure is not None and common.is_fatal:
            raise failure_of(common)
        return common

    def _put(self, position: Position, best: Best | None, write: Callable[[Any], None], size: int = 0) -> Saved:
        begin = time.perf_counter()
        try:
            path = self.store.put(position, best, write)
        except (OSError, DamagedCheckpointError) as error:
            return not_written(position.step, error)
        return Saved(position.step, str(path), size, time.perf_counter() - begin)

    def _join(self, written: list[Saved], position: Position, best: Best | None) -> Saved:
        """One checkpoint of what all ranks have written."""
        failed = sorted((part for part in written if part.failure is not None), key=lambda part: not part.is_fatal)
        if not failed and len({part.digest for part in written}) > 1:
            failed = [diverged(position.step)]
        staging = self.store.staging(position.step)
        hashes = {name: digest for part in written for name, digest in part.hashes.items()}
        write = partial(publish, staging, position=position, about=self.about, hashes=hashes)
        saved = failed[0] if failed else self._put(position, best, write, sum(part.size for part in written))
        if saved.failure is not None:
            shutil.rmtree(staging, ignore_errors=True)
            return saved
        return replace(saved, write_seconds=saved.write_seconds + max(part.write_seconds for part in written))

    def _write(
        self,
        state: State,
        position: Position,
        best: Best | None,
        write_ledger: Callable[[], None],
        reuses: bool,
        digest_of_others: int | None,
        before: Future[Saved] | None,
    ) -> Saved:
        """In the thread; arguments as those of `begin`. `before`: the checkpoint that is written first."""
        if before is not None:
            wait([before])
        begin, step = time.perf_counter(), position.step
        spare: Mapping[str, NDArray[Any]] = state
        try:
            part = part_of(state, self._part or 0, self._parts)
            if names := weights_not_finite(part, self.infinite, self.models):
                return not_finite(step, names, self.finite_hint)
            digest = weights_digest(state) if self._parts > 1 or digest_of_others is not None else 0
            if digest_of_others not in (None, digest):
                return diverged(step)
            if self.comm.topology.is_root:
                write_ledger()
            if self._parts > 1:
                hashes = write_part(self.store.staging(step), state, self._part or 0, self._parts)
                return Saved(step, "", state_bytes(part), time.perf_counter() - begin, digest=digest, hashes=hashes)
            path = self.store.save(Checkpoint(state, position, self.about), best)
            saved = Saved(step, str(path), state_bytes(state), time.perf_counter() - begin)
            if self.keeps:
                spare = kept_copy.keep(read_manifest(path)["sha256"], state)
            return saved
        except (OSError, DamagedCheckpointError) as error:
            return not_written(step, error)
        finally:
            if reuses and spare:
                self._free.append(spare)


def await_all_writes(seconds: float | None = None) -> None:
    """Wait for what this process still writes, also what `CheckpointWriter.abandon` has left."""
    wait(list(_all_writes), seconds)
