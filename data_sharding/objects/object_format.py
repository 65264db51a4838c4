"""The format of a catalog whose records are an object's items, and not bytes of files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import ChangedDataError, PlanError
from data_sharding.formats.record_format import Damaged, RecordFormat, RecordIndex
from data_sharding.objects.collate import Names, Stack, collate, of_types, parts_of
from data_sharding.objects.identity import identity_of
from data_sharding.objects.item_draws import batch_made_alike, draws_numbers, made_alike
from data_sharding.objects.items import ItemSource, source_of
from data_sharding.objects.object_columns import require_lengths
from data_sharding.objects.padding import Padding
from data_sharding.sample_random import SampleRandom
from data_sharding.storage import ByteSource, FileEntry

_MEASURED_TOGETHER: Final = 256

CollateFunction = Callable[[list[Any]], Any]
"""torch's `collate_fn`: from a list of items to a batch."""


@dataclass(frozen=True)
class ObjectFormat(RecordFormat):
    """Items of an object. One that comes from a saved catalog knows the kind of the object, and cannot read.

    Attributes: `kind`: the name of the object's class.
    """

    kind: str = ""

    name: ClassVar[str] = "object"
    offset_unit: ClassVar[str] = "item"
    is_stored: ClassVar[bool] = False

    @classmethod
    def of(
        cls,
        dataset: Any,
        names: Names,
        collate_fn: CollateFunction | None,
        padding: Padding | None,
        draws: bool | None = None,
    ) -> "ObjectFormat":
        """That of an object with `len` and `[]` or `__getitems__`; arguments as of `Catalog.of`.

        Raises PlanError: it has none of these.
        """
        if isinstance(names, Iterable) and not isinstance(names, str):
            names = tuple(names)
        _require_usable(names, collate_fn)
        if padding is not None and collate_fn is not None:
            raise PlanError(
                "pad and collate_fn were given.",
                "Each of them makes a batch of items.",
                "pad in the collate_fn, or leave it out.",
            )
        made = cls(type(dataset).__qualname__)
        source = source_of(dataset)
        # No fields: those are the options that a saved catalog keeps.
        vars(made).update(_source=source, _names=names, _collate_fn=collate_fn, _length=len(source))
        vars(made).update(_padding=padding, pads=padding is not None)
        vars(made).update(draws=draws_numbers(source, collate_fn) if draws is None else draws)
        return made

    @property
    def patterns(self) -> tuple[str, ...]:
        return ()

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:  # noqa: ARG002
        self._refuse()

    def open(self, entry: FileEntry) -> ByteSource:  # noqa: ARG002
        self._refuse()

    @property
    def length(self) -> int:
        """Items when the catalog was made."""
        return int(vars(self)["_length"])

    def items(self, numbers: NDArray[np.int64], random: SampleRandom | None) -> Sequence[Any]:
        """Items numbers int64[k]. Where making one draws random numbers, these belong to (seed, epoch, item).

        Raises:
            ChangedDataError: the object has another length than at first.
            PlanError: the object is not here.
        """
        source: ItemSource | None = vars(self).get("_source")
        if source is None:
            self._refuse()
        if len(source) != vars(self)["_length"]:
            raise ChangedDataError(
                f"The {self.kind} had {vars(self)['_length']} items and has {len(source)} now.",
                "The plan of an epoch counts on the first number.",
                "make another catalog of it, or do not change it during training.",
            )
        if not self.draws:
            return source.items(numbers)
        return made_alike(source.items, numbers, random or SampleRandom(0, 0, numbers))

    @property
    def collation(self) -> Any:
        given: dict[str, Any] = vars(self)
        names = given.get("_names")
        return names if names is None or isinstance(names, str) else tuple(names), *map(
            given.get, ("_collate_fn", "_padding")
        )

    def require_items(self) -> None:
        """Raises PlanError: the first item does not have the parts that `names` says."""
        if vars(self).get("_collate_fn") is None:
            first = [item for item in self.items(np.array([0]), None) if not isinstance(item, Damaged)]
            parts_of(first, vars(self)["_names"])

    def lengths(self, given: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Of all items int64[N]: those that are given, or by the padded parts of each item, which is made for that.

        Raises PlanError: a length is below 0, or beyond all to which items are padded.
        """
        padding: Padding | None = vars(self)["_padding"]
        if given is not None:
            require_lengths(given)
            if padding is not None:
                padding.require_fits(int(given.max()))
            return given
        if padding is None:
            return np.ones(self.length, np.int64)
        found: list[int] = []
        for first in range(0, self.length, _MEASURED_TOGETHER):
            items = self.items(np.arange(first, min(first + _MEASURED_TOGETHER, self.length)), None)
            found += [_length_of(item, vars(self)["_names"], padding) for item in items]
        padding.require_fits(max(found, default=0))
        return np.array(found, np.int64)

    def collate(
        self, items: Sequence[Any], longest: int | None = None, random: SampleRandom | None = None
    ) -> dict[str, NDArray[Any]]:
        """Arrays of k rows, by `collate_fn` where the user has one; what that draws belongs to the first row."""
        function: CollateFunction | None = vars(self).get("_collate_fn")
        names: Names = vars(self).get("_names")
        if function is not None:
            drawn = random if self.draws else None
            batch = function(list(items)) if drawn is None else batch_made_alike(function, items, drawn)
            return collate([batch], names, of_batch=True)
        return of_types(collate(items, names, stack=self._stack(longest)), self._first_types(names))

    def _stack(self, longest: int | None) -> Stack:
        padding: Padding | None = vars(self).get("_padding")
        if padding is None:
            return lambda _name, _values: None
        return lambda name, values: padding.padded(name, values, longest) if name in padding.values else None

    def _first_types(self, names: Names) -> dict[str, np.dtype[Any]]:
        """dtypes of the parts of the first item that is not refused, which those of all others take: a batch's do not
        depend on its items."""
        if "_types" not in vars(self):
            vars(self)["_types"] = self._types_of_first(names)
        types: dict[str, np.dtype[Any]] = vars(self)["_types"]
        return types

    def _types_of_first(self, names: Names) -> dict[str, np.dtype[Any]]:
        found: dict[str, np.dtype[Any]] = {}
        unknown: dict[str, np.dtype[Any]] = {}
        for items in islice(self._sound_items(), _MEASURED_TOGETHER):
            untyped = self._untyped(items[0], names)
            for name, array in collate(items, names, stack=self._stack(None)).items():
                (unknown if name in untyped else found).setdefault(name, array.dtype)
            if unknown.keys() <= found.keys():
                break
        return unknown | found

    def _sound_items(self) -> Iterator[Sequence[Any]]:
        """Each item that is not refused, as a batch of its own. An error of others than the first comes where they are
        used."""
        for number in range(self.length):
            try:
                items = self.items(np.array([number]), None)
            except Exception:
                if number == 0:
                    raise
                return
            if not isinstance(items[0], Damaged):
                yield items

    def _untyped(self, item: Any, names: Names) -> set[str]:
        """Padded parts that are lists of Python without an element, which have no type: the next ones' counts."""
        padding: Padding | None = vars(self).get("_padding")
        if padding is None:
            return set()
        parts = parts_of([item], names)[0]
        return {name for name in padding.values if not hasattr(parts[name], "dtype") and not len(parts[name])}

    def identity(self) -> str:
        """What the object holds, as far as that can be told; see `identity_of`."""
        return identity_of(vars(self)["_source"])

    def _refuse(self) -> NoReturn:
        raise PlanError(
            f"The records of this catalog are the items of a {self.kind or 'Python object'}.",
            "A saved catalog has their numbers only.",
            "make the catalog of the object itself: Catalog.of(dataset), or data.dataset(dataset) in a task.",
        )


def _require_usable(names: Any, collate_fn: Any) -> None:
    """Raise PlanError unless these are what `Catalog.of` takes."""
    if collate_fn is not None and not callable(collate_fn):
        raise PlanError(
            f"collate_fn is {collate_fn!r}.",
            "It makes a batch of a list of items.",
            "give a function, or leave it out.",
        )
    if not _are_names(names):
        raise PlanError(
            f"names is {names!r}.",
            "A name is a text; a part that is a tuple has several.",
            'give for example names=("image", "label"), or names="tokens" for items of one part.',
        )


def _are_names(names: Any) -> bool:
    if names is None or isinstance(names, str):
        return True
    return isinstance(names, Sequence) and all(each is not None and _are_names(each) for each in names)


def _length_of(item: Any, names: Names, padding: Padding) -> int:
    return 1 if isinstance(item, Damaged) else padding.length_of(parts_of([item], names)[0])
