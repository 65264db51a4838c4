"""Calls `hvdtrain.run` with functions of this script.

python run_calls.py all FOLDER    prints what came of each call as a line of JSON
python run_calls.py deaf FOLDER   workers that no first interrupt ends; each makes a file in FOLDER when it runs
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import hvdtrain

SCALE = 3.0


def summed(value: float, *, more: float = 0.0) -> tuple[int, float]:
    """Of SCALE · (value + more) · (rank + 1) over all ranks."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    mine = torch.tensor([SCALE * (value + more) * (hvd.rank() + 1)])
    return hvd.rank(), float(hvd.allreduce(mine, op=hvd.Sum, name="test.sum"))


def fails_on_one() -> None:
    import horovod.torch as hvd
    import torch

    hvd.init()
    if hvd.rank() == 1:
        raise LookupError("nothing is here")
    hvd.allreduce(torch.ones(1), name="test.lost")


def leaves_a_thread() -> str:
    threading.Thread(target=time.sleep, args=(600,)).start()
    return "done"


def refuses() -> None:
    raise hvdtrain.UsageError("This is a fact.", "This is a conflict.", "this helps.")


def deaf(folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    (Path(folder) / os.environ["HOROVOD_RANK"]).touch()
    time.sleep(600)


def result(function: Any, *args: Any, **options: Any) -> Any:
    try:
        return hvdtrain.run(function, *args, **options)
    except (Exception, KeyboardInterrupt) as error:
        notes = "\n".join(getattr(error, "__notes__", []))
        return {"kind": type(error).__name__, "text": str(error), "notes": notes, "cause": repr(error.__cause__)}


def all_calls() -> dict[str, Any]:
    offset = 40
    here = sys.argv[2]
    return {
        "sums": result(summed, (1.0,), {"more": 1.0}, np=2),
        "by_agents": result(lambda: int(os.environ["HOROVOD_RANK"]) + offset, hosts="localhost:2"),
        "fails": result(fails_on_one, num_proc=2),
        "refuses": result(refuses, np=1),
        "generator": result(lambda: (n for n in range(3)), np=1),
        "killed": result(lambda: os.kill(os.getpid(), signal.SIGKILL), np=1),
        "exits": result(lambda: sys.exit(0), np=1),
        "thread": result(leaves_a_thread, np=1),
        "lock": result(sys._getframe, np=1, kwargs={"frame": sys._getframe()}),
        "slots": result(summed, np=3, hosts="localhost:2"),
        "elsewhere": result(summed, hosts="localhost:1", shared_folder=f"{here}/none"),
        **{
            name: result(summed, **{name: value})
            for name, value in (("np", 0), ("use_mpi", True), ("executable", "/no"))
        },
    }


if __name__ == "__main__":
    print(json.dumps(all_calls() if sys.argv[1] == "all" else result(deaf, sys.argv[2:], np=2)))
