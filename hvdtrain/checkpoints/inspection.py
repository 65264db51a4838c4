"""What is in a folder of checkpoints, for people: which ones, how large, which are sound, which would be kept."""

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from data_sharding.atomic import final_path
from hvdtrain.checkpoints.format import DamagedCheckpointError, read_manifest
from hvdtrain.checkpoints.resume import POINTERS, followed
from hvdtrain.checkpoints.store import CHECKPOINT_NAME, CheckpointStore
from hvdtrain.errors import UsageError


@dataclass(frozen=True)
class Entry:
    path: Path
    names: tuple[str, ...]  # which of the pointers lead to it, "latest" and "best"
    size: int  # bytes of its files
    written: float | None  # seconds since the epoch; None where that is not known
    step: int | None = None  # updates before it; None if its manifest cannot be read, and `problem` says why
    samples: int = 0  # real samples in these updates
    world_size: int | None = None  # workers of the job that wrote it; None if the manifest does not say
    problem: str = ""

    @property
    def age(self) -> float | None:
        """Seconds since it was written."""
        return None if self.written is None else max(0.0, time.time() - self.written)


def store_at(path: Path) -> CheckpointStore:
    """The checkpoints of a run: `path` is the run's folder, its folder checkpoints, or one of them. Raises UsageError:
    there are none."""
    path = followed(path)
    candidates = (path / "checkpoints", path, path.parent)
    store = next((s for s in (CheckpointStore(c, keep=1) for c in candidates) if s.paths()), None)
    if store is None:
        what = "holds no checkpoint" if path.exists() else "is not there"
        raise UsageError(f"{path} {what}.", "It was given as RUN.", "give a run folder, or one of its checkpoints.")
    return store


def entries(path: Path) -> list[Entry]:
    """All checkpoints of the run, the oldest first; the one that `path` names where it names one, in a run or alone."""
    path = followed(path)
    if (path / "manifest.json").is_file() and not CHECKPOINT_NAME.fullmatch(path.name):
        return [_entry(path, ())]
    store = store_at(path)
    pointed = {pointer: store.named(pointer) for pointer in POINTERS}
    names = {folder: tuple(n for n in POINTERS if pointed[n] == folder) for folder in store.paths()}
    all_entries = [entry for folder in names for entry in _entry_if_there(folder, names[folder])]
    return [entry for entry in all_entries if entry.path == path] or all_entries


def entries_behind(url: str, arrays: bool) -> Iterator[Entry]:
    """As `entries`, for a run behind a URL. Each one's files, or without `arrays` its manifest alone, are here until
    the next one is asked for. Raises UsageError: the URL cannot be used, or has no checkpoint."""
    from hvdtrain.checkpoints.remote_folder import run_at  # imports fsspec

    run, named = run_at(url)
    try:
        pointed = {pointer: run.pointed(pointer) for pointer in POINTERS}
        for name in (wanted := [named] if named else run.names()):
            with TemporaryDirectory(prefix="hvdtrain-checkpoint-") as scratch:
                run.bring(name, Path(scratch, name), arrays)
                names = tuple(pointer for pointer in POINTERS if pointed[pointer] == name)
                yield replace(_entry(Path(scratch, name), names), size=run.size(name), written=None)
    except OSError as error:
        raise UsageError(
            f"The run cannot be read: {error}.", "It was given as RUN.", "check the URL and the credentials."
        ) from error
    if not wanted:
        raise UsageError(f"{url} holds no checkpoint.", "It was given as RUN.", "check the URL.")


def problems(entry: Entry) -> Iterator[str]:
    """What is wrong with its files, each read once and compared with its hash."""
    try:
        hashes = read_manifest(entry.path).get("sha256", {})
    except DamagedCheckpointError as error:
        yield str(error)
        return
    for name, expected in hashes.items():
        try:
            with final_path(entry.path / name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            yield f"{name} cannot be read: {error.strerror or error}"
            continue
        if digest != expected:
            yield f"{name} is damaged: its SHA-256 is not that of the manifest"


def examined(checkpoints: Iterable[Entry]) -> Iterator[tuple[Entry, list[str]]]:
    """Each with its `problems`; without those that the run itself removes meanwhile, of which files are missed."""
    for entry in checkpoints:
        found = list(problems(entry))
        if not found or entry.path.exists():
            yield entry, found


def superfluous(checkpoints: list[Entry], keep: int) -> list[Entry]:
    """All but the newest `keep` that are sound, what `latest` or `best` names, and the best that those kept know."""
    stays = [entry for entry in checkpoints if entry.names]
    sound = (entry for entry in reversed(checkpoints) if not any(problems(entry)))
    stays += islice(sound, keep)
    best = {history["best"]["step"] for entry in stays if (history := _history(entry)) and history.get("best")}
    return [entry for entry in checkpoints if entry not in stays and entry.step not in best]


def _history(entry: Entry) -> dict[str, Any]:
    """Of validations, as its manifest has it."""
    return {} if entry.problem else read_manifest(entry.path).get("standing") or {}


def _entry_if_there(folder: Path, names: tuple[str, ...]) -> Iterator[Entry]:
    """Nothing where the run itself has just removed it."""
    try:
        entry = _entry(folder, names)
    except FileNotFoundError:
        if folder.exists():
            raise
        return
    if not entry.problem or folder.exists():
        yield entry


def _entry(folder: Path, names: tuple[str, ...]) -> Entry:
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    written = folder.stat().st_mtime
    try:
        manifest = read_manifest(folder)
    except DamagedCheckpointError as error:
        return Entry(folder, names, size, written, problem=str(error))
    return Entry(
        folder, names, size, written, int(manifest["step"]), int(manifest["samples_seen"]), manifest.get("world_size")
    )
