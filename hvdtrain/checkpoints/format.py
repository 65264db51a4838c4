"""One checkpoint on disk: `model.safetensors`, `optimizer.safetensors`, `manifest.json`. No pickle anywhere.

What else training carries on (an average of the weights, the loss scale) is in `extra.safetensors`, where there is any.
Where several ranks have written it, each has written some of the arrays: `model-00001-of-00004.safetensors`.

The manifest is written last and holds the SHA-256 of every other file and of its own content, so a folder without a
fitting manifest is not a checkpoint. The folder gets its final name by one rename after everything is on disk.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from data_sharding.atomic import final_path, sync_folder
from hvdtrain.algorithms.early_stopping import ValidationHistory
from hvdtrain.algorithms.interval_sums import IntervalSums
from hvdtrain.checkpoints.kept_copy import kept_copy
from hvdtrain.checkpoints.stored_arrays import restored, stored
from hvdtrain.files import write_json
from hvdtrain.named_arrays import State, as_numbers

FORMAT = 1
_PARTS = ("model", "optimizer")
_EXTRA = "extra"
MODEL: Final = ("model",)
"""The models of a run by their names in a state: one."""
CHECKPOINT_FILE = re.compile(r"(model|optimizer|extra)(?:-\d{5}-of-\d{5})?\.safetensors")


@dataclass(frozen=True, slots=True)
class Position:
    """Equal on all ranks, and independent of how many they are."""

    step: int = 0  # updates done since the start of training; with the plan this says which record comes next
    samples_seen: int = 0  # real (unmasked) samples in those updates, over all ranks
    history: ValidationHistory = ValidationHistory()  # of the validations at the ends of epochs
    interval: IntervalSums | None = None  # with virtual workers, where the last line of metrics came early
    masked: int = 0  # damaged records that this epoch has left out, over all ranks, up to the last line of metrics

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Position":
        """What `to_json` made of one; checkpoints of earlier versions have less."""
        history = fields.get("standing")
        known = ValidationHistory.from_json(history) if history is not None else ValidationHistory()
        interval = fields.get("interval")
        sums = IntervalSums.from_json(interval) if interval is not None else None
        return cls(int(fields["step"]), int(fields["samples_seen"]), known, sums, int(fields.get("masked", 0)))

    def to_json(self) -> dict[str, Any]:
        """As manifests hold it."""
        interval = None if self.interval is None else self.interval.to_json()
        place = {"step": self.step, "samples_seen": self.samples_seen}
        return {**place, "standing": asdict(self.history), "interval": interval, "masked": self.masked}

    def after(self, global_weight: float) -> "Position":
        """The position one update later, whose global batch held `global_weight` real samples."""
        return Position(self.step + 1, self.samples_seen + int(global_weight), self.history, masked=self.masked)


WriteFiles = Callable[[Path, State], dict[str, str]]  # writes a state into a folder; returns file → SHA-256


class DamagedCheckpointError(Exception):
    """A checkpoint folder whose content is not what its manifest says, or that has none."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory."""

    state: State  # named arrays, as `Adapter.state` gives them
    position: Position
    about: dict[str, Any]  # what else the manifest says: framework, task, plan, world size, config, versions


REPLACED: Final = ".{}.replaced.tmp"
"""Name of a checkpoint's folder while another one takes its place."""


def write_checkpoint(folder: Path, checkpoint: Checkpoint, write: WriteFiles | None = None) -> None:
    """Write `folder`, in place of one of that name; a crash leaves at most hidden neighbours `.….tmp`. `write`: writes
    the arrays, as `write_files`, which is the default. Raises OSError: nothing was written under the final name."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        _require_space(temporary, state_bytes(checkpoint.state))
        hashes = (write or write_files)(temporary, checkpoint.state)
        publish(temporary, folder, checkpoint.position, checkpoint.about, hashes)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_files(staging: Path, state: State, ending: str = "", whole: bool = True) -> dict[str, str]:
    """Write a state, or a part of one, into the folder `staging`; returns file → SHA-256. `ending`: of the names of
    this part's files; `whole`: whether the kinds that every checkpoint has get a file even without arrays. Raises
    OSError: it is not written, or not completely."""
    staging.mkdir(parents=True, exist_ok=True)
    _require_space(staging, state_bytes(state))
    files = {f"{kind}{ending}.safetensors": arrays for kind, arrays in _by_kind(state, whole).items()}
    return {name: _write_arrays(staging / name, arrays) for name, arrays in files.items()}


def publish(staging: Path, folder: Path, position: Position, about: Mapping[str, Any], hashes: dict[str, str]) -> None:
    """Make the checkpoint `folder` of the parts in `staging`, in place of one of that name. `hashes`: file → SHA-256,
    of all parts. Raises OSError: a part is not there, or the manifest cannot be written; `folder` is as it was."""
    for name in hashes:
        (staging / name).stat()
    _write_manifest(staging, {"format": FORMAT, **position.to_json(), "sha256": hashes, **about})
    replaced = folder.with_name(REPLACED.format(folder.name))
    if folder.exists():  # damaged, or from before a resume that went back further
        shutil.rmtree(replaced, ignore_errors=True)
        folder.rename(replaced)
    try:
        staging.rename(folder)
    except OSError:
        if replaced.exists():
            replaced.rename(folder)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
    sync_folder(folder.parent)


def remove_checkpoint(folder: Path) -> None:
    """Remove it; a crash leaves it whole, or a hidden neighbour `.….tmp`. Raises OSError: it cannot be removed."""
    hidden = folder.with_name(f".{folder.name}.removed.tmp")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden)


def write_position(folder: Path, position: Position) -> None:
    """Put another position into a checkpoint's manifest; a crash leaves the old one or the new one. Raises OSError,
    DamagedCheckpointError: as `write_json` and `read_manifest`."""
    _write_manifest(folder, {**read_manifest(folder), **position.to_json()})


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    write_json(folder / "manifest.json", {**manifest, "manifest_sha256": _content_hash(manifest)})


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint folder. Raises DamagedCheckpointError: it is missing, damaged, or of a format that
    this version does not know."""
    try:
        manifest = json.loads(final_path(folder / "manifest.json").read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{folder} has no readable manifest.json ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DamagedCheckpointError(f"{folder}/manifest.json is not of format {FORMAT}")
    if manifest.pop("manifest_sha256", None) != _content_hash(manifest):
        raise DamagedCheckpointError(f"{folder}/manifest.json is damaged: its SHA-256 does not match its content")
    return manifest


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read and verify a checkpoint; where this process has just written it, it may still have its arrays. Raises
    DamagedCheckpointError: a file is missing, or its hash is not the manifest's."""
    manifest = read_manifest(folder)
    hashes = manifest.pop("sha256", None)
    files = [CHECKPOINT_FILE.fullmatch(name) for name in hashes] if isinstance(hashes, Mapping) else []
    if not isinstance(hashes, Mapping) or {file and file[1] for file in files} - {_EXTRA} != set(_PARTS):
        raise DamagedCheckpointError(f"{folder}/manifest.json does not name the files of a checkpoint")
    state = kept_copy.take(hashes)
    if state is None:
        state = {
            name: array for file, sha in hashes.items() for name, array in _read_arrays(folder / file, sha).items()
        }
    position = Position.from_json(manifest)
    about = {name: value for name, value in manifest.items() if name not in position.to_json()}
    return Checkpoint(state, position, about)


def _by_kind(state: State, whole: bool) -> dict[str, State]:
    """Kind → arrays. Names say where they belong: "model/…", "optimizer/…", or anything else."""
    kinds: dict[str, State] = {kind: {} for kind in _PARTS} if whole else {}
    for name, array in state.items():
        first = name.partition("/")[0]
        kinds.setdefault(first if first in _PARTS else _EXTRA, {})[name] = array
    return kinds


def state_bytes(state: State) -> int:
    return sum(array.nbytes for array in state.values())


def _require_space(folder: Path, needed: int) -> None:
    """A disk that is full before the end would only cost time, and the space that others need."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        reason = f"it needs {needed / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {reason}", str(folder))


def _write_arrays(path: Path, arrays: State) -> str:
    """Write a safetensors file, and return its SHA-256. Neither copies the arrays, nor holds Python's lock for long."""
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)  # what the umask leaves; safetensors lets nobody else read
    try:
        save_file(stored(arrays), path)
    except SafetensorError as error:  # which is also how it tells of a full disk
        raise OSError(errno.EIO, str(error), str(path)) from error
    with suppress(OSError):  # some file systems have no rights
        path.chmod(mode)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return digest


def _content_hash(manifest: dict[str, Any]) -> str:
    """SHA-256 of what JSON keeps of the manifest, however it is spaced and ordered."""
    kept = json.loads(json.dumps(manifest))
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _read_arrays(path: Path, expected: str) -> State:
    try:
        content = final_path(path).read_bytes()
    except OSError as error:
        raise DamagedCheckpointError(f"{path} cannot be read ({error})") from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise DamagedCheckpointError(f"{path} is damaged: its SHA-256 is not that of the manifest")
    try:
        return restored(load(content))
    except SafetensorError as error:
        raise DamagedCheckpointError(f"{path} is not a safetensors file ({error})") from error


def infinite_from_the_start(state: State, models: Collection[str] = MODEL) -> frozenset[str]:
    """Names of weights and buffers that hold infinity on purpose, as masks of attention do. `models`: as below."""
    return frozenset(name for name, array in _weights(state, models).items() if np.isinf(array).any())


def weights_not_finite(
    state: State, infinite: frozenset[str] = frozenset(), models: Collection[str] = MODEL
) -> list[str]:
    """Names, without "model/", of weights and buffers that hold NaN, or infinity and are not among `infinite`.
    `models`: what stands before the first "/" in the names of weights and buffers."""
    return [
        name.removeprefix("model/")
        for name, array in _weights(state, models).items()
        if not np.isfinite(array).all() and (name not in infinite or np.isnan(array).any())
    ]


def _weights(state: State, models: Collection[str]) -> dict[str, NDArray[Any]]:
    begins = tuple(f"{model}/" for model in models)
    weights = {name: as_numbers(array) for name, array in state.items() if name.startswith(begins)}
    return {name: array for name, array in weights.items() if array.dtype.kind in "fc"}
