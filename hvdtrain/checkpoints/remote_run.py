"""The checkpoints of a run behind a URL: which there are, and how one of them comes here."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from data_sharding.storage.redaction import redacted
from hvdtrain.checkpoints.format import CHECKPOINT_FILE, Checkpoint, DamagedCheckpointError, read_checkpoint
from hvdtrain.checkpoints.remote_folder import RemoteFolder
from hvdtrain.checkpoints.resume import POINTERS
from hvdtrain.checkpoints.store import CHECKPOINT_NAME
from hvdtrain.errors import UsageError

MANIFEST: Final = "manifest.json"
LATEST: Final = "checkpoints/latest"

_log = logging.getLogger(__name__)


class RemoteRun:
    """The run behind `folder`."""

    def __init__(self, folder: RemoteFolder) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Of its checkpoints, the oldest first."""
        return [name for name in self._folder.names("checkpoints") if CHECKPOINT_NAME.fullmatch(name)]

    def names_newest_first(self) -> list[str]:
        """Those up to `latest` first: later ones are of a branch that training has left."""
        names, latest = self.names(), self.pointed("latest")
        end = names.index(latest) + 1 if latest in names else len(names)
        return [*reversed(names[:end]), *reversed(names[end:])]

    def pointed(self, pointer: str) -> str:
        """The name that `latest` or `best` holds; "" where there is none."""
        return (self._folder.read(f"checkpoints/{pointer}") or b"").decode(errors="replace").strip()

    def bring(self, name: str, target: Path, arrays: bool = True) -> None:
        """Copy a checkpoint's files into the folder `target`, as they are; without `arrays` its manifest alone.

        Raises:
            OSError: it cannot be read.
        """
        target.mkdir(parents=True, exist_ok=True)
        for file, size in self._folder.sizes(f"checkpoints/{name}").items():
            if file == MANIFEST or (arrays and CHECKPOINT_FILE.fullmatch(file)):
                self._folder.download(f"checkpoints/{name}/{file}", target / file, size)

    def size(self, name: str) -> int:
        """Bytes of a checkpoint's files."""
        return sum(self._folder.sizes(f"checkpoints/{name}").values())


def run_at(url: str) -> tuple[RemoteRun, str]:
    """The run that a URL names, and which of its checkpoints; "" where it names none.

    Args:
        url: of a run's folder, its folder checkpoints, or one of these by its name or a pointer.

    Raises:
        UsageError: it cannot be used.
    """
    parent, _, last = url.rstrip("/").rpartition("/")
    if CHECKPOINT_NAME.fullmatch(last) or last in POINTERS:
        run = RemoteRun(RemoteFolder(parent.removesuffix("/checkpoints")))
        name = run.pointed(last) if last in POINTERS else last
        if not CHECKPOINT_NAME.fullmatch(name):
            raise UsageError(
                f"{redacted(url)} names no checkpoint.", "Another one is not taken instead.", "check the URL."
            )
        return run, name
    return RemoteRun(RemoteFolder(url.rstrip("/").removesuffix("/checkpoints"))), ""


def checkpoint_behind(url: str, given_as: str) -> Checkpoint:
    """The newest sound checkpoint of the run behind a URL, or the one that the URL names.

    Args:
        given_as: by which option, for messages.

    Raises:
        UsageError: it cannot be read, or there is no sound one.
    """
    shown = redacted(url)
    try:
        run, named = run_at(url)
        for name in [named] if named else run.names_newest_first():
            with TemporaryDirectory(prefix="hvdtrain-checkpoint-") as scratch:
                run.bring(name, Path(scratch, name))
                try:
                    return read_checkpoint(Path(scratch, name))
                except DamagedCheckpointError as error:
                    _log.warning("a checkpoint of %s cannot be used: %s", shown, error)
    except OSError as error:
        raise UsageError(
            f"The checkpoint cannot be read: {error}.", f"It was given as {given_as}.", "check the URL and credentials."
        ) from error
    raise UsageError(f"{shown} holds no sound checkpoint.", f"It was given as {given_as}.", "check the URL.")
