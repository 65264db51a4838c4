"""What a result file says when arms are compared: ratios of speeds, and where data_sharding is not ahead."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from typing import Any, Final

from benchmarks.loader.measure import FRACTIONS, ORDERS, rate
from benchmarks.statistics import Ratio, ratio_of

Result = dict[str, Any]

BASE: Final = "data_sharding"
_UNCHECKED: Final = "data_sharding_no_crc"
_RESUME_GOAL_MS: Final = 10
# MiB less that do not count as less memory.
_SAME_MEMORY_MIB: Final = 1
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


def noise_of(result: Result, data: str, order: str) -> Ratio:
    """A against A: the loader in two processes."""
    blocks = result["speed"][data][order]["same"]
    return ratio_of([rate(block, BASE) for block in blocks], [rate(block, f"{BASE}_again") for block in blocks])


def rates_of(result: Result, data: str, order: str, arm: str) -> list[float]:
    """Records/s of an arm in every block."""
    return [rate(block, arm) for block in result["speed"][data][order]["blocks"]]


def ours_over(result: Result, data: str, order: str, arm: str) -> Ratio:
    """How many times as fast as the arm data_sharding is, checking CRCs."""
    return ratio_of(rates_of(result, data, order, BASE), rates_of(result, data, order, arm))


def ours_over_at_equal_work(result: Result, data: str, order: str, arm: str) -> Ratio:
    """The same, but without the check against arms that were seen not to check."""
    same = BASE if result["damage"][arm]["noticed"] else _UNCHECKED
    return ratio_of(rates_of(result, data, order, same), rates_of(result, data, order, arm))


def peers_of(result: Result) -> list[str]:
    """The arms of other libraries."""
    return [arm for arm in result["arms"] if not arm.startswith(BASE)]


def first_batch_s(result: Result, data: str, order: str, arm: str) -> list[float]:
    """Seconds to the first batch in every block: the mean of its two epochs."""
    blocks = result["speed"][data][order]["blocks"]
    return [statistics.mean(part["first_batch_s"] for part in block[arm]) for block in blocks]


def interval(ratio: Ratio) -> str:
    """For people."""
    return f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def not_ahead(result: Result) -> Iterator[str]:
    """A sentence for every comparison that is not won: what tables would hide in their size."""
    for data in result["speed"]:
        for order in ORDERS:
            yield from _slower(result, data, order)
    for data in result["speed"]:
        for order in ORDERS:
            yield from _later(result, data, order)
    for name, at in result["resume"].items():
        slow = [part for part in map(str, FRACTIONS) if _median_ms(at[part]["times"]) >= _RESUME_GOAL_MS]
        if name.startswith(BASE) and slow:
            yield f"resume: {name} takes {_RESUME_GOAL_MS} ms or more at {', '.join(slow)} of the epoch"
    ours = result["memory"][BASE]["many"]["peak_own_mib"]
    for arm in peers_of(result):
        theirs = result["memory"].get(arm, {"many": {"peak_own_mib": ours}})["many"]["peak_own_mib"]
        if theirs < ours - _SAME_MEMORY_MIB:
            yield f"memory for 1,000,000 records: {ours:.0f} MiB of its own, {LABELS[arm]} {theirs:.0f}"


def _slower(result: Result, data: str, order: str) -> Iterator[str]:
    noise = noise_of(result, data, order)
    for arm in peers_of(result):
        ratio, equal = ours_over(result, data, order, arm), ours_over_at_equal_work(result, data, order, arm)
        if ratio.median > 1 and ratio.beyond(noise):
            continue
        text = f"speed, {data}, {order}: {interval(ratio)} times {LABELS[arm]}"
        if not result["damage"][arm]["noticed"]:
            text += f", which checks nothing; {interval(equal)} times with the CRC check off too"
        yield text


def _later(result: Result, data: str, order: str) -> Iterator[str]:
    ours = first_batch_s(result, data, order, BASE)
    for arm in peers_of(result):
        theirs = first_batch_s(result, data, order, arm)
        if ratio_of(ours, theirs).low > 1:
            times = [f"{statistics.median(seconds) * 1e3:.1f} ms" for seconds in (ours, theirs)]
            yield f"first batch, {data}, {order}: {times[0]}, {LABELS[arm]} {times[1]}"


def _median_ms(times: Iterable[dict[str, float]]) -> float:
    return statistics.median(time["first_batch_s"] for time in times) * 1e3
