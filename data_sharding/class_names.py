"""Names of the classes of a folder of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from data_sharding.errors import ChangedDataError, PlanError
from data_sharding.formats.image_folder import ImageFolderFormat, class_folders, sorted_names

if TYPE_CHECKING:
    from data_sharding.catalog import Catalog


def root_of(catalog: Catalog) -> str:
    """The folder, with a slash at its end, that holds the folders of a catalog's classes."""
    assert isinstance(catalog.format, ImageFolderFormat)
    return class_folders([entry.path for entry in catalog.files], catalog.format.root)[0]


def class_names(catalog: Catalog) -> tuple[str, ...]:
    """Names of the classes of a catalog of this format; label i is that of name i.

    Raises:
        PlanError: the catalog is of another format.
        ChangedDataError: folders of classes were added, removed or renamed since it was made.
    """
    if not isinstance(catalog.format, ImageFolderFormat) or catalog.labels is None:
        raise PlanError(
            f"The catalog's format is {catalog.format.name}.",
            "Only folders of images have classes with names.",
            "take the names from the data's own description.",
        )
    if catalog.format.classes:
        return catalog.format.classes
    root, folders = class_folders([entry.path for entry in catalog.files], catalog.format.root)
    names = sorted_names(root, folders)
    numbers = {name: number for number, name in enumerate(names)}
    if [numbers[folders[file]] for file in catalog.file_ids.tolist()] != catalog.labels.tolist():
        raise ChangedDataError(
            f"The folders in {root} are not those of the catalog's classes.",
            "Labels can no longer be named: empty folders were added or removed.",
            "restore the folders, or index the data again.",
        )
    return names
