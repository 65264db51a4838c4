"""`hvd.Checkpoint`: checkpoints of a training loop that hvdtrain does not run, in the format of a `Task`'s."""

import atexit
import logging
import operator
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import nn

from hvdtrain.adapters.plain_values import NotPlainError, from_text, to_text
from hvdtrain.adapters.torch.tensor_arrays import to_tensor
from hvdtrain.checkpoints.format import Checkpoint as Stored
from hvdtrain.checkpoints.format import Position, infinite_from_the_start
from hvdtrain.checkpoints.saved import Saved
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.checkpoints.writer import COPIES, CheckpointWriter, await_all_writes
from hvdtrain.comm.messages import START_SECONDS, agree, broadcast_json, do_while_others_wait
from hvdtrain.engine.state_sync import broadcast_state
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.files import write_atomically
from hvdtrain.named_arrays import State
from hvdtrain.torch.adasum_optimizer import combines_steps
from hvdtrain.torch.collectives import as_lost_peer
from hvdtrain.torch.late_worker import awaits_state
from hvdtrain.torch.plain_state import infinite_in, load_into, require_state, state_of
from hvdtrain.torch.start import start_count
from hvdtrain.torch.world import communicator

_VALUES: Final = "values/#values"
_FINITE_HINT: Final = (
    "lower the learning rate, or clip gradients; restore() of a new start gives the checkpoint from before."
)
_log = logging.getLogger("hvdtrain")
_savers: Final["weakref.WeakSet[Checkpoint]"] = weakref.WeakSet()  # that have saved


@dataclass(frozen=True)
class Restored:
    """What `Checkpoint.restore` has found."""

    step: int  # that was given to `save`; 0: there was no checkpoint
    values: Mapping[str, Any] = field(default_factory=dict)  # what else was given to `save`


class Checkpoint:
    """Saves and restores a training: whole or not at all, by rank 0, for any number of ranks. Without pickle.

        checkpoint = hvd.Checkpoint("checkpoints", model=model, optimizer=optimizer, sampler=sampler)
        start = checkpoint.restore()
        for step in range(start.step, steps):
            ...
            if (step + 1) % 100 == 0:
                checkpoint.save(step + 1, epoch=epoch)
        checkpoint.wait()

    Rank 0 copies the state and writes it in a thread, while training goes on. All methods are collective: call them on
    all ranks. All ranks have rank 0's state after `restore`, also where there was no checkpoint.

    Args:
        folder: on rank 0's disk; is made by the first save.
        keep: how many of the newest checkpoints stay.
        objects: by name, what has `state_dict()` and `load_state_dict()`: models, optimizers, schedulers, samplers,
            gradient scalers. Their states must be equal on all ranks, except for statistics such as BatchNorm's, of
            which rank 0's are saved. Those that are an `nn.Module` must be finite, except for tensors that hold
            infinity from the start, as masks of attention do.

    Raises:
        UsageError: before `hvd.init()`, or an object cannot be saved.
    """

    def __init__(self, folder: str | Path = "checkpoints", *, keep: int = 2, **objects: Any) -> None:
        self._comm, self._objects, self._world = communicator("hvd.Checkpoint"), objects, start_count()
        if not objects or keep < 1:
            raise UsageError(
                f"hvd.Checkpoint was given {len(objects)} objects and keep={keep}.",
                "It saves at least one object, and keeps at least one checkpoint.",
                "write hvd.Checkpoint(model=model, optimizer=optimizer).",
            )
        for name, thing in objects.items():
            require_state(name, thing)
            if combines_steps(thing) and self._comm.topology.is_root:
                _log.warning(
                    "hvd.Checkpoint saves of %r what rank 0 has: with op=hvd.Adasum each rank has moments of its own. "
                    "So a training that goes on is not exactly the one without an interruption.",
                    name,
                )
        self._store = CheckpointStore(Path(folder).absolute(), keep)  # the loop may change its folder
        self._models = {name: thing for name, thing in objects.items() if isinstance(thing, nn.Module)}
        self._writer = self._new_writer(infinite_in(self._models))
        self._knows_folder, self._latest = awaits_state(), 0  # of a late worker, the others know it
        atexit.register(await_all_writes)

    def _require_alone(self) -> None:
        """Each save replaces what is there of the same step, and older ones."""
        folder = self._store.folder.resolve()
        for other in _savers:
            if other._store.folder.resolve() == folder and not self._saves_what(other):
                before, now = sorted(other._objects), sorted(self._objects)
                raise UsageError(
                    f"Two hvd.Checkpoint save different objects in {folder}, under the names {before} and {now}.",
                    "Each would remove what the other one has saved.",
                    "give all objects to one hvd.Checkpoint, or each one a folder of its own; delete an earlier one "
                    "that is no longer used (`del checkpoint`).",
                )
        _savers.add(self)

    def _saves_what(self, other: "Checkpoint") -> bool:
        """Whether it saves the same; a sampler, or another helper without weights, may have been made anew."""
        names = self._models.keys() | other._models.keys()
        is_same = all(other._objects.get(name) is self._objects.get(name) for name in names)
        return is_same and other._objects.keys() == self._objects.keys()

    def _new_writer(self, infinite: frozenset[str]) -> CheckpointWriter:
        about = {"framework": "torch", "world_size": self._comm.topology.size, "objects": sorted(self._objects)}
        models, hint = tuple(self._models), _FINITE_HINT
        return CheckpointWriter(self._comm, self._store, about, infinite, models=models, finite_hint=hint)

    def _follow(self) -> None:
        """In an elastic job: write for the world that this process is in now, in which ranks may be other ones."""
        if self._world != start_count():
            await_all_writes(START_SECONDS)  # what was begun in the former world, by whichever rank
            for failure in self._writer.failures():
                _log.warning("%s", " ".join(failure[:2]))
            self._comm, self._world = communicator("hvd.Checkpoint"), start_count()
            self._writer = self._new_writer(self._writer.infinite)

    @as_lost_peer
    def restore(self) -> Restored:
        """Load the newest sound checkpoint into the objects, on all ranks; without one, rank 0's state as it is.

        A worker that comes to an elastic job which trains already loads nothing before `hvd.elastic.run` calls the
        training function: the elastic state then has what the others have.

        Raises `UsageError`: on all ranks; the checkpoints are damaged, or of other objects.
        """
        if awaits_state():
            return Restored(0, {})
        self._follow()
        is_root = self._comm.topology.is_root
        newest = do_while_others_wait(
            self._comm, lambda: self._newest() if is_root else None, "hvdtrain.checkpoint.read", START_SECONDS
        )
        agree(self._comm, lambda: self._require_writable() if is_root else None, "hvdtrain.checkpoint.writable")
        step = int(broadcast_json(self._comm, newest.position.step if newest else 0, "hvdtrain.checkpoint.step"))
        own = agree(self._comm, lambda: self._state(newest) if is_root else None, "hvdtrain.checkpoint.own")
        state = broadcast_state(self._comm, own)
        values = from_text(state.pop(_VALUES), to_tensor)
        agree(self._comm, lambda: load_into(self._objects, state), "hvdtrain.checkpoint.load")
        self._writer.infinite |= infinite_from_the_start(state, tuple(self._models))
        self._knows_folder, self._latest = True, step
        return Restored(step, values)

    def _newest(self) -> Stored | None:
        return self._store.newest()

    def _state(self, newest: Stored | None) -> State:
        if newest is None:
            return self._read({}, {})
        if _VALUES not in newest.state:
            raise UsageError(
                f"{self._store.folder} has checkpoints that no hvd.Checkpoint has written.",
                "A Task's run has other names for its model and its optimizer.",
                "choose another folder; `hvdtrain export RUN --format state-dict` writes weights that a loop can load.",
            )
        return dict(newest.state)

    @as_lost_peer
    def save(self, step: int, *, wait: bool = False, **values: Any) -> None:
        """Begin to save; a later call, or `wait`, learns how it ended.

        A checkpoint that cannot be written, for a full disk, is a warning: older ones are intact.

        Args:
            step: of the checkpoint's name, 0 or more, and what `restore` returns.
            wait: return when it is on disk, or raise `HvdtrainError`.
            values: numbers, texts and collections of them, which `restore` returns.

        Raises:
            UsageError: on all ranks; the state cannot be saved, the folder has checkpoints that were not restored, or
                another `Checkpoint` of this process has saved other objects there.
            HvdtrainError: on all ranks; an earlier checkpoint, or with `wait` this one, would have weights that are NaN
                or infinite. It is not written, so that it pushes out none of the good ones.
        """
        self._follow()
        while self._writer.under_way >= COPIES:
            self._collect()
        number, state = agree(self._comm, lambda: self._copy(step, values), "hvdtrain.checkpoint.check")
        self._writer.begin(lambda _: state, Position(number))
        if wait:
            self.wait()

    def wait(self) -> None:
        """Return when what was begun is on disk. Raises `HvdtrainError`, on all ranks: the last one could not be, or
        weights of one are NaN or infinite."""
        self._follow()
        saved = None
        while self._writer.under_way:
            saved = self._collect()
        if saved is not None and saved.failure is not None:
            fact, conflict, _ = saved.failure
            raise HvdtrainError(fact, conflict, "free space, or choose another folder.").on_all_ranks()

    def _collect(self) -> Saved:
        saved = self._writer.collect()
        if saved.failure is not None and self._comm.topology.is_root:
            _log.warning("%s", " ".join(saved.failure[:2]))
        return saved

    def _check(self, values: Mapping[str, Any]) -> None:
        if not self._knows_folder and self._comm.topology.is_root and self._store.paths():
            raise UsageError(
                f"{self._store.folder} has checkpoints, and restore() was not called.",
                "Those of later steps would be removed, as of a training that went back.",
                "call restore() before the first step, or choose another folder.",
            )
        if not self._knows_folder and self._comm.topology.is_root:
            self._require_writable()
        self._knows_folder = True
        _text_of(values)
        self._require_alone()

    def _require_writable(self) -> None:
        folder = self._store.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / ".writable.tmp", bytes(1))
            (folder / ".writable.tmp").unlink()
        except OSError as error:
            raise UsageError(
                f"The folder {folder} cannot be written: {error.strerror or error}.",
                "Checkpoints would be lost.",
                "choose another folder, on a disk that rank 0 may write.",
            ) from error

    def _copy(self, step: Any, values: Mapping[str, Any]) -> tuple[int, State]:
        """The number of the step, and what is to be written, on ranks that write."""
        number = _number_of(step)
        self._check(values)
        if number < self._latest and self._comm.topology.is_root:
            _log.warning(
                "save(%d) was called after save(%d). Checkpoints of later steps are removed, as of a training that "
                "went back.\nHINT: count the steps of all epochs.",
                number,
                self._latest,
            )
        self._latest = number
        return number, self._read(values, self._writer.spare()) if self._writer.copies else {}

    def _read(self, values: Mapping[str, Any], earlier: Mapping[str, Any]) -> State:
        return state_of(self._objects, earlier) | {_VALUES: _text_of(values)}


def _number_of(step: Any) -> int:
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise UsageError(
            f"save() was given the step {step!r}.",
            "A checkpoint's name has a whole number, 0 or more.",
            "give the number of updates that were done: save(step + 1).",
        )
    return number


def _text_of(values: Mapping[str, Any]) -> "np.ndarray[Any, Any]":
    try:
        return to_text(dict(values), lambda _: None)
    except NotPlainError as error:
        raise UsageError(
            f"save() was given an instance of {type(error.part).__name__}.",
            "A checkpoint holds numbers, texts, arrays and collections of them.",
            "give such a value, or an object with state_dict() to hvd.Checkpoint.",
        ) from error
