"""Notices a `decode` that draws from random generators of the process.

What these give depends on which thread or process draws first, and on how many there are. A draw changes the state of a
generator. Between the moment at which reading begins and the arrival of the first batch only `decode` runs, as the main
thread waits: so states are compared there. In a decode process nothing else runs.
"""

import logging
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from data_sharding import DecodeProcesses, LoadedBatch, RecordBatch, SampleRandom
from data_sharding.loading.decoding import Decoded, name_of
from hvdtrain.data.printed_lines import take_prints
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task

_log = logging.getLogger("hvdtrain.data")

_NAMES: Final = ("Python's random", "numpy.random", "torch's generator")
_TORCH: Final = 2
_OWN: Final = "a generator of its own"
_REPORT: Final = "hvdtrain: draws"
"""An array beside the features, by which a process reports the numbers of the generators that `decode` drew from."""


class GeneratorStates:
    """The states of the generators of this process, in the order of `_NAMES`; torch's where torch is imported."""

    def __init__(self) -> None:
        self._torch = torch = sys.modules.get("torch")
        self._all = random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()

    def drawn(self) -> list[int]:
        """Numbers of those that have drawn since."""
        pairs = zip(self._all, GeneratorStates()._all, strict=True)
        return [number for number, (before, now) in enumerate(pairs) if not _equal(before, now)]

    def drawn_outside_torch(self) -> list[str]:
        """The names of those that have drawn since, but for torch's."""
        return [_NAMES[number] for number in self.drawn() if number < _TORCH]

    def restore(self) -> None:
        random.setstate(self._all[0])
        np.random.set_state(self._all[1])
        if self._torch is not None:
            self._torch.set_rng_state(self._all[2])


def _equal(before: Any, now: Any) -> bool:
    if isinstance(before, tuple):
        return all(_equal(*pair) for pair in zip(before, now, strict=True))
    return before is None or bool(np.array_equal(before, now))  # torch may have been imported meanwhile


class ReportingDecode:
    """In a decode process: `decode`, whose first result reports what it has drawn from.

    A process decodes one batch at a time, so a function that seeds a generator for each record before it draws is right
    there: called again it gives the same arrays, and leaves the generators in the same states.
    """

    def __init__(self, decode: Callable[[RecordBatch], dict[str, NDArray[Any]]]) -> None:
        self._decode = self.__wrapped__ = decode  # which messages name
        self._has_reported = False

    def __call__(self, records: RecordBatch) -> dict[str, NDArray[Any]]:
        if self._has_reported:
            return self._decode(records)
        before = GeneratorStates()
        features = self._decode(records)
        self._has_reported = True
        drawn = before.drawn()
        if not drawn or not isinstance(features, Mapping) or self._is_seeded(features, records):
            return features
        return {**features, _REPORT: np.tile(np.array(drawn, np.uint8), (len(records), 1))}

    def _is_seeded(self, features: Mapping[str, NDArray[Any]], records: RecordBatch) -> bool:
        kept = {name: np.array(array) for name, array in features.items()}  # `decode` may use its memory again
        before = GeneratorStates()
        again = self._decode(records)
        return not before.drawn() and same_arrays(kept, again)


class ReportedProcesses(DecodeProcesses):
    """`DecodeProcesses` of a `ReportingDecode`. `drawn` has the numbers of generators in all reports so far."""

    drawn: frozenset[int] = frozenset()

    def __call__(
        self,
        ids: NDArray[np.int64],
        random: SampleRandom | None,
        longest: int | None = None,
        ranges: NDArray[np.int64] | None = None,
    ) -> Decoded:
        decoded = super().__call__(ids, random, longest, ranges)
        take_prints(decoded.features)
        report = decoded.features.pop(_REPORT, None)
        if report is not None:
            self.drawn |= frozenset(report[0].tolist())
        return decoded


def same_arrays(first: Mapping[str, NDArray[Any]], second: Mapping[str, NDArray[Any]]) -> bool:
    """Whether both have the same names, dtypes, shapes and, to the last bit, values."""
    return first.keys() == second.keys() and all(
        a.dtype == b.dtype and a.shape == b.shape and (np.array_equal(a, b) or a.tobytes() == b.tobytes())
        for a, b in ((first[name], second[name]) for name in first)
    )


class DrawWatch:
    """Looks at the first batch that a source delivers, and says once from what `decode` drew. Made before decoding.

    Args:
        refuses: whether draws end the run (--deterministic) or are a warning.
        processes: that decode; None: threads do.
        decoded_again: the first batch's records, ids int64[k], decoded once more; None where none can be read twice.
            Asked for if `refuses`: it shows a generator of the function's own.
        kind: of the object whose items `decode` gets; "": it gets bytes.
    """

    def __init__(
        self,
        decode: Callable[..., Any],
        refuses: bool,
        processes: ReportedProcesses | None = None,
        decoded_again: Callable[[NDArray[np.int64]], Mapping[str, NDArray[Any]]] | None = None,
        kind: str = "",
    ) -> None:
        self._decode, self._refuses, self._processes, self._decoded_again = decode, refuses, processes, decoded_again
        self._kind = kind
        self._before = GeneratorStates()

    def look(self, batch: LoadedBatch) -> None:
        """The first batch is here. Raises UsageError (draws are refused)."""
        drawn = self._before.drawn() if self._processes is None else sorted(self._processes.drawn)
        names = [_NAMES[number] for number in drawn]
        if not names and self._refuses and self._decoded_again is not None:
            states = GeneratorStates()
            again = self._decoded_again(batch.ids)
            states.restore()
            names = [] if same_arrays(batch.features, again) else [_OWN]
        if names:
            self._say(" and ".join(names))

    def _say(self, generators: str) -> None:
        fact = f"{self._drawer} draws random numbers from {generators}."
        conflict = "They depend on threads, processes and the number of workers, so that no two runs train on the same."
        hint = " ".join(self._hints(is_own=generators == _OWN))
        if self._refuses:
            raise UsageError(fact, f"{conflict} --deterministic promises that they do.", hint)
        _log.warning("%s %s HINT: %s", fact, conflict, hint)

    @property
    def _drawer(self) -> str:
        function = f"decode function {name_of(self._decode)}"
        if not self._kind:
            return f"The {function}"
        return f"The {self._kind}, or the {function}," if self._is_own_decode else f"The {self._kind}"

    def _hints(self, is_own: bool) -> Iterator[str]:
        if self._kind:
            draw = "draw from random, numpy.random or torch, and " if is_own else ""
            seeded = "which seeds these for each item and each batch (docs/datasets.md)."
            yield f"{draw}give data.dataset() draws=True, {seeded}"
        if self._is_own_decode:
            where = "In decode, draw" if self._kind else "draw"
            what = "records.random, which depends on seed, epoch and record only (docs/data.md, Augmentation)."
            yield f"{where} from {what}"

    @property
    def _is_own_decode(self) -> bool:
        return getattr(self._decode, "__func__", None) is not Task.decode
