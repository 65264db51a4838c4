"""A result file as a page for people; `picture` comes from beside it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

from benchmarks.loader.comparisons import (
    BASE,
    LABELS,
    Result,
    first_batch_s,
    interval,
    noise_of,
    not_ahead,
    ours_over,
    ours_over_at_equal_work,
    rates_of,
)
from benchmarks.loader.measure import FRACTIONS, ORDERS
from benchmarks.loader.rates_picture import picture
from benchmarks.statistics import Ratio

__all__ = ["markdown", "picture"]

_SHUFFLES: Final = {
    "tf_data": "buffer",
    "webdataset": "buffer",
    "tfrecord": "buffer",
    "mosaicml": "global, in blocks",
}


def markdown(result: Result) -> str:
    """The whole page."""
    parts = [_head(result), _behind(result), *(_speed(result, name) for name in result["speed"]), _first_batch(result)]
    return "\n\n".join([*parts, _resume(result), _memory(result), _versions(result)]) + "\n"


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


def _behind(result: Result) -> str:
    lines = [f"- {line}" for line in not_ahead(result)]
    return "## Where data_sharding (CRC check on) is not ahead\n\n" + ("\n".join(lines) or "Nowhere in this result.")


def _speed(result: Result, data: str) -> str:
    about = result["data"][data]
    noises = {order: noise_of(result, data, order) for order in ORDERS}
    rows = []
    for arm in result["speed"][data]["sequential"]["blocks"][0]:
        notices = "yes" if result["damage"][arm]["noticed"] else "no"
        cells = [cell for order in ORDERS for cell in _speed_cells(result, data, order, arm, noises[order])]
        rows.append([LABELS[arm], notices, _SHUFFLES.get(arm, "global"), *cells])
    same = "; ".join(f"{order} {interval(noise)}" for order, noise in noises.items())
    heads = [text for order in ORDERS for text in (f"{order}, records/s", "ours is", "at equal work")]
    return (
        f"## Speed: {data}, {about['records']:,} records in batches of {about['batch']}\n\n"
        'Records/s, median of the blocks. "Ours is": how many times as fast data_sharding with its CRC check is, with '
        'a 95 % interval; "at equal work": the same, with its check off against those that do not check. '
        f"A against A: {same}. A ratio in brackets is no claim: it is not beyond A against A and chance. "
        '"Notices": refused a payload with one bit flipped on disk.\n\n'
        + _table(["", "notices", "shuffle", *heads], rows)
    )


def _speed_cells(result: Result, data: str, order: str, arm: str, noise: Ratio) -> list[str]:
    speed = f"{statistics.median(rates_of(result, data, order, arm)):,.0f}"
    if arm == BASE:
        return [speed, "1", "1"]
    ratios = [ours_over(result, data, order, arm), ours_over_at_equal_work(result, data, order, arm)]
    if arm.startswith(BASE):
        ratios.pop()
    cells = [interval(ratio) if ratio.beyond(noise) else f"[{interval(ratio)}]" for ratio in ratios]
    return [speed, *cells, ""][:3]


def _first_batch(result: Result) -> str:
    rows = []
    for arm in result["speed"]["3kb"]["sequential"]["blocks"][0]:
        cells = []
        for data in result["speed"]:
            cells += [_milliseconds(first_batch_s(result, data, order, arm)) for order in ORDERS]
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
        "opened data set (for data_sharding: plan and loader; the catalog is at hand), and with opening it (the "
        'catalog is read and checked). "Exact": it was the batch of the unbroken epoch. `reread`: from the start, '
        "discarding.\n\n" + _table(["", "how", "exact", *heads], rows)
    )


def _memory(result: Result) -> str:
    rows = []
    for arm, sizes in result["memory"].items():
        few, many = sizes["few"], sizes["many"]
        cells = [f"{at[name]:.0f}" for name in ("peak_own_mib", "peak_rss_mib") for at in (few, many)]
        rows.append([LABELS[arm], *cells, f"{many['baseline_rss_mib']:.0f}"])
    heads = ["own, 10 k", "own, 1 M", "resident, 10 k", "resident, 1 M", "after imports"]
    return (
        "## Memory\n\nMiB over what the process had after its imports, at the peak of reading a shuffled epoch of "
        "10,000 and (its first 100,000 records) of 1,000,000 records of 64 bytes. Own: anonymous and shared; resident: "
        "with the pages of mapped files, which are the page cache's.\n\n" + _table(["", *heads], rows)
    )


def _versions(result: Result) -> str:
    names = {name: version for arm in result["arms"].values() for name, version in arm["versions"].items()}
    return "## Versions\n\n" + ", ".join(f"{name} {version}" for name, version in sorted(names.items())) + "."


def _milliseconds(seconds: Iterable[float]) -> str:
    value = statistics.median(seconds) * 1e3
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] + ["---:" if len(heads) > 1 else "---"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
