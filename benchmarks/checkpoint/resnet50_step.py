"""How long a training step of ResNet-50 takes: `python -m benchmarks.checkpoint.resnet50_step`.

Prints JSON: {"step_seconds"}, the median of STEPS steps after a first one.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Final

import torch
from torch.nn import functional

from hvdtrain.models.torch import zoo

BATCH: Final = 32
SIDE: Final = 224
STEPS: Final = 3


def main() -> None:
    """Train on one batch of noise, by SGD with momentum, with one thread."""
    torch.set_num_threads(1)
    model = zoo.build_model("resnet50", 1000, SIDE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(1000, (BATCH,))
    seconds = []
    for _ in range(STEPS + 1):
        begin = time.perf_counter()
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"step_seconds": statistics.median(seconds[1:])}), flush=True)


if __name__ == "__main__":
    main()
