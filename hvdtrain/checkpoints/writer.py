"""Saves on behalf of all ranks: rank 0 copies its state, a thread writes it, and all ranks learn how that ended.

With several writers each of them copies the state and writes a part of it; rank 0 makes one checkpoint of the parts
when all ranks know that the last one is written.

Training goes on while the thread writes. It writes one checkpoint after the other, each after the account of records
that led to it. So a crash at any moment leaves what was durable before.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from typing import Any, Final

from numpy.typing import NDArray

from hvdtrain.algorithms.early_stopping import Best
from hvdtrain.checkpoints.format import (
    Checkpoint,
    DamagedCheckpointError,
    Position,
    part_of,
    read_manifest,
    state_bytes,
    weights_not_finite,
)
from hvdtrain.checkpoints.kept_copy import kept_copy
from hvdtrain.checkpoints.saved import Saved, diverged, failure_of, not_finite, not_written
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import SAVE_SECONDS, broadcast_json, do_while_others_wait, gather_json, in_background
from hvdtrain.named_arrays import NO_STATE, State, weights_digest

COPIES: Final = 2
"""Of the state, at most: one that is written, and one that waits."""

CopyState = Callable[[Mapping[str, NDArray[Any]]], State]
"""As `Adapter.state`."""


_all_writes: Final[weakref.WeakSet[Future[Saved]]] = weakref.WeakSet()


@dataclass(eq=False)
class CheckpointWriter:
    """Saves, on behalf of all ranks.

    Args:
        store: used by rank 0, and by the other writers for their parts.
        about: what the manifest says besides position and hashes.
        infinite: names of weights and buffers that may hold infinity.
        writers: how many ranks write a part of each checkpoint; all of them where that is more than there are.
        keeps: whether rank 0 keeps a copy of the newest one in memory, if it alone writes.
    """

    comm: Communicator
    store: CheckpointStore
    about: dict[str, Any]
    infinite: frozenset[str] = frozenset()
    writers: int = 1
    keeps: bool = False

    def __post_init__(self) -> None:
        ranks = writing_ranks(self.comm.topology.size, self.writers)
        self._parts, rank = len(ranks), self.comm.topology.rank
        self._part = ranks.index(rank) if rank in ranks else None
        self._begun: deque[tuple[Position, Best | None]] = deque()
        self._writes: deque[Future[Saved]] = deque()  # on ranks that write, of these
        self._free: list[Mapping[str, NDArray[Any]]] = []
        self._collected = 0

    @property
    def under_way(self) -> int:
        """Checkpoints that were begun and not collected. The same on all ranks."""
        return len(self._begun)

    @property
    def collected(self) -> int:
        """Checkpoints that were collected. The same on all ranks."""
        return self._collected

    @property
    def copies(self) -> bool:
        """Whether this rank copies the state."""
        return self._part is not None

    def ended(self) -> int:
        """Checkpoints that were collected or of which this rank has done its part. The least of all ranks counts."""
        if self._part is None:
            return self._collected + len(self._begun)
        return self._collected + sum(write.done() for write in self._writes)

    def begin(
        self,
        copy: CopyState,
        position: Position,
        best: Best | None = None,
        account: Callable[[], None] | None = None,
        reuses: bool = True,
        digest_of_others: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Copy the state, which all ranks have, and begin to write it. Fewer than `COPIES` are under way.

        Args:
            copy: called on ranks that write.
            best: where `best` is to point; default: to the best that `position` knows.
            account: called on rank 0, in the thread, before the checkpoint is written. Raises OSError.
            reuses: whether a later copy may be made in the memory of this one, which is kept until then.
            digest_of_others: called on all ranks when those that write have their copies: the digest that the copies'
                weights must have; None: it is not known. Collective.
        """
        if len(self._begun) >= COPIES:
            raise RuntimeError("a checkpoint was begun before an earlier one was collected")
        state = None if self._part is None else copy(self._free.pop() if self._free else NO_STATE)
        digest = digest_of_others()
        self._begun.append((position, best))
        if state is not None:
            save = _Save(state, digest, position, best, account if self.comm.topology.is_root else None, reuses)
            before = self._writes[-1] if self._writes else None
            self._writes.append(in_background(lambda: self._write(save, before)))
            _all_writes.add(self._writes[-1])

    def collect(self) -> Saved:
        """What became of the oldest checkpoint under way, once it is written. Collective.

        Raises:
            HvdtrainError: on all ranks; this failure is fatal. Older checkpoints are intact.
        """
        write = self._writes.popleft() if self._writes else None
        answer = do_while_others_wait(
            self.comm, lambda: asdict(write.result()) if write else None, "hvdtrain.checkpoint", SAVE_SECONDS
        )
        position, best = self._begun.popleft()
        self._collected += 1
        if self._parts > 1:
            parts = gather_json(self.comm, answer, "hvdtrain.checkpoint.parts")
            answer = do_while_others_wait(
                self.comm, lambda: self._publish(parts, position, best), "hvdtrain.checkpoint", SAVE_SECONDS
            )
        saved = Saved(**broadcast_json(self.comm, answer, "hvdtrain.checkpoint.saved"))
        if saved.failure is not None and saved.is_fatal:
            raise failure_of(saved)
        return saved

    def move_to(self, position: Position, best: Best | None = None) -> Saved:
        """Write the validation history of `position` into its checkpoint, which is the newest. Collective.

        Raises:
            HvdtrainError: on all ranks; it could not be written.
        """
        is_root = self.comm.topology.is_root
        answer = do_while_others_wait(
            self.comm,
            lambda: asdict(self._move(position, best)) if is_root else None,
            "hvdtrain.checkpoint",
            SAVE_SECONDS,
        )
        saved = Saved(**broadcast_json(self.comm, answer, "hvdtrain.checkpoint.saved"))
        if saved.failure is not None:
            raise failure_of(saved)
        return saved

    def abandon(self, seconds: float) -> None:
        """Training has failed: give what is under way some time to become durable. Not collective, raises nothing."""
        wait(self._writes, seconds)

    def _write_part(self, state: State, step: int, begin: float, digest: int) -> Saved:
        index = self._part or 0
        hashes = self.store.save_part(step, state, index, self._parts)
        size = state_bytes(part_of(state, index, self._parts))
        return Saved(step, "", size, time.perf_counter() - begin, digest=digest, hashes=hashes)

    def _publish(self, parts: list[dict[str, Any] | None], position: Position, best: Best | None) -> dict[str, Any]:
        """On rank 0: one checkpoint of what all ranks have written."""
        if not self.comm.topology.is_root:
            return {}
        written = [Saved(**part) for part in parts if part is not None]
        failed = sorted((part for part in written if part.failure is not None), key=lambda part: not part.is_fatal)
        if not failed and len({part.digest for part in written}) > 1:
            failed = [diverged(position.step)]
        if failed:
            self.store.discard(position.step)
            return asdict(failed[0])
        begin = time.perf_counter()
        hashes = {name: value for part in written for name, value in part.hashes.items()}
        try:
            path = self.store.publish(position, self.about, hashes, best)
        except (OSError, DamagedCheckpointError) as error:
            self.store.discard(position.step)
            return asdict(not_written(position.step, error))
        seconds = max(part.write_seconds for part in written) + time.perf_counter() - begin
        return asdict(Saved(position.step, str(path), sum(part.size for part in written), seconds))

    def _move(self, position: Position, best: Best | None) -> Saved:
        begin = time.perf_counter()
        try:
            path = self.store.move_to(position, best)
        except (OSError, DamagedCheckpointError) as error:
            return not_written(position.step, error)
        return Saved(position.step, str(path), 0, time.perf_counter() - begin)

    def _write(self, save: "_Save", before: Future[Saved] | None) -> Saved:
        if before is not None:
            wait([before])
        begin = time.perf_counter()
        state, position = save.state, save.position
        spare: Mapping[str, NDArray[Any]] = state
        try:
            if bad := weights_not_finite(part_of(state, self._part or 0, self._parts), self.infinite):
                return not_finite(position.step, bad)
            digest = weights_digest(state) if self._parts > 1 or save.digest is not None else 0
            if save.digest not in (None, digest):
                return diverged(position.step)
            if save.account is not None:
                save.account()
            if self._parts > 1:
                return self._write_part(state, position.step, begin, digest)
            path = self.store.save(Checkpoint(state, position, self.about), save.best)
            saved = Saved(position.step, str(path), state_bytes(state), time.perf_counter() - begin)
            if self.keeps:
                spare = kept_copy.keep(read_manifest(path)["sha256"], state)
            return saved
        except (OSError, DamagedCheckpointError) as error:
            return not_written(position.step, error)
        finally:
            if save.reuses and spare:
                self._free.append(spare)


@dataclass(frozen=True)
class _Save:
    """A copy of the state, and what else is needed to write it: see `CheckpointWriter.begin`."""

    state: State
    digest: int | None
    position: Position
    best: Best | None
    account: Callable[[], None] | None
    reuses: bool


def writing_ranks(size: int, writers: int) -> list[int]:
    """The ranks that write, rank 0 first: spread evenly, and so over hosts, whose ranks follow each other."""
    count = min(size, writers)
    return [index * size // count for index in range(count)]


def await_all_writes() -> None:
    """Wait for what this process still writes, also what `CheckpointWriter.abandon` has left."""
    wait(list(_all_writes))
