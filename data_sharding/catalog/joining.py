"""Several catalogs in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from data_sharding.catalog.catalog_file import COLUMNS
from data_sharding.catalog.parts import Parts, require_each_once
from data_sharding.errors import PlanError
from data_sharding.formats.joined import JoinedFormat

if TYPE_CHECKING:
    from data_sharding.formats.record_format import RecordFormat
    from data_sharding.reading.record_table import RecordTable


class Joining(Parts):
    """The method of `Catalog` that makes one of several."""

    @classmethod
    def concat(cls, *catalogs: Self) -> Self:
        """All records of several catalogs, in this order. `records.sources` tells a decode function from which of them,
        by its place, a record comes.

        Raises PlanError: there is none, some have labels and others not, or objects become arrays in unlike ways.
        """
        _require_alike(catalogs)
        firsts = np.cumsum([0, *(len(each.files) for each in catalogs)])
        columns: dict[str, Any] = {
            "file_ids": np.concatenate(
                [each.file_ids + first for each, first in zip(catalogs, firsts, strict=False)]
            ).astype(np.int32),
            "crcs": _checksums(catalogs),
        }
        for name in COLUMNS.keys() - columns.keys():
            parts = [getattr(each, name) for each in catalogs]
            columns[name] = None if any(part is None for part in parts) else np.concatenate(parts)
        files = tuple(file for each in catalogs for file in each.files)
        damage = tuple(found for each in catalogs for found in each.damage)
        made = cls._checked(_format_of(catalogs), files, columns, damage)
        vars(made).update(
            lost_bytes=sum(each.lost_bytes for each in catalogs), source_files=tuple(firsts[:-1].tolist())
        )
        return made


def _format_of(catalogs: Sequence[RecordTable]) -> RecordFormat:
    kinds = {each.format if each.format.is_stored else id(each.format) for each in catalogs}
    if len(kinds) == 1 and len({each.crcs is None for each in catalogs}) == 1:
        return catalogs[0].format
    _require_one_collation([each.format for each in catalogs])
    parts, first_file = list[tuple["RecordFormat", int, bool]](), 0
    for each in catalogs:
        parts += [(kind, first_file + first, has_crcs) for kind, first, has_crcs in _parts_of(each)]
        first_file += len(each.files)
    return JoinedFormat.of(*zip(*parts, strict=True))


def _require_one_collation(formats: Sequence[RecordFormat]) -> None:
    parts = [part for kind in formats for part in (kind.formats if isinstance(kind, JoinedFormat) else (kind,))]
    objects = [part.collation for part in parts if not part.is_stored]
    if any(collation != objects[0] for collation in objects):
        raise PlanError(
            "Objects were to be joined that were given other names, pad, pad_to or collate_fn than each other.",
            "A batch has items of several of them, and is made in one way.",
            "give all of them the same ones, or let their items be dicts of the same parts.",
        )


def _parts_of(catalog: RecordTable) -> Iterator[tuple[RecordFormat, int, bool]]:
    """Format, first file and whether there are checksums, of each part of what may have been joined before."""
    kind = catalog.format
    if isinstance(kind, JoinedFormat):
        yield from zip(kind.formats, kind.first_files, kind.with_crcs, strict=True)
    else:
        yield kind, 0, catalog.crcs is not None


def _checksums(catalogs: Sequence[RecordTable]) -> Any:
    """uint32[N]; 0 where a catalog has none, and None if no one has."""
    if all(each.crcs is None for each in catalogs):
        return None
    return np.concatenate([np.zeros(len(each), np.uint32) if each.crcs is None else each.crcs for each in catalogs])


def _require_alike(catalogs: Sequence[RecordTable]) -> None:
    if not catalogs:
        raise PlanError("No catalogs were given.", "There is nothing to join.", "give one or more.")
    for each in catalogs:
        if not isinstance(each, Parts):
            raise PlanError(
                f"A {type(each).__name__} was to be joined or mixed.",
                "Catalogs are.",
                "make one of it: Catalog.index(FILES), Catalog.of(DATASET), data.catalog or data.dataset in a task.",
            )
        require_each_once(each)
    if len({each.labels is None for each in catalogs}) > 1:
        raise PlanError(
            "Some of the catalogs have labels, and others have none.",
            "The records of one data set are alike.",
            "give labels to all of them (catalog.with_labels(LABELS)), or to none (catalog.with_labels(None)).",
        )
