"""`hvdtrain shard plan`: show the steps of an epoch, and what each rank reads."""

from collections.abc import Sequence

from data_sharding import ShardPlan
from data_sharding.plan.read_cost import ReadCost, decodes_per_group, ranks_per_block, read_cost
from data_sharding.plan.summary import PlanSummary, per_rank
from hvdtrain.cli.command_parser import number
from hvdtrain.cli.shard.data_arguments import Parser, open_catalog
from hvdtrain.cli.tables import print_table
from hvdtrain.units import in_bytes

_DESCRIPTION = """\
Show the steps of an epoch, and what each rank reads.

  hvdtrain shard plan 'data/train-*.tfrecord' --size 4 --global-batch-size 256
"""
_MOST_RANKS = 10**6  # so that the numbers of each fit into memory
_MOST_SLOTS = 10**7  # likewise the slots of a step
_ROWS = 64  # more ranks than fit a screen are summed up


def run(argv: Sequence[str]) -> int:
    """Print the plan that `argv` asks for; returns 0."""
    parser = Parser("plan", _DESCRIPTION)
    parser.add_data_arguments()
    parser.add_argument("--size", type=number("--size", 1, _MOST_RANKS), required=True, help="number of ranks")
    slots = number("--global-batch-size", 1, _MOST_SLOTS)
    parser.option("--global-batch-size", 256, "records per step, over all ranks", type=slots)
    parser.option("--seed", 42, "seed of the order", type=int)
    parser.option("--epoch", 0, "epoch to plan; the first one is 0, as for `ShardPlan`", type=int)
    parser.option("--shuffle", "global", "order of the records", choices=("global", "block", "length", "none"))
    parser.option("--tail", "mask", "what to do with an incomplete last step", choices=("mask", "drop"))
    text = "distribute records evenly over ranks, or also bytes"
    parser.option("--balance", "records", text, choices=("records", "bytes"))
    options = parser.parse(argv)
    catalog = open_catalog(options)
    plan = ShardPlan.for_catalog(
        catalog,
        global_batch=options.global_batch_size,
        seed=options.seed,
        epoch=options.epoch,
        shuffle=options.shuffle,
        tail=options.tail,
        balance=options.balance,
    )
    cost = _cost(read_cost(plan, catalog, options.size), decodes_per_group(plan, options.size))
    _print(plan, per_rank(plan, catalog, options.size), cost)
    return 0


def _cost(cost: ReadCost | None, decodes: float | None) -> list[str]:
    """Lines that say what reading takes."""
    if decodes is not None:
        return [f"each row group is decoded about {decodes:.2f} times an epoch, over all ranks"]
    if cost is None:
        return []
    requests = f"about {cost.requests_per_1000:,.0f} requests per 1,000 records"
    lines = [f"read from a URL: {requests}, {cost.bytes_per_byte:.2f} bytes per byte of records"]
    kept = f"blocks kept in memory: about {in_bytes(cost.kept_bytes)}, over all ranks"
    return [*lines, kept] if cost.kept_bytes else lines


def _print(plan: ShardPlan, summary: PlanSummary, cost: Sequence[str]) -> None:
    shares = [
        [f"{rank}", f"{records:,}", f"{size:,}", in_bytes(size)]
        for rank, (records, size) in enumerate(zip(summary.records.tolist(), summary.bytes.tolist(), strict=True))
    ]
    if len(shares) > _ROWS:
        shares = [*shares[: _ROWS // 2], ["…", "…", "…", "…"], *shares[-_ROWS // 2 :]]
    total = int(summary.bytes.sum())
    shares.append(["all", f"{summary.records.sum():,}", f"{total:,}", in_bytes(total)])
    print_table(f"epoch {plan.epoch}, per rank", ["rank", "records", "bytes", ""], shares)
    spread = summary.bytes.max() / max(summary.bytes.mean(), 1)
    waiting = summary.slowest_bytes / max(summary.bytes.mean(), 1)
    print(
        f"{plan.num_records:,} records in {summary.steps:,} steps of {plan.global_batch}: {_tail(summary)}\n"
        f"bytes of the largest rank over the mean: {spread:.3f}; of each step's largest: {waiting:.3f}\n"
        + "".join(f"{line}\n" for line in cost)
        + (f"each step is mixed from {_places(plan, len(summary.records))}\n" if plan.shuffle == "block" else "")
        + f"plan fingerprint {plan.fingerprint}"
    )


def _places(plan: ShardPlan, size: int) -> str:
    streams = min(plan.streams, plan.global_batch)
    places = f"{streams:,} places in the data" if streams > 1 else "one place in the data"
    requests = ranks_per_block(plan, size)
    if requests <= 2:
        return places
    return f"{places}; of {size:,} ranks several read the same block: about {requests:.1f} requests a block"


def _tail(summary: PlanSummary) -> str:
    if summary.dropped:
        return f"the last {summary.dropped} of the order are dropped"
    if summary.masked:
        return f"the last step has {summary.last_step_records} records and {summary.masked} masked slots"
    return "every step is full"
