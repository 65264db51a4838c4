"""The values of an elastic state, such as a step, a list or a dict, in both frameworks."""

import copy
import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import cloudpickle
from horovod.common.elastic import ObjectState

from hvdtrain.errors import UsageError


class CopiedValues(ObjectState):  # type: ignore[misc]
    """Horovod's state of values, which keeps copies of them.

    Horovod keeps the objects: what a loop has added to a list since the last commit would stay in it after a loss, and
    be added again.
    """

    _saved_state: dict[str, Any]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._saved_state = _copies(self._saved_state, self._not_copied())

    def _not_copied(self) -> Iterable[Any]:
        """Objects that the state keeps in another way, such as its model, in the same order on all ranks. A value may
        refer to them, and does so after a loss, and on other ranks."""
        return ()

    def save(self) -> None:
        """Keep copies of the values as they are now. Raises `UsageError`: one cannot be copied."""
        super().save()
        self._saved_state = _copies(self._saved_state, self._not_copied())

    def restore(self) -> None:
        """Go back to the values that were kept last. These are other objects than before."""
        super().restore()
        self._saved_state = _copies(self._saved_state, self._not_copied())

    def sync(self) -> None:
        """Give all ranks the first rank's values as they are now, as its weights are. Collective."""
        if not self._saved_state:
            return
        values = {name: getattr(self, name) for name in self._saved_state}
        values = _received(self._bcast_object(_sent(values, self._not_copied())), self._not_copied())
        for name, value in values.items():
            setattr(self, name, value)
        self._saved_state = _copies(values, self._not_copied())


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Of a thing that all ranks have, its place in their lists of them."""

    def __init__(self, file: io.BytesIO, common: Iterable[Any]) -> None:
        super().__init__(file)
        self._common = list(common)  # which holds them, so that no other object gets the number of one
        self._places = {id(thing): place for place, thing in enumerate(self._common)}

    def persistent_id(self, thing: Any) -> int | None:
        return self._places.get(id(thing))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, common: Iterable[Any]) -> None:
        super().__init__(file)
        self._common = list(common)

    def persistent_load(self, place: int) -> Any:
        return self._common[place]


def _sent(values: Mapping[str, Any], common: Iterable[Any]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, common).dump(dict(values))
    return file.getvalue()


def _received(content: bytes, common: Iterable[Any]) -> dict[str, Any]:
    values: dict[str, Any] = _Unpickler(io.BytesIO(content), common).load()
    return values


def _copies(values: Mapping[str, Any], not_copied: Iterable[Any]) -> dict[str, Any]:
    memo = {id(thing): thing for thing in not_copied}  # and values that share an object share its copy
    copies = {}
    for name, value in values.items():
        try:
            copies[name] = copy.deepcopy(value, memo)
        except Exception as error:  # whatever a class of the user's raises
            raise UsageError(
                f"The value {name} of the elastic state, of type {type(value).__name__}, cannot be copied: {error}.",
                "A commit keeps a copy, to which the others go back when a worker is lost.",
                "keep numbers, arrays or collections of them: loss.item(), for example, in place of a loss.",
            ) from error
    return copies
