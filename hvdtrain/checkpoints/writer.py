"""Saves on behalf of all ranks: rank 0 copies its state, a thread writes it, and all ranks learn how that ended.

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
    state_bytes,
    weights_not_finite,
)
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.comm.interface import Communicator
from hvdtrain.comm.messages import SAVE_SECONDS, broadcast_json, do_while_others_wait, in_background
from hvdtrain.errors import HvdtrainError
from hvdtrain.state import NO_STATE, State

COPIES: Final = 2
"""Of the state, at most: one that is written, and one that waits."""

_NAMED: Final = 5  # arrays of weights in a message

CopyState = Callable[[Mapping[str, NDArray[Any]]], State]
"""As `Adapter.state`."""


@dataclass(frozen=True)
class Saved:
    """What became of a checkpoint.

    Attributes:
        step: updates before it.
        path: its folder; empty where it was not written.
        size: bytes of its arrays.
        write_seconds: how long the thread took.
        failure: why it was not written: fact, conflict and hint; else None.
        is_fatal: whether training must not go on without it.
    """

    step: int
    path: str = ""
    size: int = 0
    write_seconds: float = 0.0
    failure: tuple[str, str, str] | None = None
    is_fatal: bool = False


_all_writes: Final[weakref.WeakSet[Future[Saved]]] = weakref.WeakSet()


@dataclass(eq=False)
class CheckpointWriter:
    """Saves, on behalf of all ranks.

    Args:
        store: used by rank 0 only.
        about: what the manifest says besides position and hashes.
        infinite: names of weights and buffers that may hold infinity.
    """

    comm: Communicator
    store: CheckpointStore
    about: dict[str, Any]
    infinite: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._steps: deque[int] = deque()
        self._writes: deque[Future[Saved]] = deque()  # on rank 0, of these steps
        self._free: list[State] = []
        self._collected = 0

    @property
    def under_way(self) -> int:
        """Checkpoints that were begun and not collected. The same on all ranks."""
        return len(self._steps)

    @property
    def collected(self) -> int:
        """Checkpoints that were collected. The same on all ranks."""
        return self._collected

    def ended(self) -> int:
        """Checkpoints that were collected or could be, without a wait. On rank 0; 0 on others."""
        return self._collected + sum(write.done() for write in self._writes) if self.comm.topology.is_root else 0

    def begin(
        self, copy: CopyState, position: Position, best: Best | None = None, account: Callable[[], None] | None = None
    ) -> None:
        """Copy rank 0's state, which is that of all ranks, and begin to write it. Fewer than `COPIES` are under way.

        Args:
            copy: called on rank 0 only.
            best: where `best` is to point; default: to the best that `position` knows.
            account: called on rank 0, in the thread, before the checkpoint is written. Raises OSError.
        """
        if len(self._steps) >= COPIES:
            raise RuntimeError("a checkpoint was begun before an earlier one was collected")
        self._steps.append(position.step)
        if self.comm.topology.is_root:
            state = copy(self._free.pop() if self._free else NO_STATE)
            before = self._writes[-1] if self._writes else None
            self._writes.append(in_background(lambda: self._write(state, position, best, account, before)))
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
        saved = Saved(**broadcast_json(self.comm, answer, "hvdtrain.checkpoint.saved"))
        self._steps.popleft()
        self._collected += 1
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

    def _move(self, position: Position, best: Best | None) -> Saved:
        begin = time.perf_counter()
        try:
            path = self.store.move_to(position, best)
        except (OSError, DamagedCheckpointError) as error:
            return _not_written(position.step, error)
        return Saved(position.step, str(path), 0, time.perf_counter() - begin)

    def _write(
        self,
        state: State,
        position: Position,
        best: Best | None,
        account: Callable[[], None] | None,
        before: Future[Saved] | None,
    ) -> Saved:
        if before is not None:
            wait([before])
        begin = time.perf_counter()
        try:
            if bad := weights_not_finite(state, self.infinite):
                return _not_finite(position.step, bad)
            if account is not None:
                account()
            path = self.store.save(Checkpoint(state, position, self.about), best)
            return Saved(position.step, str(path), state_bytes(state), time.perf_counter() - begin)
        except (OSError, DamagedCheckpointError) as error:
            return _not_written(position.step, error)
        finally:
            self._free.append(state)


def await_all_writes() -> None:
    """Wait for what this process still writes, also what `CheckpointWriter.abandon` has left."""
    wait(list(_all_writes))


def failure_of(saved: Saved) -> HvdtrainError:
    """The error that all ranks raise because a checkpoint was not written."""
    fact, conflict, hint = saved.failure or ("", "", "")
    return HvdtrainError(fact, conflict, hint).on_all_ranks()


def _not_finite(step: int, names: list[str]) -> Saved:
    some = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    failure = (
        f"After step {step} weights are NaN or infinite: {some}.",
        "Training cannot go on from a checkpoint of them, so none was written; those from before are still good.",
        "lower --lr, lengthen --warmup-epochs, or set --max-grad-norm; --resume auto continues from the previous "
        "checkpoint.",
    )
    return Saved(step, failure=failure, is_fatal=True)


def _not_written(step: int, error: Exception) -> Saved:
    failure = (
        f"The checkpoint of step {step} could not be written: {error}.",
        "Training would continue without a checkpoint to return to.",
        "free space or choose another --output-dir; --resume auto continues from the previous checkpoint.",
    )
    return Saved(step, failure=failure)
