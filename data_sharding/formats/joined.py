"""The format of a catalog that was joined of catalogs of several formats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError
from data_sharding.formats.record_format import RecordFormat, RecordIndex
from data_sharding.formats.registry import format_named, format_options
from data_sharding.sample_random import SampleRandom
from data_sharding.storage import ByteSource, FileEntry


@dataclass(frozen=True)
class JoinedFormat(RecordFormat):
    """Each file has the format of the part that it belongs to. Fields have one value for each part.

    Attributes:
        names, options: of its format, as a saved catalog keeps them; options as JSON.
        first_files: number of its first file; the files of a part follow each other.
        with_crcs: whether the catalog has checksums of its records.
    """

    names: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    first_files: tuple[int, ...] = ()
    with_crcs: tuple[bool, ...] = ()

    name: ClassVar[str] = "joined"
    offset_unit: ClassVar[str] = "place"
    is_stored = False

    def __post_init__(self) -> None:  # a saved catalog has lists
        for field, value in list(vars(self).items()):
            object.__setattr__(self, field, tuple(value))
        parts = zip(self.names, self.options, strict=True)
        vars(self)["formats"] = tuple(format_named(name, json.loads(options)) for name, options in parts)

    @classmethod
    def of(cls, formats: Sequence[RecordFormat], first_files: Sequence[int], with_crcs: Sequence[bool]) -> JoinedFormat:
        """That of parts of these formats, which may read objects."""
        options = tuple(json.dumps(format_options(each)) for each in formats)
        made = cls(tuple(each.name for each in formats), options, tuple(first_files), tuple(with_crcs))
        vars(made).update(formats=tuple(formats), is_stored=all(each.is_stored for each in formats))
        # Lengths of files' records are bytes: no length of items is known beside them.
        pads = any(each.pads for each in formats) and not any(each.is_stored for each in formats)
        vars(made).update(draws=any(each.draws for each in formats), pads=pads)
        return made

    @property
    def formats(self) -> tuple[RecordFormat, ...]:
        """Of the parts."""
        formats: tuple[RecordFormat, ...] = vars(self)["formats"]
        return formats

    @property
    def patterns(self) -> tuple[str, ...]:
        return ()

    def parts_of(self, file_ids: NDArray[np.int32]) -> NDArray[np.int64]:
        """Numbers int64[...] of the parts to which files belong."""
        return np.searchsorted(np.array(self.first_files), file_ids, side="right") - 1

    def of_file(self, file_id: int) -> RecordFormat:
        return self.formats[int(self.parts_of(np.array(file_id, np.int32)))]

    def require_items(self) -> None:
        for each in self.formats:
            each.require_items()

    def collate(
        self, items: Sequence[Any], longest: int | None = None, random: SampleRandom | None = None
    ) -> dict[str, NDArray[Any]]:
        """As the first object makes arrays of its items. Raises PlanError: some records are bytes of files."""
        if any(each.is_stored for each in self.formats):
            raise PlanError(
                f"Catalogs of {' and '.join(dict.fromkeys(self.names))} are joined.",
                "Bytes of files become arrays by a function that knows them.",
                "define decode(self, records) in the task; records.sources says which catalog a record comes from.",
            )
        return self.formats[0].collate(items, longest, random)

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:  # noqa: ARG002
        self._refuse()

    def open(self, entry: FileEntry) -> ByteSource:  # noqa: ARG002
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise TypeError("files of joined catalogs are read by their own formats")
