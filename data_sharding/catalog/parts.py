"""Parts of a catalog: each is a catalog, with a plan, a fingerprint and a proof of its own."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from data_sharding.catalog.catalog_file import COLUMNS
from data_sharding.catalog.group_parts import folds_of_groups, split_groups
from data_sharding.checks import whole
from data_sharding.errors import PlanError
from data_sharding.objects.object_columns import as_int64
from data_sharding.permutation import Permutation
from data_sharding.reading.record_reader import RecordReader
from data_sharding.reading.record_table import Damage, RecordTable

if TYPE_CHECKING:
    from data_sharding.draws.draw_rule import DrawRule
    from data_sharding.formats.record_format import RecordBatch, RecordFormat
    from data_sharding.storage import FileEntry

_READ_AT_ONCE: Final = 1024


class Parts(RecordTable):
    """The methods of `Catalog` that make others of it. Which records are where depends on the arguments only."""

    if TYPE_CHECKING:

        @classmethod
        def _checked(
            cls,
            kind: RecordFormat,
            files: tuple[FileEntry, ...],
            columns: dict[str, Any],
            damage: tuple[Damage, ...],
            draws: DrawRule | None = None,
        ) -> Self: ...

    def take(self, ids: ArrayLike) -> Self:
        """Records ids int64[k], in this order; one that is named twice is there twice.

        Raises PlanError: an id is not in the catalog, there is none, or an epoch draws records more or less than once.
        """
        require_each_once(self)
        chosen = np.asarray(ids)
        are_numbers = chosen.ndim == 1 and chosen.dtype.kind in "iu"
        if not are_numbers or not len(chosen) or chosen.min() < 0 or chosen.max() >= len(self):
            what = f"an array of {chosen.dtype} of shape {list(chosen.shape)}"
            span = f"ids from {chosen.min()} to {chosen.max()}" if are_numbers and len(chosen) else what
            raise PlanError(
                f"A part of {span} was asked for.",
                f"The catalog has records 0 to {len(self) - 1}.",
                "give whole numbers of records, at least one; of a mask, np.flatnonzero(mask).",
            )
        columns = {name: _rows(getattr(self, name), chosen) for name in COLUMNS}
        part = self._checked(self.format, self.files, columns, self.damage)
        # Where framing ends is not to be seen from some of the records.
        vars(part).update(lost_bytes=self.lost_bytes, source_files=self.source_files)
        return part

    def with_labels(self, labels: ArrayLike | None) -> Self:
        """The same records, with these labels int64[N], or without labels.

        So catalogs can be joined of which some have labels in the records, and others beside them.

        Raises PlanError: there is not one whole number for each record, or an epoch draws records more or less than
        once.
        """
        require_each_once(self)
        given = None if labels is None else np.asarray(labels)
        if given is not None and (given.shape != (len(self),) or given.dtype.kind not in "iu"):
            raise PlanError(
                f"The labels are an array of {given.dtype} of shape {list(given.shape)}.",
                f"Each of the {len(self):,} records has one whole number there.",
                "give an array of int64, or None for no labels.",
            )
        columns = {name: getattr(self, name) for name in COLUMNS}
        columns["labels"] = None if given is None else as_int64("labels", given)
        made = self._checked(self.format, self.files, columns, self.damage)
        vars(made).update(lost_bytes=self.lost_bytes, source_files=self.source_files)
        return made

    def where(
        self,
        labels: ArrayLike | None = None,
        fn: Callable[[RecordBatch], ArrayLike] | None = None,
    ) -> Self:
        """The records with one of these labels, and of which `fn` says True: bool[k] for a batch of k records.

        `fn` reads every record once, but damaged ones, which are kept: they are found again where they are read.

        Raises PlanError: there are no labels, or no record is left.
        """
        keep = np.ones(len(self), np.bool_)
        if labels is not None:
            keep &= np.isin(_labels(self), np.atleast_1d(np.asarray(labels)))
        if fn is not None:
            keep &= _asked(self, fn)
        if not keep.any():
            raise _nothing_left(f"None of {len(self):,} records is left by where().")
        return self.take(np.flatnonzero(keep))

    def split(
        self,
        fraction: float,
        *,
        seed: int = 0,
        groups: ArrayLike | None = None,
        stratify: bool = False,
    ) -> tuple[Self, Self]:
        """Two parts, drawn at random: `fraction` of the records, and the rest; each in the catalog's order.

        Args:
            groups: one number or text for each record: those with the same one stay together, and the parts come as
                close to the fraction as whole groups do, with one group at least in each.
            stratify: take the fraction of each label; with `groups`, as nearly as whole groups allow.

        Raises PlanError: a part would be empty, or there are no labels.
        """
        order = _order(self, seed, stratify, groups)
        if not isinstance(fraction, Real):
            raise PlanError(
                f"A split of {fraction!r} was asked for.", "It must be a number.", "split(0.9), for example."
            )
        if not 0 < fraction < 1:
            raise _nothing_left(f"A split of {fraction:g} leaves one part empty.")
        if groups is not None:
            labels = _labels(self) if stratify else None
            first = split_groups(np.asarray(groups), seed, fraction, labels)
            if first.all():
                raise PlanError(
                    f"A split was asked for with groups, and all {len(self):,} records are of one group.",
                    "A group stays together, so one part would be empty.",
                    "give groups of which there are at least two, or leave them out.",
                )
        else:
            shares = np.floor(np.arange(len(self) + 1) * fraction + 1e-9)
            first = np.zeros(len(self), np.bool_)
            first[order] = shares[1:] > shares[:-1]
        if first.all() or not first.any():
            raise _nothing_left(f"A split of {fraction:g} of {len(self):,} records leaves one part empty.")
        return self.take(np.flatnonzero(first)), self.take(np.flatnonzero(~first))

    def folds(
        self,
        count: int,
        fold: int,
        *,
        seed: int = 0,
        groups: ArrayLike | None = None,
        stratify: bool = False,
    ) -> tuple[Self, Self]:
        """Cross-validation: (training, validation) of fold 0 ≤ `fold` < `count`. Each record is in one validation.

        Other arguments and errors as `split`.
        """
        order = _order(self, seed, stratify, groups)
        if not 2 <= whole("count", count) <= len(self) or not 0 <= whole("fold", fold) < count:
            raise PlanError(
                f"Fold {fold} of {count} was asked for.",
                f"There are at least 2 folds, no more than the {len(self):,} records, and they count from 0.",
                f"give 2 to {len(self):,} folds, and the number of one of them from 0 on.",
            )
        if groups is not None:
            numbers = folds_of_groups(np.asarray(groups), seed, count, _labels(self) if stratify else None)
        else:
            numbers = np.empty(len(self), np.int64)
            numbers[order] = np.arange(len(self)) % count
        inside = numbers == fold
        if inside.all() or not inside.any():
            raise _nothing_left(f"Fold {fold} of {count} has {int(inside.sum()):,} of {len(self):,} records.")
        return self.take(np.flatnonzero(~inside)), self.take(np.flatnonzero(inside))


def _rows(column: NDArray[Any] | None, ids: NDArray[Any]) -> NDArray[Any] | None:
    return None if column is None else column[ids]


def _labels(catalog: RecordTable) -> NDArray[np.int64]:
    if catalog.labels is None:
        raise PlanError(
            "The catalog has no labels.",
            "Its format keeps none beside the records, or none were given for an object.",
            "give them: catalog.with_labels(LABELS); or choose records by where(fn=…) or take(ids).",
        )
    return catalog.labels


def _order(catalog: RecordTable, seed: int, stratify: bool, groups: ArrayLike | None) -> NDArray[np.int64]:
    """All ids int64[N], shuffled; those of one label behind each other with `stratify`. PlanError: as `split`."""
    if groups is not None and np.shape(groups) != (len(catalog),):
        raise PlanError(
            f"groups of shape {list(np.shape(groups))} was given.",
            f"It has one value for each of {len(catalog):,} records.",
            "give one number or text a record.",
        )
    shuffled = Permutation(len(catalog), seed, 0)(np.arange(len(catalog)))
    return shuffled[np.argsort(_labels(catalog)[shuffled], kind="stable")] if stratify else shuffled


def _asked(catalog: RecordTable, fn: Callable[[RecordBatch], ArrayLike]) -> NDArray[np.bool_]:
    said: list[NDArray[Any]] = []
    with RecordReader(catalog, on_corrupt="mask") as reader:
        for start in range(0, len(catalog), _READ_AT_ONCE):
            ids = np.arange(start, min(start + _READ_AT_ONCE, len(catalog)))
            records = reader.load(ids)
            said.append(np.asarray(fn(records)))
            if said[-1].shape != ids.shape or said[-1].dtype != np.bool_:
                raise PlanError(
                    f"The function of where() returned {said[-1].dtype}{list(said[-1].shape)} for {len(ids)} records.",
                    "It says of each record whether it is kept.",
                    "return an array of bool with one value a record.",
                )
            said[-1] = said[-1] | ~records.intact
    return np.concatenate(said)


def require_each_once(catalog: RecordTable) -> None:
    """Raises PlanError: an epoch draws the catalog's records more or less often than once."""
    if catalog.draws is not None:
        raise PlanError(
            f"A part of a {catalog.draws.describe()['rule']} catalog was asked for, or it was to be joined.",
            "It draws records more or less often than once an epoch, so that a part of them has no meaning.",
            "make parts of its sources first; mix(), repeat() and sample() come last.",
        )


def _nothing_left(fact: str) -> PlanError:
    return PlanError(
        fact, "A part without a record cannot be planned.", "choose a part that holds at least one record."
    )
