"""From items to arrays: what a `decode` function would do, for items that are numbers, arrays, tensors and pictures."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError, UnlikeItemsError
from data_sharding.objects.arrays import array_of_objects, as_array
from data_sharding.objects.tables import Rows, one_name_twice

Names = Sequence[Any] | str | None
"""Of the parts of an item that is a tuple, or of the item itself; None: items are dicts, or one array ("input"). A part
that is a tuple may have several: ("image", ("box", "label"))."""

_ALONE: Final = "input"


Stack = Callable[[str, Sequence[Any]], NDArray[Any] | None]
"""Makes one array of a part of k items, by the part's name; None: it is stacked as others are."""


def collate(
    items: Sequence[Any], names: Names = None, *, of_batch: bool = False, stack: Stack | None = None
) -> dict[str, NDArray[Any]]:
    """Arrays of k rows from k items: dicts of parts (nested ones get names with a dot), tuples, or single values.

    Python's floats become float32, as models have them, and ints int64. Arrays and tensors keep their dtype, but that
    bfloat16 becomes float32. Pictures of PIL become uint8 [height, width, channels], grey ones [height, width]. Sounds
    of torchcodec become two parts, `array` and `sampling_rate`. Values that are `bytes` stay as they are.

    Args:
        of_batch: `items` is one batch, whose parts are whole arrays.
        stack: of some parts, for example those that are padded.

    Raises:
        PlanError: items are tuples without `names`, or of another length than these, or two parts have one name.
        UnlikeItemsError: items have different parts, or values of one part have different kinds or shapes.
    """
    if isinstance(items, Rows):
        return {name: _one(name, column, stack) for name, column in items.columns.items()}
    parts = parts_of(items, names, "What collate_fn returned" if of_batch else "An item")
    first = parts[0] if parts else {}
    require_same_parts(parts)
    if of_batch:
        return {name: as_array(value, repr(name)) for name, value in first.items()}
    return {name: _one(name, [part[name] for part in parts], stack) for name in first}


def parts_of(items: Sequence[Any], names: Names, what: str = "An item") -> list[dict[str, Any]]:
    """Of each item, its values by name; `what` is what messages call it.

    Raises:
        PlanError: it has another number of parts than `names`.
        UnlikeItemsError: it is None.
    """
    return [_parts(item, names, what) for item in items]


def require_same_parts(items: Sequence[Mapping[str, Any]], of: str = "batch") -> None:
    """Raises UnlikeItemsError: one of these has a part that another one has not. `of` is what they are together."""
    for other in items:
        if odd := sorted(other.keys() ^ items[0].keys()):
            raise UnlikeItemsError(
                f"Items of one {of} have different parts: {', '.join(map(repr, odd))} is in some only.",
                f"A {of} has one array for each part.",
                f"let every item have the same parts{', or give a collate_fn' if of == 'batch' else ''}.",
            )


def of_types(arrays: dict[str, NDArray[Any]], types: Mapping[str, np.dtype[Any]]) -> dict[str, NDArray[Any]]:
    """Arrays of numbers with the dtypes `types`. Raises UnlikeItemsError: these do not hold all values."""
    return {name: _of_type(name, array, types.get(name, array.dtype)) for name, array in arrays.items()}


def _of_type(name: str, array: NDArray[Any], wanted: np.dtype[Any]) -> NDArray[Any]:
    if array.dtype == wanted or array.dtype.kind not in "biuf" or wanted.kind not in "biuf":
        return array
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        raise UnlikeItemsError(
            f"{name!r} is {array.dtype} in some items, and {wanted} in the first one.",
            "All batches have the dtypes of the first item.",
            f"give all items one dtype for {name!r}, for example float32 or int64.",
        )
    with np.errstate(over="ignore"):
        made = array.astype(wanted)
    is_changed = ~np.isfinite(made) & np.isfinite(array) if array.dtype.kind == "f" else made != array
    if is_changed.any():
        raise UnlikeItemsError(
            f"{name!r} is {array.dtype} in some items (one is {array[is_changed].flat[0]}), and {wanted} in the first.",
            f"All batches have the dtypes of the first item, and {wanted} has no such number.",
            f"give all items one dtype for {name!r}, for example float32 or int64.",
        )
    return made


def _one(name: str, values: Any, stack: Stack | None) -> NDArray[Any]:
    made = None if stack is None else stack(name, values)
    if made is not None:
        return made
    is_ragged = isinstance(values, np.ndarray) and values.dtype == object and np.ndim(values[0]) > 0
    return values if isinstance(values, np.ndarray) and not is_ragged else _stacked(name, values)


def _stacked(name: str, values: Sequence[Any]) -> NDArray[Any]:
    _require_one_kind(name, values)
    if isinstance(values[0], bytes):
        return array_of_objects(values)  # numpy's own kind of bytes leaves out zeros at their end
    if isinstance(values[0], int | float | str) and not isinstance(values[0], np.generic):
        with contextlib.suppress(ValueError):  # numpy's, where others are lists
            return as_array(values, repr(name))
    arrays = [whole_part(name, value) for value in values]
    first = arrays[0].shape
    other = next((array.shape for array in arrays if array.shape != first), None)
    if other is not None:
        are_sequences = len(first) == len(other) and first[1:] == other[1:]
        raise UnlikeItemsError(
            f"{name!r} has the shape {list(first)} in one item, and {list(other)} in another.",
            "A batch has one array for each part.",
            f"{f'pad sequences (pad={{{name!r}: 0}}), ' if are_sequences else ''}"
            "make items of one shape, or give a collate_fn.",
        )
    return np.stack(arrays)


def whole_part(name: str, value: Any) -> NDArray[Any]:
    """Of an item. Raises UnlikeItemsError: it is a list or tuple of values of several shapes."""
    try:
        return as_array(value, repr(name))
    except ValueError as error:  # numpy's, of a list or tuple
        raise UnlikeItemsError(
            f"{name!r} of an item is a {type(value).__qualname__} of values of several shapes.",
            "A batch has one array for each part, and numpy makes none of these.",
            "let it be a dict, whose values get names of their own, make them of one shape, or give a collate_fn.",
        ) from error


def _require_one_kind(name: str, values: Sequence[Any]) -> None:
    """Numbers and text in one batch would all become text, and numbers and None objects, without a word."""
    kinds = {"None" if each is None else "text" if isinstance(each, str) else "a number or an array" for each in values}
    if len(kinds) > 1:
        raise UnlikeItemsError(
            f"{name!r} is {' in some items, and '.join(sorted(kinds))} in others.",
            "A batch has one array for each part.",
            "give all items the same kind of value, leave some out, or raise BadRecord for them.",
        )


def _parts(item: Any, names: Names, what: str) -> dict[str, Any]:
    if item is None:
        raise UnlikeItemsError(
            f"{what} is None.", "There is nothing to train on in it.", "return data, leave it out, or raise BadRecord."
        )
    if isinstance(item, Mapping):
        return _flat(item)
    if hasattr(item, "_asdict"):
        return _flat(item._asdict())
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return _flat({field.name: getattr(item, field.name) for field in dataclasses.fields(item)})
    if hasattr(item, "get_all_samples"):
        return _sound(item)
    if isinstance(item, tuple | list):
        return _named(item, names, what)
    if names is not None and not isinstance(names, str) and len(names) != 1:
        raise _wrong_names(1, names, what)
    return {(names if isinstance(names, str) else names[0] if names else _ALONE): item}


def _named(item: Sequence[Any], names: Names, what: str) -> dict[str, Any]:
    if isinstance(names, str):
        if isinstance(item, list) and all(isinstance(each, int | float) for each in item):
            return {names: item}  # one sequence of numbers
        names = (names,)
    if names is None or len(names) != len(item):
        raise _wrong_names(len(item), names, what)
    found = [_named_part(part, name, what) for name, part in zip(names, item, strict=True)]
    if len({name for parts in found for name in parts}) < sum(map(len, found)):
        raise _wrong_names(len(item), names, what)
    return {name: value for parts in found for name, value in parts.items()}


def _named_part(part: Any, name: Any, what: str) -> dict[str, Any]:
    if isinstance(name, str):
        return _flat({name: part})
    if not isinstance(part, tuple | list):
        raise _wrong_names(1, name, f"A part of {what[0].lower()}{what[1:]}")
    return _named(part, name, f"A part of {what[0].lower()}{what[1:]}")


def _flat(item: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in item.items():
        inner = _sound(value) if hasattr(value, "get_all_samples") else value
        parts = _flat(inner, f"{prefix}{name}.") if isinstance(inner, Mapping) else {f"{prefix}{name}": value}
        if twice := found.keys() & parts.keys():
            raise one_name_twice("parts of an item", min(twice))
        found.update(parts)
    return found


def _sound(decoder: Any) -> dict[str, Any]:
    """All of what a torchcodec.decoders.AudioDecoder has, under Hugging Face's names for the parts of an Audio.

    `array` is float32 [samples], the mean of the channels, and `sampling_rate` is in Hz.
    """
    samples = decoder.get_all_samples()
    return {"array": as_array(samples.data).mean(axis=0), "sampling_rate": samples.sample_rate}


def _wrong_names(parts: int, names: Names, what: str) -> PlanError:
    given = "no names were given" if names is None else f"the names are {tuple(names)!r}"
    return PlanError(
        f"{what} has {parts} part{'s' if parts > 1 else ''}, and {given}.",
        "measure() finds each part of a batch by its name.",
        'give one name for each part, all different, for example names=("image", "label"); one text, such as '
        'names="tokens", is for items that are each one array or a list of numbers.',
    )
