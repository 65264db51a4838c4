"""Parts of items that differ in length, such as sequences of tokens: padded to one length a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_sharding.checks import at_least
from data_sharding.errors import PlanError
from data_sharding.objects.collate import as_array


@dataclass(frozen=True)
class Padding:
    """Which parts are padded at their end along the first dimension.

    Attributes:
        values: what each part is filled up with, by its name.
        lengths: lengths to which batches are padded, ascending; without, to the longest item of the global batch.
    """

    values: Mapping[str, float]
    lengths: tuple[int, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, float] | None, lengths: Sequence[int]) -> "Padding | None":
        """Raises PlanError: lengths without parts, or below 1."""
        if values is None and not lengths:
            return None
        if not isinstance(values, Mapping) or not values:
            raise PlanError(
                f"pad={values!r} was given{' with pad_to' if lengths else ''}.",
                "It names the parts of items that differ in length, and what each is filled up with.",
                'give for example pad={"tokens": 0, "labels": -100}.',
            )
        for length in lengths:
            at_least(1, "pad_to", length, "Batches are padded to a length.")
        return cls(dict(values), tuple(sorted(lengths)))

    def require_fits(self, longest: int) -> None:
        """Raises PlanError: an item of that length is longer than all lengths to pad to."""
        if self.lengths and longest > self.lengths[-1]:
            raise PlanError(
                f"The longest item has {longest:,} elements, and pad_to ends at {self.lengths[-1]:,}.",
                "An item is not cut off.",
                f"cut such items in the object, or add a length of {longest:,} or more to pad_to.",
            )

    def length_of(self, parts: Mapping[str, Any]) -> int:
        """Of an item, by its parts: that of its longest padded part. Raises PlanError: it does not have one of them."""
        return max(len(self._part(parts, name)) for name in self.values)

    def padded(self, name: str, values: Sequence[Any], longest: int | None) -> NDArray[Any]:
        """The part of k items as one array [k, length, ...]: of the length that `longest`, or the longest, leads to."""
        arrays = [as_array(value) for value in values]
        needed = max(longest or 0, *(len(array) for array in arrays))
        length = next((each for each in self.lengths if each >= needed), needed)
        # An empty list of Python does not say of which type its elements would be.
        typed = [array for array, value in zip(arrays, values, strict=True) if len(array) or hasattr(value, "dtype")]
        shape, dtype = (typed[0].shape[1:], typed[0].dtype) if typed else ((), np.dtype(np.int64))
        made = np.full((len(arrays), length, *shape), self.values[name], dtype)
        for row, array in zip(made, arrays, strict=True):
            if len(array):
                row[: len(array)] = array
        return made

    def _part(self, parts: Mapping[str, Any], name: str) -> Any:
        if name not in parts or np.ndim(parts[name]) == 0:
            raise PlanError(
                f"pad names {name!r}, and an item has {', '.join(map(repr, parts))}.",
                "What is padded is a part of each item with a length.",
                "name parts of the items that are arrays.",
            )
        return parts[name]
