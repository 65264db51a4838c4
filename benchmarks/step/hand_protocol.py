"""The timing of the hand-written arms: that of Horovod's synthetic benchmark, as in `hvdtrain bench step`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from benchmarks.step.workload import MODELS


def parse() -> argparse.Namespace:
    """The flags that the driver gives to every arm."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=list(MODELS), required=True)
    parser.add_argument("--num-warmup-batches", type=int, required=True)
    parser.add_argument("--num-batches-per-iter", type=int, required=True)
    parser.add_argument("--num-iters", type=int, required=True)
    parser.add_argument("--bucket-views", action="store_true", help="of DDP")
    parser.add_argument("--ddp", action="store_true", help="the loop for one GPU with DDP around its model")
    parser.add_argument("--look-alike", action="store_true", help="the same script with hvdtrain.torch imported")
    parser.add_argument("--exchange", action="store_true", help="of Keras' own fit")
    parser.add_argument("--bf16", action="store_true", help="of Keras' own fit")
    parser.add_argument("--compile-mode", default="default", help="of torch.compile")
    return parser.parse_args()


def run(
    options: argparse.Namespace,
    step: Callable[[], Any],
    value: Callable[[Any], float],
    mean: Callable[[float], float],
    rank: int,
) -> None:
    """Time the steps; rank 0 prints one JSON object in a line.

    Args:
        options: of `parse`.
        step: one update; returns the loss on its device.
        value: a loss as a number, which waits for the device.
        mean: over all workers.
        rank: of this worker.
    """
    for _ in range(options.num_warmup_batches):
        value(step())
    speeds, losses = [], []
    for _ in range(options.num_iters):
        begin = time.perf_counter()
        losses = [step() for _ in range(options.num_batches_per_iter)]
        value(losses[-1])
        records = MODELS[options.model].batch * options.num_batches_per_iter
        speeds.append(records / (time.perf_counter() - begin))
    loss = mean(sum(value(one) for one in losses) / len(losses))
    if rank == 0:
        print(json.dumps({"iterations": speeds, "loss": loss}), flush=True)
