"""`hvdtrain shard pipe-plan`: distribute files over channels, one per worker, and write the manifests for pipe mode."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from data_sharding.pipe.parsers import Framing
from data_sharding.pipe.pipe_plan import Distribution, PipePlan, make_plan
from data_sharding.pipe.pipe_plan_file import describe_files, save_plan
from hvdtrain.cli.shard.data_arguments import Parser, writing
from hvdtrain.cli.tables import print_table
from hvdtrain.units import in_bytes

_DESCRIPTION = """\
Distribute files over a job's pipes, one pipe per worker, largest files first.

  hvdtrain shard pipe-plan 'data/train-*.tfrecord' --workers-per-host 4 --prefix s3://bucket/data/ --out pipes

Writes pipes/plan.json, which `hvdtrain --data.pipe-plan` takes, and pipes/CHANNEL.manifest for each channel.
"""


def run(argv: Sequence[str]) -> int:
    """Write the plan that `argv` asks for, and print it; returns 0."""
    options = _parse(argv)
    prefix, files = describe_files(options.sources, options.framing, not options.no_count)
    plan = make_plan(
        files,
        workers_per_host=options.workers_per_host,
        hosts=options.hosts,
        distribution=options.distribution,
        prefix=prefix if options.prefix is None else options.prefix,
        framing=options.framing,
        channel=options.channel,
    )
    with writing(options.out):
        written = save_plan(plan, options.out)
    _print_plan(plan)
    print(f"wrote {written[0]} and {len(written) - 1} manifests beside it")
    if plan.rank_records() is None:
        steps = "training will need --data.pipe-steps"
        if plan.records is not None:
            steps = "an epoch will have (records / global batch) steps, or --data.pipe-steps"
        print(f"how many records reach each worker is not known beforehand: {steps}")
    return 0


def _print_plan(plan: PipePlan) -> None:
    total = sum(channel.bytes for channel in plan.channels)
    reader = "rank" if plan.distribution == "divided" else "local rank"
    rows = []
    for index, channel in enumerate(plan.channels):
        records = "?" if channel.records is None else f"{channel.records:,}"
        amounts = [f"{channel.bytes:,}", in_bytes(channel.bytes), f"{channel.bytes / total:.1%}"]
        rows.append([channel.name, f"{reader} {index}", f"{len(channel.files):,}", records, *amounts])
    print_table(
        f"{plan.hosts} hosts of {plan.workers_per_host} workers, {plan.distribution}",
        ["channel", "read by", "files", "records", "bytes", "", "share"],
        rows,
    )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("pipe-plan", _DESCRIPTION)
    add = parser.add_argument
    add("sources", nargs="+", metavar="SRC", help="files, folders, globs or URLs of the training data")
    add("--workers-per-host", type=int, required=True, metavar="K", help="workers that each host will run")
    parser.option("--hosts", 1, "hosts (instances) of the job", type=int, metavar="M")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for plan.json and the manifests")
    text = "one channel per worker of the job, or per worker of a host, if the service distributes files over hosts"
    parser.option("--distribution", "divided", text, choices=get_args(Distribution))
    text = "place where the files will be, e.g. s3://bucket/data/ (default: where they are now)"
    add("--prefix", metavar="URL", help=text)
    parser.option("--framing", "tfrecord", "record format of the files", choices=get_args(Framing))
    parser.option("--channel", "train", "channels are named NAME-0, NAME-1, …", metavar="NAME")
    add("--no-count", action="store_true", help="do not count records; training will then need --data.pipe-steps")
    return parser.parse(argv)
