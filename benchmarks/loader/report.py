"""A result file as a page for people."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final

from benchmarks.loader.measure import FRACTIONS, ORDERS, rate
from benchmarks.loader.statistics import Ratio, ratio_of

Result = dict[str, Any]

_BASE: Final = "data_sharding"
# What an arm is called, who checks payloads by design (the table says what was seen), and how it shuffles.
LABELS: Final = {
    "data_sharding": "**data_sharding**",
    "data_sharding_no_crc": "data_sharding, CRC off",
    "data_sharding_reader": "data_sharding, no thread",
    "data_sharding_reader_no_crc": "data_sharding, no thread, CRC off",
    "tf_data": "tf.data",
    "webdataset": "webdataset",
    "mosaicml": "mosaicml-streaming",
    "grain": "grain on TFRecord",
    "grain_crc": "grain on TFRecord + CRC check in its source",
    "grain_array_record": "grain on ArrayRecord",
    "tfrecord": "tfrecord",
}
_SHUFFLES: Final = {
    "tf_data": "buffer",
    "webdataset": "buffer",
    "tfrecord": "buffer",
    "mosaicml": "global, in blocks",
}


def compact_json(result: Result) -> str:
    """JSON with one line a block: readable, and small enough for a repository."""
    rounded = json.loads(json.dumps(result), parse_float=lambda text: float(f"{float(text):.6g}"))
    return _indented(rounded, 0) + "\n"


def markdown(result: Result) -> str:
    """The whole page."""
    parts = [_head(result), *(_speed(result, name) for name in result["speed"]), _first_batch(result)]
    return "\n\n".join([*parts, _resume(result), _memory(result), _versions(result)]) + "\n"


def noise_of(result: Result, data: str, order: str) -> Ratio:
    """A against A: the loader in two processes."""
    blocks = result["speed"][data][order]["same"]
    return ratio_of([rate(block, _BASE) for block in blocks], [rate(block, f"{_BASE}_again") for block in blocks])


def rates_of(result: Result, data: str, order: str, arm: str) -> list[float]:
    """Records/s of an arm in every block."""
    return [rate(block, arm) for block in result["speed"][data][order]["blocks"]]


def _head(result: Result) -> str:
    machine = result["machine"]
    changes = ", with uncommitted changes" if machine["uncommitted_changes"] else ""
    return (
        f"# Record loaders on one core, {result['date'][:10]}\n\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; Linux {machine['kernel']}; "
        f"Python {machine['python']}; commit {machine['commit']}{changes}; load {machine['load'][0]:.1f} before, "
        f"{machine['load_at_end'][0]:.1f} after. All arms on core {result['options']['core']}, one at a time, files in "
        f"the page cache, {result['options']['blocks']} ABBA blocks. Method: [benchmarks/README.md](../README.md). "
        "Every block is in the JSON file beside this page."
    )


def _speed(result: Result, data: str) -> str:
    about = result["data"][data]
    noises = {order: noise_of(result, data, order) for order in ORDERS}
    rows = []
    for arm in result["speed"][data]["sequential"]["blocks"][0]:
        cells = [cell for order in ORDERS for cell in _speed_cells(result, data, order, arm, noises[order])]
        rows.append(
            [LABELS[arm], "yes" if result["damage"][arm]["noticed"] else "no", _SHUFFLES.get(arm, "global"), *cells]
        )
    same = "; ".join(f"{order} {_interval(noise)}" for order, noise in noises.items())
    return (
        f"## Speed: {data}, {about['records']:,} records in batches of {about['batch']}\n\n"
        f"Records/s, median of the blocks; then how many times as fast data_sharding with CRC check is, with its 95 % "
        f"interval. A against A: {same}. A ratio in brackets is no claim: it is not beyond A against A and chance. "
        f'"Notices": refused a payload with one bit flipped on disk.\n\n'
        + _table(["", "notices", "shuffle", "sequential", "ours is", "shuffled", "ours is"], rows)
    )


def _speed_cells(result: Result, data: str, order: str, arm: str, noise: Ratio) -> list[str]:
    theirs = rates_of(result, data, order, arm)
    speed = f"{statistics.median(theirs):,.0f}"
    if arm == _BASE:
        return [speed, "1"]
    ratio = ratio_of(rates_of(result, data, order, _BASE), theirs)
    text = f"{_interval(ratio)} ×"
    return [speed, text if ratio.beyond(noise) else f"[{text}]"]


def _first_batch(result: Result) -> str:
    rows = []
    for arm in result["speed"]["3kb"]["sequential"]["blocks"][0]:
        cells = []
        for data in result["speed"]:
            for order in ORDERS:
                blocks = result["speed"][data][order]["blocks"]
                cells.append(_milliseconds(part["first_batch_s"] for block in blocks for part in block[arm]))
        rows.append([LABELS[arm], *cells])
    heads = [f"{data}, {order}" for data in result["speed"] for order in ORDERS]
    return (
        "## Time to the first batch\n\nMilliseconds from opening an indexed (converted) data set in a warm process, "
        "median. Making the index, or converting, is not in it.\n\n" + _table(["", *heads], rows)
    )


def _resume(result: Result) -> str:
    rows = []
    for arm, at in result["resume"].items():
        resumes = result["arms"][arm.split(",")[0]]["resumes"]
        cells = []
        for part in map(str, FRACTIONS):
            cells.append(_milliseconds(time["first_batch_s"] for time in at[part]["times"]))
            cells.append(_milliseconds(sum(time.values()) for time in at[part]["times"]))
        exact = "yes" if all(at[str(part)]["exact"] for part in FRACTIONS) else "no"
        rows.append([LABELS.get(arm, arm), resumes, exact, *cells])
    heads = [text for part in FRACTIONS for text in (f"{part:.0%}", "with opening")]
    return (
        "## Resuming a shuffled epoch (3kb)\n\nMilliseconds to the first batch after the position, median: from the "
        "opened data set (for data_sharding: plan and loader; the catalog is at hand), and with opening it (the catalog "
        'is read and checked). "Exact": it was the batch of the unbroken epoch. `reread` reads and discards.\n\n'
        + _table(["", "how", "exact", *heads], rows)
    )


def _memory(result: Result) -> str:
    rows = []
    for arm, sizes in result["memory"].items():
        few, many = sizes["few"], sizes["many"]
        cells = [f"{at[name]:.0f}" for name in ("peak_own_mib", "peak_rss_mib") for at in (few, many)]
        rows.append([LABELS[arm], *cells, f"{many['baseline_rss_mib']:.0f}"])
    heads = ["own, 10 k", "own, 1 M", "resident, 10 k", "resident, 1 M", "after imports"]
    return (
        "## Memory\n\nMiB over what the process had after its imports, at the peak of reading a shuffled epoch of 10,000 "
        "and (its first 100,000 records) of 1,000,000 records of 64 bytes. Own: anonymous and shared; resident: with the "
        "pages of mapped files, which are the page cache's.\n\n" + _table(["", *heads], rows)
    )


def _versions(result: Result) -> str:
    names = {name: version for arm in result["arms"].values() for name, version in arm["versions"].items()}
    return "## Versions\n\n" + ", ".join(f"{name} {version}" for name, version in sorted(names.items())) + "."


def _interval(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def _milliseconds(seconds: Iterable[float]) -> str:
    value = statistics.median(seconds) * 1e3
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] + ["---:" if len(heads) > 1 else "---"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _indented(value: Any, depth: int) -> str:
    """Objects and arrays on one line where that is short enough."""
    flat = json.dumps(value)
    if len(flat) <= 150 or not isinstance(value, (dict, list)) or not value:
        return flat
    pad, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_indented(item, depth + 1)}" for key, item in value.items()]
        return "{" + pad + f",{pad}".join(items) + end + "}"
    return "[" + pad + f",{pad}".join(_indented(item, depth + 1) for item in value) + end + "]"
