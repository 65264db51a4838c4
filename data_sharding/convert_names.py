"""Names of the samples that images of a folder become in tar shards."""

from __future__ import annotations

import hashlib
import os
from typing import final

import numpy as np

from data_sharding.catalog import Catalog
from data_sharding.formats.image_folder import root_of


@final
class ImageNames:
    """Key and extension of each file of a catalog of images: "cat/17" and "jpg" for root/cat/17.JPG.

    The folders stay in the key, so that unpacked shards are the folder of images again. A dot before the extension
    becomes "_", since a key ends at the first one. No two files have the same key: the second gets its number.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._paths = [file.path for file in catalog.files]
        self._root = len(root_of(catalog))
        digests = (
            hashlib.blake2b(os.fsencode(self._split(file)[0]), digest_size=8) for file in range(len(self._paths))
        )
        keys = np.array([int.from_bytes(digest.digest(), "little") for digest in digests], np.uint64)
        self._is_first = np.zeros(len(keys), np.bool_)
        self._is_first[np.unique(keys, return_index=True)[1]] = True

    def __call__(self, file_id: int) -> tuple[str, str]:
        """Key, and extension in lower case without its dot."""
        key, extension = self._split(file_id)
        return (key if self._is_first[file_id] else f"{key}-{file_id:08d}"), extension

    def _split(self, file_id: int) -> tuple[str, str]:
        folder, slash, base = self._paths[file_id][self._root :].rpartition("/")
        stem, extension = os.path.splitext(base)
        return folder + slash + stem.replace(".", "_"), extension[1:].lower()
