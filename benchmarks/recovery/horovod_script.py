"""What one writes by hand for Horovod's elastic mode: the digits' CNN in a `TorchState`, with commits."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch
from torch.nn import functional

from benchmarks.recovery import by_hand
from benchmarks.recovery.step_times import StepTimes
from benchmarks.startup.network import cnn


def main() -> None:
    """Train, through changes of workers."""
    hvd.init()
    times, model = StepTimes(), cnn()
    inner = torch.optim.Adam(model.parameters(), lr=0.003)
    optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> None:
        for step, (x, y) in enumerate(by_hand.batches(hvd.size(), hvd.rank())):
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            times.note()
            if step % by_hand.STEPS_BETWEEN == 0:
                state.commit()

    train(hvd.elastic.TorchState(model, optimizer))


if __name__ == "__main__":
    main()
