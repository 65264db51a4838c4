"""Samples of perf, added up by what the processor was doing."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

_FEWEST = 200
_FRAMEWORK = r"libtorch_cpu|libtensorflow"
PARTS = (
    ("layers", rf"{_FRAMEWORK}|\[JIT\]|libmkl|libgomp|libiomp", r"^(?!.*(copy_kernel|memcpy|memmove))"),
    ("copies of tensors", _FRAMEWORK, ""),
    ("copies between processes", r"kernel", r"copy_(to|from)_iter|process_vm|follow_page|gup|pin_user"),
    ("waking, waiting, yielding", r"kernel", r"sched|futex|switch|yield|idle|poll|wait|wake"),
    ("kernel, memory and the rest", r"kernel", ""),
    ("MPI", r"libmpi|libopen-pal|libpmix|libevent|mca_", ""),
    ("Horovod", r"mpi_lib|libhorovod", ""),
    ("Python and its modules", r"python|\.so$", ""),
    ("C library", r"libc\.so|libm\.so|libstdc|ld-linux|libpthread", ""),
    ("others", "", ""),
)
"""Name, pattern of the library, pattern of the function; a sample belongs to the first part that fits."""


def part_of(library: str, function: str) -> str:
    """Which of `PARTS` a sample belongs to."""
    return next(name for name, of, at in PARTS if re.search(of, library) and re.search(at, function))


def shares(lines: Iterable[str]) -> dict[str, float]:
    """Shares of all samples by part, from the lines that `perf report` prints."""
    found = dict.fromkeys((name for name, _, _ in PARTS), 0.0)
    for line in lines:
        share, library, function = (word.strip() for word in line.split("|", 2))
        found[part_of(library, function)] += float(share.rstrip("%")) / 100
    found[PARTS[-1][0]] += max(0.0, 1 - sum(found.values()))  # what perf rounds to 0.00 %
    return found


def read(file: Path) -> dict[str, float]:
    """Shares of what `perf record` wrote. Raises `RuntimeError` if it is too little."""
    words = ["perf", "report", "--stdio", "--quiet", "--input", str(file), "--field-separator", "|"]
    counted = subprocess.run(
        [*words, "--sort", "comm", "--show-nr-samples"], capture_output=True, text=True, check=True
    )
    samples = sum(int(line.split("|")[1]) for line in counted.stdout.splitlines() if "|" in line)
    if samples < _FEWEST:
        raise RuntimeError(f"perf took {samples} samples: the run was too short")
    done = subprocess.run([*words, "--sort", "dso,symbol"], capture_output=True, text=True, check=True)
    return shares(line for line in done.stdout.splitlines() if line.count("|") >= 2)
