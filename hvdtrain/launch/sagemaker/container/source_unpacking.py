"""Unpack a source archive, whoever made it: nothing gets out of its folder, and it cannot fill memory or disk."""

import gzip
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import Final

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker.source_archive import MAX_BYTES

MOST_BYTES: Final = 2 * MAX_BYTES
"""Of the expanded archive, and of its files: room for what `Estimator.fit` packs, with headers and padding."""

_CHUNK_BYTES: Final = 2**20


class UnsafeArchiveError(Exception):
    """The archive holds something else than files and folders of its own; the text says what."""


def unpack_source(packed: Path, folder: Path, origin: str) -> None:
    """Unpack a .tar.gz into `folder`, which is there; `origin` is its name for messages.

    All of it is looked at before anything is written. Raises UsageError: it is damaged or too large, or a name leads
    out of the folder, or something is not a plain file.
    """
    try:
        _require_small(packed)
        with tarfile.open(packed, mode="r:gz") as archive:
            members = [member for member in archive if _is_plain(member)]
            if sum(member.size for member in members) > MOST_BYTES:  # a sparse file's holes take no bytes
                raise UnsafeArchiveError(_too_large())
            for member in members:
                _write(archive, member, folder / member.name)
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error, UnsafeArchiveError) as error:
        raise UsageError(
            f"The source archive {origin} cannot be unpacked: {error}.",
            "Workers would have nothing to run.",
            "make it again: `Estimator.fit` does, or `tar -czhf sourcedir.tar.gz -C SOURCE .`, with -h for links.",
        ) from error


def _require_small(packed: Path) -> None:
    """Before tarfile sees it, which reads the header of a member at once, whatever its size."""
    expanded = 0
    with gzip.open(packed) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            expanded += len(chunk)
            if expanded > MOST_BYTES:
                raise UnsafeArchiveError(_too_large())


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Whether it is to be written: a file, or a folder, which is made for its files anyway."""
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise UnsafeArchiveError(f"{member.name[:80]!r} leads out of its folder")
    if not (member.isreg() or member.isdir()):
        raise UnsafeArchiveError(f"{member.name[:80]!r} is neither a file nor a folder, but a link or a device")
    return member.isreg()


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = archive.extractfile(member)
    if content is None:
        raise UnsafeArchiveError(f"{member.name[:80]!r} has no content")
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)
    path.chmod(0o755 if member.mode & 0o100 else 0o644)


def _too_large() -> str:
    return f"it expands to more than {MOST_BYTES // 2**20} MiB; data belong in a channel"
