"""What each rank of a called function has come to, as a file in the call's private folder."""

import pickle
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.files import write_atomically
from hvdtrain.tasks.by_value import packed, unpacked

CALL: Final = "call.pickle"
"""The file with (function, args, kwargs, start_timeout)."""

_HINT: Final = (
    "return numbers, text, arrays, or lists and dicts of them; a generator or a connection stays in its process."
)


@dataclass(frozen=True, slots=True)
class RankFailure:
    """An exception that the function raised on one rank."""

    what: str  # class and message
    traceback: str
    error: BaseException | None  # None where it cannot be pickled


def write_value(folder: Path, rank: int, name: str, value: Any) -> None:
    """The function `name` returned `value`. Raises UsageError: that cannot be pickled."""
    content = packed(value, f"The result of {name}() on rank {rank}, of type {type(value).__name__},", _HINT)
    write_atomically(_value_file(folder, rank), content)


def write_exception(folder: Path, rank: int, error: BaseException) -> None:
    """The function raised `error`."""
    lines = "".join(traceback.format_exception(error))
    what = "".join(traceback.format_exception_only(error)).strip()
    try:
        content = packed(RankFailure(what, lines, error), "", "")
        _require_loadable(content)
    except UsageError:
        content = packed(RankFailure(what, lines, None), "", "")
    write_atomically(_failure_file(folder, rank), content)


def read_values(folder: Path, ranks: int) -> list[Any]:
    """The values of all ranks, in their order. Raises HvdtrainError: a rank has left none, though all ended well."""
    missing = [rank for rank in range(ranks) if not _value_file(folder, rank).is_file()]
    if missing:
        raise HvdtrainError(
            f"There is no result of rank {', '.join(map(str, missing))} in {folder}.",
            "The workers have ended without an error: the function has ended its process, as os._exit(0) does; or the "
            "workers of other hosts have written it to another folder of that name.",
            "let the function return; with hosts=, name a folder that all of them share by shared_folder=.",
        )
    return [unpacked(_value_file(folder, rank), f"the result of rank {rank}") for rank in range(ranks)]


def read_failure(folder: Path, rank: int) -> RankFailure | None:
    """What the function raised on that rank; None where it raised nothing."""
    file = _failure_file(folder, rank)
    return unpacked(file, f"the exception of rank {rank}") if file.is_file() else None


def _value_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.value"


def _failure_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.failure"


def _require_loadable(content: bytes) -> None:
    """Exceptions whose constructor takes other arguments than `args` can be pickled and not loaded."""
    try:
        pickle.loads(content)
    except Exception as error:
        raise UsageError("It cannot be loaded.", str(error), "") from error
