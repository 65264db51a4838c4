"""Named arrays: the state of training as it is copied, saved, broadcast and compared."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from hvdtrain.errors import UsageError

State = dict[str, NDArray[Any]]
"""Named arrays. "model/…" are weights and buffers, "optimizer/…" the optimizer's slots."""

NO_STATE: Mapping[str, NDArray[Any]] = MappingProxyType({})


def require_fit(
    saved: Mapping[str, Any],
    needed: Mapping[str, tuple[int, ...]],
    fact: str,
    hint: str = "build the model with the options it was saved with, or train from the start with --resume never.",
) -> None:
    """Raise `UsageError`, with `fact` and the names, unless the saved arrays have the needed names and shapes."""
    wrong = sorted(saved.keys() ^ needed.keys())
    wrong += sorted(n for n in saved.keys() & needed.keys() if tuple(saved[n].shape) != needed[n])
    if wrong:
        some = ", ".join(wrong[:5]) + (" …" if len(wrong) > 5 else "")
        raise UsageError(fact, f"Missing, unexpected or of another shape: {some}.", hint)
