"""A second copy of a run behind a URL: its checkpoints and what belongs to them, for machines whose disks do not last.

A checkpoint is durable only after it is there, too. A run that starts with an empty folder, on a new machine say,
fetches the newest one and the ledger of used records from there, and goes on.

Order of writing, so that a stop at any moment leaves what was there or the new one: ledger and metrics, the arrays, the
manifest, the pointers; only then what is superfluous is removed.
"""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any, Final

from hvdtrain.checkpoints.format import DamagedCheckpointError, read_checkpoint, read_manifest
from hvdtrain.checkpoints.remote_folder import LATEST, MANIFEST, RemoteFolder, RemoteRun, Version
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.errors import UsageError
from hvdtrain.files import write_atomically

_log = logging.getLogger(__name__)

_BEST: Final = "checkpoints/best"
_ID: Final = ".run"  # a random number: which run it is
_METRICS: Final = ("metrics.jsonl", "metrics.csv", "wandb.json", "mlflow.json")
"""The metrics, and in which runs of loggers they are."""
_BESIDE: Final = (*_METRICS, "config.yaml", "env.json")


class Mirror:
    """The copy of the run folder `run`, with the checkpoints `store`, behind a URL. Used by rank 0 only."""

    def __init__(self, folder: RemoteFolder, run: Path, store: CheckpointStore) -> None:
        self._folder, self._run, self._store = folder, run, store
        self._there = RemoteRun(folder)
        self._latest: Version | None = None

    def bind(self, adopts: bool, goes_on: bool = False) -> None:
        """Make sure that the URL has this run, or nothing yet.

        Args:
            adopts: whether a run folder without checkpoints may become that of the run behind the URL.
            goes_on: whether this job was started before: a run without checkpoints there is its own, of a lost disk.

        Raises UsageError: it has another run, whose checkpoints would be removed; or it cannot be read or written.
        """
        file = self._run / _ID
        try:
            run_id = file.read_bytes() if file.is_file() else None
            theirs = self._folder.read(_ID)
            if theirs is None:
                run_id = run_id or os.urandom(8).hex().encode()
                self._folder.replace(_ID, run_id, Version(None))
            elif run_id is None and not self._store.paths() and (adopts or (goes_on and not self._there.names())):
                run_id = theirs
            if theirs not in (None, run_id):
                raise UsageError(
                    f"{self._folder.url} holds the checkpoints of another run.",
                    "This run would remove them.",
                    "give another --checkpoint-url, or continue that run with --resume auto and a new --output-dir.",
                )
            write_atomically(file, run_id or b"")
        except OSError as error:
            raise self._unusable(error) from error

    def fetch(self) -> None:
        """Bring the newest sound checkpoint here if it is newer than all that are here, with the ledger and metrics.
        Raises UsageError: the store cannot be read, or has damaged ones alone, and there is none here: starting again
        from the beginning must be the user's choice."""
        try:
            self._latest = self._folder.version(LATEST)
            newest = self._store.paths()[-1].name if self._store.paths() else ""
            problem = ""
            for name in self._there.names_newest_first():
                if name <= newest:
                    return
                problem = self._fetch_checkpoint(name)
                if not problem:
                    return
        except OSError as error:
            raise self._unusable(error) from error
        if problem and not newest:
            raise UsageError(
                f"Every checkpoint at {self._folder.url} is damaged; the last that was tried: {problem}.",
                "Training cannot be resumed, and starting from the beginning would remove them.",
                "give another --checkpoint-url, or move what is there away.",
            )

    def send(self, checkpoint: Path) -> None:
        """Write a checkpoint that is on disk, and all that belongs to it; then remove what is no longer on disk. Raises
        OSError: older checkpoints are intact."""
        if self._latest is None:
            self._latest = self._folder.version(LATEST)
        self._send_rest()
        inside = f"checkpoints/{checkpoint.name}"
        hashes = read_manifest(checkpoint)["sha256"]
        there = self._folder.read(f"{inside}/{MANIFEST}")
        if there != (checkpoint / MANIFEST).read_bytes():
            has_arrays = _hashes_in(there) == hashes  # only the history of validations is another one
            if there is not None and not has_arrays:
                self._folder.remove(f"{inside}/{MANIFEST}")
            for name in [*([] if has_arrays else sorted(hashes)), MANIFEST]:
                self._folder.upload(checkpoint / name, f"{inside}/{name}")
        self._latest = self._folder.replace(LATEST, f"{checkpoint.name}\n".encode(), self._latest)
        best = self._store.folder / "best"
        if best.is_file():
            self._folder.replace(_BEST, best.read_bytes())
        else:
            self._folder.remove(_BEST)
        kept = {path.name for path in self._store.paths()}
        for name in self._there.names():
            if name not in kept:
                self._folder.remove(f"checkpoints/{name}/{MANIFEST}")
                self._folder.remove(f"checkpoints/{name}")

    def _unusable(self, error: OSError) -> UsageError:
        return UsageError(
            f"{self._folder.url} cannot be used: {error}.",
            "Without it it is not known from where training goes on.",
            "check the URL and the credentials, or leave out --checkpoint-url to use the run folder alone.",
        )

    def _send_rest(self) -> None:
        there = self._folder.sizes("audit")
        for file in sorted((self._run / "audit").glob("*")):
            if file.is_file() and (file.suffix in (".json", ".jsonl") or there.get(file.name) != file.stat().st_size):
                self._folder.upload(file, f"audit/{file.name}")
        for name in _BESIDE:
            if (self._run / name).is_file():
                self._folder.upload(self._run / name, name)

    def _fetch_checkpoint(self, name: str) -> str:
        """Why it is not sound; "": it is, and is here now. It comes last: where it is, all else is."""
        target = self._store.folder / name
        staging = target.with_name(f".{name}.fetched.tmp")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            self._there.bring(name, staging)
            read_checkpoint(staging)
            self._fetch_rest()
            staging.rename(target)
        except DamagedCheckpointError as error:
            _log.warning("skipping a damaged checkpoint of %s: %s", self._folder.url, error)
            return str(error)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        _log.info("fetched %s from %s", name, self._folder.url)
        return ""

    def _fetch_rest(self) -> None:
        """The ledger of used records and the metrics take the place of older ones that are here."""
        audit = self._run / "audit"
        audit.mkdir(parents=True, exist_ok=True)
        for name, size in self._folder.sizes("audit").items():
            if Path(name).name == name and not name.startswith("."):
                self._download_over(f"audit/{name}", audit / name, size)
        for name, size in self._folder.sizes("").items():
            if name in _METRICS:
                self._download_over(name, self._run / name, size)

    def _download_over(self, name: str, file: Path, size: int) -> None:
        temporary = file.with_name(f".{file.name}.fetched.tmp")
        try:
            self._folder.download(name, temporary, size)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)


def _hashes_in(manifest: bytes | None) -> Any:
    """File → SHA-256 of a checkpoint; None: there is no manifest that tells them."""
    try:
        return None if manifest is None else json.loads(manifest)["sha256"]
    except (ValueError, KeyError, TypeError):
        return None
