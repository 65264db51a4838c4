"""hashes.jsonl of several runs: until which step they have the same bits, and which weights part first."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hvdtrain.history.reading import UNREADABLE, json_object, number, open_bounded, reason, text

FILE: Final = "hashes.jsonl"
_DIGITS: Final = 8  # of a checksum


@dataclass(frozen=True)
class _Hashes:
    """Checksums of a step: of each weight by its name, and of each virtual worker's gradients."""

    weights: dict[str, str]
    gradients: tuple[str, ...]


@dataclass(frozen=True)
class SameBits:
    """Several runs, as far as the steps go of which all have checksums."""

    same_until: int | None  # the last step before any differs; None where the first one does
    first_difference: int | None  # the first step that differs; None: none does
    differing: tuple[str, ...]  # the weights that differ there
    weights: int  # how many weights there are
    gradients_of: tuple[int, ...] = ()  # the virtual workers whose gradients differ in that step
    same_workers: bool = True  # whether all runs have checksums of as many virtual workers' gradients, or none has


def compare_bits(folders: Sequence[Path]) -> SameBits | None:
    """None where a run has kept no checksums, or where they have no step in common."""
    runs = [_read(folder / FILE) for folder in folders]
    steps = sorted(set(runs[0]).intersection(*runs[1:]))
    if not steps:
        return None
    same_until = None
    same_workers = len({len(run[step].gradients) for run in runs for step in steps}) == 1
    for step in steps:
        hashes = [run[step] for run in runs]
        first, *others = (each.weights for each in hashes)
        names = [name for name in dict.fromkeys([*first, *(n for other in others for n in other)])]
        differing = tuple(name for name in names if any(other.get(name) != first.get(name) for other in others))
        unlike = _unlike([each.gradients for each in hashes])
        if differing or unlike:  # a last bit of a gradient may not show in the weights at once
            return SameBits(same_until, step, differing, len(names), unlike, same_workers)
        same_until = step
    return SameBits(same_until, None, (), len(runs[0][steps[-1]].weights), (), same_workers)


def problem_of(folder: Path) -> str:
    """Why the file of a run cannot be read, as a sentence; "" where it can, or is not there."""
    try:
        open_bounded(folder / FILE).close()
    except FileNotFoundError:
        return ""
    except UNREADABLE as error:
        return f"{FILE} {reason(error)}."
    return ""


def _unlike(gradients: Sequence[tuple[str, ...]]) -> tuple[int, ...]:
    """The numbers of those that differ; () where runs have other virtual workers."""
    if len({len(each) for each in gradients}) != 1:
        return ()
    return tuple(number for number, values in enumerate(zip(*gradients, strict=True)) if len(set(values)) > 1)


def _read(path: Path) -> dict[int, _Hashes]:
    """By step."""
    names: list[str] = []
    found: dict[int, _Hashes] = {}
    with suppress(*UNREADABLE), open_bounded(path) as file:
        for raw in file:
            line = json_object(raw)
            if line is None:
                continue
            given, step, checksums = line.get("names"), number(line, "step"), text(line, "checksums")
            if isinstance(given, list):
                names = [str(name) for name in given]
            elif step is not None and len(checksums) == _DIGITS * len(names):
                weights = dict(zip(names, _parts(checksums), strict=True))
                found[int(step)] = _Hashes(weights, _parts(text(line, "gradients")))
    return found


def _parts(checksums: str) -> tuple[str, ...]:
    return tuple(checksums[begin : begin + _DIGITS] for begin in range(0, len(checksums), _DIGITS))
