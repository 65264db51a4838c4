"""What the other ranks may call while rank 0 has joined, and that `hvd.join()` waits each time: `… FOLDER FRAMEWORK`.

Each rank first calls what is refused later, so that Horovod remembers it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

framework = sys.argv[2]
if framework == "torch":
    import torch

    import hvdtrain.torch as hvd

    ones = lambda: torch.ones(3)  # noqa: E731
    integers = torch.tensor
else:
    import tensorflow as tf

    import hvdtrain.tensorflow as hvd

    ones = lambda: tf.ones(3)  # noqa: E731
    integers = tf.constant


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:  # torch's and TensorFlow's
        return str(error)
    return ""


def calls() -> dict[str, Callable[[], Any]]:
    return {
        "Allgather": lambda: hvd.allgather(ones(), name="rows"),
        "Min": lambda: hvd.allreduce(ones(), name="least", op=hvd.Min),
        "Product": lambda: hvd.allreduce(ones(), name="product", op=hvd.Product),
        "Max": lambda: hvd.allreduce(ones(), name="greatest", op=hvd.Max),
        "Alltoall": lambda: hvd.alltoall(integers(list(range(hvd.size()))), name="exchanged"),
    }


def is_to_stop() -> bool:
    return framework == "torch" and bool(hvd.stop_requested())


def steps_to_the_end() -> int:
    """After an epoch in which one rank was asked to stop."""
    return next((step for step in range(3) if is_to_stop()), -1)


def epoch(number: int) -> dict[str, Any]:
    """Rank 0 has no batches, rank 1 is late to join. In epoch 1, rank 3 is asked to stop."""
    errors: dict[str, str] = {}
    counts: list[float] = []
    began = time.monotonic()
    if hvd.rank() > 0:
        time.sleep(0.2 if hvd.rank() < hvd.size() - 1 else 0)  # the highest rank is most often the first
        errors = {what: refused(call) for what, call in calls().items()}
        if framework == "torch":  # Horovod has none for TensorFlow
            errors["Barrier"] = refused(hvd.barrier)
        if framework == "torch" and (number, hvd.rank()) == (1, 3):
            os.kill(os.getpid(), signal.SIGTERM)
        sums = []
        for step in range(20):
            sums.append(hvd.allreduce(ones(), name=f"sum{step}", op=hvd.Sum))
            assert not is_to_stop(), "rank 0 has joined, and would wait for those that stop"
        counts = sorted({float(value) for one in sums for value in one.numpy().tolist()})
        counts.append(float(hvd.allreduce(integers([hvd.rank()]), name="number", op=hvd.Max).numpy()[0]))
    Path(sys.argv[1], f"joins_{number}_{hvd.rank()}").touch()
    while hvd.rank() == 1 and len(list(Path(sys.argv[1]).glob(f"joins_{number}_*"))) < hvd.size():
        time.sleep(0.05)
    time.sleep(1 if hvd.rank() == 1 else 0)
    last = int(hvd.join())
    return {"errors": errors, "counts": counts, "last": last, "waited": time.monotonic() - began >= 1, "epoch": number}


def of_tapes(pair: Any) -> list[float]:
    """In one graph, gradients of a tape that reduces in the set of ranks 0 and 1, and then of one over all ranks."""
    weight = tf.Variable(0.0)

    def gradient(**options: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = weight * (hvd.rank() + 1.0)
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, weight)

    both = tf.function(lambda: (gradient(process_set=pair), gradient()))()
    return [float(value) for value in both]


if __name__ == "__main__":
    pair = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[pair])
    together = {what: refused(call) for what, call in calls().items()}
    tapes = of_tapes(pair) if framework == "tensorflow" else []
    is_to_stop()  # which takes signals from now on
    result = {"together": together, "tapes": tapes, "epochs": [epoch(0), epoch(1)], "steps": steps_to_the_end()}
    Path(sys.argv[1], f"rank_{hvd.rank()}.json").write_text(json.dumps(result))
