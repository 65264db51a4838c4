"""`hvdtrain.run(function, hosts=...)` over two emulated hosts: results of both, and the host of a failure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from emulated_hosts import EmulatedHosts
from launched_training import DEADLINE_S

SCRIPT = """
import json, socket
import hvdtrain

def summed(value):
    import horovod.torch as hvd, torch
    hvd.init()
    total = hvd.allreduce(torch.tensor([value * (hvd.rank() + 1)]), op=hvd.Sum, name="test.sum")
    return socket.gethostname(), hvd.rank(), float(total)

def fails():
    if socket.gethostname() == "host2":
        raise LookupError("not here")
    return 1

where = "host1:1,host2:1"
told = {"sums": hvdtrain.run(summed, (2.0,), hosts=where)}
try:
    hvdtrain.run(fails, hosts=where)
except hvdtrain.HvdtrainError as error:
    told["fails"] = str(error)
print(json.dumps(told))
"""


def test_a_function_runs_on_both_hosts(hosts: EmulatedHosts, tmp_path: Path) -> None:
    with hosts.spawn("host1", [sys.executable, "-c", SCRIPT], {}, tmp_path) as call:
        done = call.wait(DEADLINE_S)
    assert done.returncode == 0, done.tail()
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["sums"] == [["host1", 0, 6.0], ["host2", 1, 6.0]]
    assert told["fails"].startswith("fails() raised an exception on rank 1 of 2, on host2: LookupError: not here. ")
    assert list(tmp_path.iterdir()) == []
