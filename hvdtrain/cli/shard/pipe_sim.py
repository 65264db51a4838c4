"""`hvdtrain shard pipe-sim`: a local agent that writes files into FIFOs, to try pipe mode without a cloud."""

import argparse
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from data_sharding.pipe.pipe_plan_file import load_plan, local_paths
from data_sharding.pipe.simulator import ChannelFeed, PipeSimulator
from data_sharding.storage import is_remote, locate_file
from data_sharding.storage.input_files import find_files
from hvdtrain.cli.command_parser import number
from hvdtrain.cli.shard.data_arguments import Parser, pairs
from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.units import parse_size

_DESCRIPTION = """\
Write files into FIFOs as SageMaker's Pipe mode does, to try it without a cloud.

  hvdtrain shard pipe-sim --dir fifos --plan pipes/plan.json --epochs 3
  hvdtrain shard pipe-sim --dir fifos --channel 'train-0=data/*0.tfrecord' --channel 'train-1=data/*1.tfrecord'

Exit codes: 0 all epochs were read; 143 after SIGTERM; 130 after SIGINT. The FIFOs are removed at the end.
"""
_LOOK_S = 0.1  # Between two looks at whether all is fed: the time that the command may outlive its last reader


def run(argv: Sequence[str]) -> int:
    """Feed what `argv` says until all epochs were taken or a signal comes; returns the exit code."""
    options = _parse(argv)
    simulator = PipeSimulator(options.dir, _feeds(options), options.epochs)
    received = None
    with SignalInbox() as inbox, simulator:
        print(f"feeding {options.dir} for {options.epochs} epochs", flush=True)
        while simulator.is_feeding() and (received := inbox.sleep(_LOOK_S)) is None:
            simulator.raise_errors()
    _report(simulator)
    return 128 + received if received else 0


def _report(simulator: PipeSimulator) -> None:
    for name, deliveries in simulator.deliveries().items():
        early = sum(delivery.closed_early for delivery in deliveries)
        size = sum(delivery.bytes for delivery in deliveries)
        end = f", {early} closed early" if early else ""
        print(f"{name}: {len(deliveries)} epochs, {size:,} bytes{end}", flush=True)


def _feeds(options: argparse.Namespace) -> dict[str, ChannelFeed]:
    files = _channel_files(options)
    truncated = pairs("--truncate", options.truncate, ":")
    for name in truncated:
        if name not in files:
            fact = f"--truncate names the channel {name!r}."
            raise UsageError(fact, "It is not among those that are fed.", did_you_mean(name, files))
    return {
        name: ChannelFeed(paths, options.shuffle, options.late, _bytes(truncated[name]) if name in truncated else None)
        for name, paths in files.items()
    }


def _channel_files(options: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    if (options.plan is None) == (not options.channel):
        raise UsageError(
            "`hvdtrain shard pipe-sim` takes either --plan or --channel.",
            "One of them says what is fed.",
            "give --plan FILE, or --channel NAME=GLOB for each channel.",
        )
    if options.plan is not None:
        plan = load_plan(options.plan)
        return {channel.name: local_paths(plan, channel, options.source) for channel in plan.channels}
    channels = pairs("--channel", options.channel)
    files = {name: tuple(find_files(pattern, ("*",))) for name, pattern in channels.items()}
    for path in itertools.chain(*files.values()):
        if not is_remote(path) and not os.path.exists(path):
            raise locate_file(path).no_content()
    return files


def _bytes(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(
            f"--truncate has {text!r} bytes.", "This is not a size.", "write --truncate train-0:1000, or train-0:64KiB."
        ) from error


def _delay(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0 to 86400")
    return seconds


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("pipe-sim", _DESCRIPTION)
    add = parser.add_argument
    add("--dir", type=Path, required=True, metavar="BASE", help="folder for the FIFOs, named CHANNEL_EPOCH")
    add("--plan", type=Path, metavar="FILE", help="serve the channels of this plan")
    add("--source", type=Path, metavar="DIR", help="where the plan's files are on this machine, if its prefix is a URL")
    add("--channel", action="append", default=[], metavar="NAME=GLOB", help="serve these files as this channel")
    text = "number of epochs, one FIFO per channel and epoch"
    parser.option("--epochs", 1, text, type=number("--epochs", 1), metavar="E")
    add("--shuffle", type=int, metavar="SEED", help="a new order of the files in each epoch")
    parser.option("--late", 0.0, "delay each FIFO by this time", type=_delay, metavar="SECONDS")
    text = "cut the channel after this many bytes"
    add("--truncate", action="append", default=[], metavar="CHANNEL:BYTES", help=text)
    return parser.parse(argv)
