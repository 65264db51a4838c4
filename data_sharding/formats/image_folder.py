"""Folders of images: each file is a record, and the folder that it is in names its class."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import ChangedDataError, MissingDataError, PlanError
from data_sharding.formats.record_format import RecordFormat, RecordIndex
from data_sharding.storage import ByteSource, is_remote
from data_sharding.storage.input_files import Paths, listing

if TYPE_CHECKING:
    from data_sharding.catalog import Catalog

# torchvision.datasets.folder.IMG_EXTENSIONS, and GIF, which Pillow reads as well.
_EXTENSIONS: Final = ("jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp", "gif")


@dataclass(frozen=True)
class ImageFolderFormat(RecordFormat):
    """`RecordFormat` for `root/class/**/image.jpg`: payloads are whole files, labels number the sorted class names.

    Attributes:
        root: the folder (or URL) that holds the classes' folders; default: the deepest one above all images.
        classes: names of the classes in the order of their labels; default: the sorted names of root's folders. Give
            the training data's for validation data, which may lack a class: `class_names(catalog)`.

    Raises PlanError (a class is named twice).
    """

    root: str = ""
    classes: tuple[str, ...] = ()
    name = "image_folder"
    patterns = tuple(f"*.{extension}" for extension in _EXTENSIONS)
    recursive = True

    def __post_init__(self) -> None:
        # A saved catalog's options come as JSON, which knows lists only.
        object.__setattr__(self, "classes", tuple(self.classes))
        if len(set(self.classes)) != len(self.classes):
            fact = f"The classes {', '.join(self.classes)} were given."
            raise PlanError(fact, "One of them is named twice, so that its label is unclear.", "name each class once.")

    def file_labels(self, paths: Sequence[str]) -> NDArray[np.int64]:
        """The number of each image's class. Raises MissingDataError (an image is not in the folder of a class)."""
        root, folders = _class_folders(paths, self.root)
        names = self.classes or _sorted_names(root, folders)
        numbers = {name: number for number, name in enumerate(names)}
        labels = np.array([numbers.get(folder, -1) for folder in folders], np.int64)
        if (labels < 0).any():
            first = int(np.argmin(labels))
            fact = f"{paths[first]} is in the folder {folders[first]!r} of {root}."
            conflict = f"The classes are {', '.join(names[:20])}."
            raise MissingDataError(fact, conflict, "correct the option classes, or remove the folder.")
        return labels

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:  # noqa: ARG002
        """Nothing of the file is read."""
        return RecordIndex(np.zeros(1, np.int64), np.array([source.size()], np.int64))

    def for_paths(self, paths: Paths) -> ImageFolderFormat:
        """With the one folder that `paths` names as the root: with a single class, nothing else tells it."""
        named = [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
        if self.root or len(named) != 1:
            return self
        # A folder that exists is one whatever its name; what is behind a URL is not looked at.
        is_folder = not glob.has_magic(named[0]) if is_remote(named[0]) else os.path.isdir(named[0])
        return dataclasses.replace(self, root=named[0]) if is_folder else self


def root_of(catalog: Catalog) -> str:
    """The folder, with a slash at its end, that holds the folders of a catalog's classes."""
    assert isinstance(catalog.format, ImageFolderFormat)
    return _class_folders([entry.path for entry in catalog.files], catalog.format.root)[0]


def class_names(catalog: Catalog) -> tuple[str, ...]:
    """Names of the classes of a catalog of this format; label i is that of name i.

    Raises:
        PlanError: the catalog is of another format.
        ChangedDataError: folders of classes were added, removed or renamed since it was made.
    """
    if not isinstance(catalog.format, ImageFolderFormat) or catalog.labels is None:
        fact = f"The catalog's format is {catalog.format.name}."
        conflict = "Only folders of images have classes with names."
        raise PlanError(fact, conflict, "take the names from the data's own description.")
    if catalog.format.classes:
        return catalog.format.classes
    root, folders = _class_folders([entry.path for entry in catalog.files], catalog.format.root)
    names = _sorted_names(root, folders)
    numbers = {name: number for number, name in enumerate(names)}
    if [numbers[folders[file]] for file in catalog.file_ids.tolist()] != catalog.labels.tolist():
        raise ChangedDataError(
            f"The folders in {root} are not those of the catalog's classes.",
            "Labels can no longer be named: empty folders were added or removed.",
            "restore the folders, or index the data again.",
        )
    return names


def _sorted_names(root: str, folders: Sequence[str]) -> tuple[str, ...]:
    """Folders that hold images, and empty ones too, so that a class without images keeps its label."""
    names = set(folders)
    if not is_remote(root) and os.path.isdir(root):
        names.update(listing(root)[0])
    return tuple(sorted(names))


def _class_folders(paths: Sequence[str], root: str) -> tuple[str, list[str]]:
    """The root, and for each path the name of root's folder that it is in."""
    if root and not is_remote(root):
        root = os.path.abspath(root)
    # The deepest folder above all: the first and the last path in order differ the most.
    common = os.path.commonprefix([min(paths), max(paths)])
    above = root.rstrip("/") + "/" if root else common[: common.rfind("/") + 1]
    folders = []
    for path in paths:
        folder, slash, _ = path[len(above) :].partition("/")
        if not slash or not path.startswith(above):
            raise MissingDataError(
                f"{path} is in no folder inside {above}.",
                "The folders there name the classes, so this image has none.",
                "give the option root, the folder that holds one folder a class; move or remove images outside these.",
            )
        folders.append(folder)
    return above, folders
