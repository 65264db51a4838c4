"""The values of an elastic state, such as a step, a list or a dict, in both frameworks."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

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
        """Objects that the state keeps in another way, such as its model: a value may refer to them."""
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
        values = self._bcast_object({name: getattr(self, name) for name in self._saved_state})
        for name, value in values.items():
            setattr(self, name, value)
        self._saved_state = _copies(values, self._not_copied())


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
