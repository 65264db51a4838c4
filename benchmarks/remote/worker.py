"""One epoch of one arm: `python -m benchmarks.remote.worker ARM URL CACHE SECONDS` prints what it took as JSON.

With a fifth argument, the package data_sharding is taken from that checkout.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from importlib import import_module, metadata
from pathlib import Path

from benchmarks.remote.arms import ARMS
from benchmarks.remote.data import classes_in

_PACKAGES = ("fsspec", "aiohttp", "mosaicml-streaming", "webdataset", "torch")


def main() -> None:
    """Read until the epoch or the time is over. Imports are not timed."""
    name, url, cache, limit_s = sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])
    arm = ARMS[name]
    sys.path[:0] = sys.argv[5:]
    for module in arm.imports:
        import_module(module)
    begin = time.perf_counter()
    records, first_s, classes, seen = 0, 0.0, [], set()
    for batch in arm.read(url, cache):
        records += len(batch)
        first_s = first_s or time.perf_counter() - begin
        classes.append(classes_in(batch))
        seen.update(payload[:8] for payload in batch)
        if time.perf_counter() - begin > limit_s:
            break
    seconds = time.perf_counter() - begin
    result = {
        "records": records,
        "distinct": len(seen),
        "seconds": seconds,
        "first_batch_s": first_s,
        "classes": statistics.mean(classes),
        "cpu_s": time.process_time(),
        "versions": {n: metadata.version(n) for n in _PACKAGES if any(True for _ in metadata.distributions(name=n))},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
