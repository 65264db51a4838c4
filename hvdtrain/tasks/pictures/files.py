"""Where a data set's own files are: in the data folder, as its archive unpacks or as torchvision downloads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hvdtrain.data_access import DataAccess
from hvdtrain.errors import UsageError


@dataclass(frozen=True)
class Origin:
    """A data set as its makers publish it.

    Attributes:
        name: what people call it.
        folders: below the data folder, "" for itself, where its files may be.
        files: one of these is there wherever the data set is.
        archives: what to download.
        url: the page that has it.
    """

    name: str
    folders: tuple[str, ...]
    files: tuple[str, ...]
    archives: str
    url: str


def folder_with(data: DataAccess, origin: Origin) -> str:
    """The path or URL of the folder that holds the data set's files. Behind a URL nothing is looked for.

    Raises:
        UsageError: it is in none of the folders where it may be; says which file to put where.
    """
    root = data.path("")
    if "://" in root:
        return root
    for folder in origin.folders:
        if any((Path(root) / folder / name).is_file() for name in origin.files):
            return str(Path(root) / folder)
    below = ", ".join(f"{folder}/" for folder in origin.folders if folder)
    raise UsageError(
        f"{root} does not hold {origin.name}: no {' or '.join(origin.files)} in it or in {below}.",
        "There is nothing to train on.",
        f"unpack {origin.archives} from {origin.url} in it.",
    )
