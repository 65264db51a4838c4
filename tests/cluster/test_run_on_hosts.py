"""`hvdtrain.run(function, hosts=...)` over two emulated hosts: results of both, and the host of a failure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from emulated_hosts import EmulatedHosts
from launched_training import DEADLINE_S

SCRIPT = """
import glob, json, os, socket, tempfile
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

def turned(data):
    return data[::-1]

def folders():
    return len(glob.glob(tempfile.gettempdir() + "/.hvdtrain-call-*")), os.stat(tempfile.gettempdir()).st_dev

where, large = "host1:1,host2:1", os.urandom(5_000_001)
told = {"sums": hvdtrain.run(summed, (2.0,), hosts=where)}
told["large"] = [data == large[::-1] for data in hvdtrain.run(turned, (large,), hosts=where)]
told["shared"] = hvdtrain.run(turned, ("ab",), hosts=where, shared_folder=".")
try:
    hvdtrain.run(fails, hosts=where)
except hvdtrain.HvdtrainError as error:
    told["fails"] = str(error)
told["folders"] = hvdtrain.run(folders, hosts=where)
print(json.dumps(told))
"""


def test_a_function_runs_on_both_hosts(hosts: EmulatedHosts, tmp_path: Path) -> None:
    """It gets there through ssh, in any size, and so do its results: each host has a folder for them of its own."""
    with hosts.spawn("host1", [sys.executable, "-c", SCRIPT], {}, tmp_path) as call:
        done = call.wait(DEADLINE_S)
    assert done.returncode == 0, done.tail()
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["sums"] == [["host1", 0, 6.0], ["host2", 1, 6.0]]
    assert told["large"] == [True, True]
    assert told["shared"] == ["ba", "ba"]
    assert told["fails"].startswith("fails() raised an exception on rank 1 of 2, on host2: LookupError: not here. ")
    (here, device), (there, other) = told["folders"]
    assert (here, there) == (1, 1)  # the one of this call: those of earlier calls were removed
    assert device != other
    assert list(tmp_path.iterdir()) == []
