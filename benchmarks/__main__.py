"""A short form of every benchmark, for a look: `python -m benchmarks`, or `make bench`.

One block of each comparison says little about differences of a few percent: results that are kept and quoted come from
the benchmarks themselves (benchmarks/README.md).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.commands import REPOSITORY

_LOOK = ("--counts", "3", "5", "4")
_LOOPS = ("bare", "bare_records", "hvdtrain", "fabric", "accelerate", "lightning")
_STARTS = ("local", "mpirun", "horovodrun_gloo", "torchrun_ddp", "horovodrun_hand")
SHORT: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "step": (
        ("--blocks", "1", "--suites", "mlp", "mlp-tensorflow"),
        ("--blocks", "1", "--suites", "linear20", *_LOOK),
    ),
    "memory": (("--blocks", "1", "--suites", "mlp"),),
    "overhead": (("--blocks", "1", "--arms", *_LOOPS),),
    "checkpoint": (("--blocks", "1", "--megabytes", "100"),),
    "startup": (("--blocks", "1", "--cold-blocks", "0", "--arms", *_STARTS),),
    "recovery": (("--blocks", "1"),),
    "allreduce": (("--blocks", "1"),),
    "scaling": (("--blocks", "1", "--suites", "linear20", "--rates", "200", *_LOOK),),
    "loader": (("--blocks", "1", "--scale", "0.05", "--repeats", "1"),),
    "tuning": (("--blocks", "1", "--models", "mlp"),),
    "plan": (("--seconds", "1", "--models", "transformer"),),
}
"""Arguments of each run of each benchmark."""

_WITH_PEERS = ("overhead", "checkpoint")
"""Which take --peers-venv, from benchmarks.overhead.setup_peers."""


def main() -> int:
    """Run them one after the other, and print their pages; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(SHORT), metavar="NAME", help=f"of {', '.join(SHORT)}")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "runs" / "bench", help="folder for results")
    parser.add_argument("--peers-venv", type=Path, help="from benchmarks.overhead.setup_peers; without it, fewer peers")
    options = parser.parse_args()
    began = time.time()
    peers = [] if options.peers_venv is None else ["--peers-venv", str(options.peers_venv)]
    runs = [
        [f"benchmarks.{name}", *words, "--out", str(options.out), *(peers if name in _WITH_PEERS else [])]
        for name in options.names
        for words in SHORT[name]
    ]
    failed = [argv[0] for argv in runs if subprocess.run([sys.executable, "-m", *argv], cwd=REPOSITORY).returncode]
    for page in sorted(options.out.glob("*.md")):
        if page.stat().st_mtime >= began:
            print(f"\n{page.read_text()}")
    print(f"{len(runs) - len(failed)} of {len(runs)} runs in {time.time() - began:.0f} s; results are in {options.out}")
    for name in failed:
        print(f"{name} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
