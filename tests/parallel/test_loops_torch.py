"""hvdtrain.torch under real launchers: loops of users' own train as one process, as torch's DDP, and go on later."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Literal

import pytest
from support.elastic import run_elastic
from support.processes import free_port, run_command
from support.ranks import run_ranks

from hvdtrain.topology.topology import assign_places

pytestmark = pytest.mark.timeout(600)

WORKERS = Path(__file__).parent / "workers"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join((str(WORKERS), os.environ.get("PYTHONPATH", "")))}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints that two ranks under torchrun have saved; these have passed their checks."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    script = [str(WORKERS / "data_parallel_torch.py"), str(folder)]
    finished = run_command([*torchrun, "--rdzv-endpoint", "localhost:0", *script], 240, ENVIRONMENT)
    assert finished.returncode == 0, finished.tail()
    assert sorted(re.findall(r"CHECKED rank (\d)", finished.stdout)) == ["0", "1"]
    assert "nothing connects them" not in finished.stderr
    return folder


def test_a_wrapped_model_trains_as_in_torch(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == ["latest", "step_00000002", "step_00000003"]


def test_many_ranks_train_as_one(saved: Path) -> None:
    worker = ["python", str(WORKERS / "loops_torch.py"), str(saved)]
    finished = run_ranks(worker, 3, "horovodrun-gloo", 240, ENVIRONMENT)
    assert finished.returncode == 0, finished.tail()
    assert sorted(re.findall(r"CHECKED rank (\d)", finished.stdout)) == ["0", "1", "2"]


def test_ranks_join_and_form_process_sets() -> None:
    worker = ["python", str(WORKERS / "joins_and_sets_torch.py")]
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "20"}
    finished = run_ranks(worker, 3, "horovodrun-gloo", 120, {**ENVIRONMENT, **limits})
    assert finished.returncode == 0, finished.tail()
    assert sorted(re.findall(r"CHECKED rank (\d)", finished.stdout)) == ["0", "1", "2"]


def test_spawned_processes_meet_at_an_address() -> None:
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("localhost", 0))
        ports = [str(each.getsockname()[1]) for each in (first, second)]
    finished = run_command([sys.executable, str(WORKERS / "spawned_torch.py"), *ports], 240, ENVIRONMENT)
    assert finished.returncode == 0, finished.tail()
    assert sorted(re.findall(r"CHECKED rank (\d)", finished.stdout)) == ["0", "1"]


AGAIN = """
import sys, torch, hvdtrain.torch as hvd
from hvdtrain.errors import UsageError
hvd.init()
hvd.shutdown()
try:
    hvd.init()
    sys.stdout.write(f"SUM {hvd.allreduce(torch.ones(1), op=hvd.Sum).item()}\\n")
except UsageError as error:
    sys.stdout.write(f"REFUSED {error}\\n")
"""


@pytest.mark.parametrize(
    ("launcher", "imports", "said"),
    [
        ("horovodrun-gloo", "", "SUM 2.0"),
        ("mpirun", "from mpi4py import MPI\n", "SUM 2.0"),
        ("mpirun", "", "REFUSED hvd.init() is called again, after hvd.shutdown() in a job over MPI."),
    ],
)
def test_ranks_meet_again_or_are_told_why_not(
    launcher: Literal["mpirun", "horovodrun-gloo"], imports: str, said: str
) -> None:
    finished = run_ranks(["python", "-c", imports + AGAIN], 2, launcher, 120, ENVIRONMENT)
    assert finished.returncode == 0, finished.tail()
    assert finished.stdout.count(said) == 2, finished.tail()


UNREACHABLE = """
import os, hvdtrain.torch as hvd
from hvdtrain.errors import PeerError
try:
    hvd.init()
except PeerError as error:
    print(error, flush=True)
hvd.shutdown()
os.environ.update(HOROVOD_SIZE="1", HOROVOD_LOCAL_SIZE="1")
del os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
hvd.init()
print("SIZE", hvd.size())
"""


def test_a_rank_that_cannot_reach_the_others_is_told_so_and_may_try_again() -> None:
    place = assign_places(["localhost"] * 2)[0].variables
    gloo = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": "lo"}
    there = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(free_port())}
    finished = run_command([sys.executable, "-c", UNREACHABLE], 240, {**ENVIRONMENT, **place, **gloo, **there})
    assert finished.returncode == 0, finished.tail()
    assert finished.stdout.startswith("This rank could not connect to the others. "), finished.tail()
    assert finished.stdout.endswith("SIZE 1\n"), finished.tail()
    assert "Horovod could not be initialized: HTTP request failed." in finished.stderr, finished.tail()


CONNECTED = """
import os, psutil, sys, torch, hvdtrain.torch as hvd

def connected():
    found = psutil.Process().net_connections("tcp4")
    return sum(each.status == psutil.CONN_ESTABLISHED for each in found)

os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
for _ in range(2):
    hvd.init()
    others = [connected()]
    pair = hvd.add_process_set([0, 2])
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [3.0, 3.0]
    if pair.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=pair, name="pair").item() == 2.0
    assert hvd.allgather(torch.tensor([hvd.rank()]), name="ranks").tolist() == [0, 1, 2]
    hvd.barrier()
    others.append(connected())
    assert others == [2, 3 if pair.included() else 2], (hvd.rank(), others)
    hvd.remove_process_set(pair)
    hvd.shutdown()
sys.stdout.write("DONE\\n")
"""


def test_each_two_ranks_of_a_host_are_connected_once(tmp_path: Path) -> None:
    """Horovod's contexts of all ranks, of a host's, and of the process set of all share connections."""
    (tmp_path / "connected.py").write_text(CONNECTED)
    launch = [sys.executable, "-m", "hvdtrain", "launch", "local", "-np", "3", "--"]
    finished = run_command([*launch, str(tmp_path / "connected.py")], 240, ENVIRONMENT)
    assert finished.returncode == 0, finished.tail()
    assert finished.stdout.count("DONE") == 3, finished.tail()


GROUPS = """
import pytest, sys, torch, hvdtrain.torch as hvd
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from hvdtrain.errors import UsageError
hvd.init()
alone = hvd.add_process_set([0])

def step(process_set):
    model = torch.nn.Linear(2, 2, bias=False).bfloat16()
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), process_set=process_set)
    for _ in range(2 + (process_set is not alone and hvd.rank())):
        optimizer.zero_grad()
        model(torch.full((1, 2), 0.25).bfloat16()).sum().backward()
        optimizer.step()
    return model.weight.tolist()

if hvd.rank() == 0:
    assert step(alone) == [[0.5, 0.5]] * 2
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    wrapped = hvd.DistributedDataParallel(model, process_group=alone)
    wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    wrapped(torch.ones(2, 2)).sum().backward()
    hvd.SyncBatchNorm.convert_sync_batchnorm(model, process_group=alone)
    hvd.SyncBatchNorm(2, process_group=alone)(model(torch.ones(2, 2)))
    with pytest.raises(UsageError, match="join is one of all ranks"), wrapped.join():
        pass
assert step(hvd.global_process_set) == [[0.5 - 0.125 * hvd.rank()] * 2] * 2  # rank 0 adds zeros in the last step
hvd.join()
sys.stdout.write("DONE\\n")
"""


def test_groups_of_ranks_and_joined_ranks_wait_for_no_other_ones() -> None:
    """In bfloat16 as in other dtypes; weights and buffers too."""
    variables = {**ENVIRONMENT, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    finished = run_ranks(["python", "-c", GROUPS], 2, "mpirun", 120, variables)
    assert finished.returncode == 0, finished.tail()
    assert finished.stdout.count("DONE") == 2, finished.tail()


LATE = """
import pathlib, sys, time, torch, hvdtrain.torch as hvd
from hvdtrain.torch.collectives import LostPeerError
hvd.init()
told = [pathlib.Path(sys.argv[1]) / str(rank) for rank in (0, 2)]
model = torch.nn.Linear(1, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
def pass_backward():
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
pass_backward()
optimizer.step()
while hvd.rank() == 1 and not all(file.exists() for file in told):
    time.sleep(0.05)
try:
    hvd.allreduce(torch.ones(1), name="alone")
except LostPeerError as error:
    assert "rank 1 did not submit allreduce.alone within 2 seconds" in str(error), str(error)
    (pathlib.Path(sys.argv[1]) / str(hvd.rank())).touch()
    def refused(begin):
        try:
            begin()
        except LostPeerError as error:
            assert "hvd.join()" in str(error)
            return True
        return False
    while not refused(lambda: hvd.allreduce_async(torch.ones(1))):  # until Horovod has ended here
        time.sleep(0.05)
    assert refused(pass_backward)
    assert refused(hvd.join)
    sys.stdout.write(f"TOLD {hvd.rank()}\\n")
"""


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo"])
def test_a_late_rank_is_named_by_all_that_wait(launcher: Literal["mpirun", "horovodrun-gloo"], tmp_path: Path) -> None:
    """It learns that too, from its own call."""
    (tmp_path / "late.py").write_text(LATE)
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    worker = ["python", str(tmp_path / "late.py"), str(tmp_path)]
    finished = run_ranks(worker, 3, launcher, 120, {**ENVIRONMENT, **limits})
    assert sorted(re.findall(r"TOLD (\d)", finished.stdout)) == ["0", "1", "2"], finished.tail()


SUBMITTING = """
import pathlib, sys, time, torch, hvdtrain.torch as hvd
from hvdtrain.torch.collectives import LostPeerError
hvd.init()
ended = [pathlib.Path(sys.argv[1]) / str(rank) for rank in (0, 2)]
submitted = 0
try:
    while hvd.rank() != 1:
        hvd.allreduce_async(torch.ones(1))  # kept by Horovod alone, which has to release all of them at its end
        submitted += 1
        time.sleep(0.0005 if submitted > 300 else 0)
except LostPeerError:
    (pathlib.Path(sys.argv[1]) / str(hvd.rank())).touch()
    sys.stdout.write(f"REFUSED {hvd.rank()}\\n")
while hvd.rank() == 1 and not all(file.exists() for file in ended):
    time.sleep(0.05)
"""


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo"])
def test_a_rank_that_submits_while_horovod_ends_is_refused(
    launcher: Literal["mpirun", "horovodrun-gloo"], tmp_path: Path
) -> None:
    """Python's lock and that of Horovod's queue were taken in both orders: neither thread went on."""
    (tmp_path / "submitting.py").write_text(SUBMITTING)
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    worker = ["python", str(tmp_path / "submitting.py"), str(tmp_path)]
    finished = run_ranks(worker, 3, launcher, 120, {**ENVIRONMENT, **limits})
    assert sorted(re.findall(r"REFUSED (\d)", finished.stdout)) == ["0", "2"], finished.tail()


ELASTIC = """
import os, pathlib, signal, time, torch, hvdtrain.torch as hvd
hvd.init()
assert os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "120"  # a new worker may still import; Gloo's default is 30
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(4, 2), hvd.SyncBatchNorm(2))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
checkpoint = hvd.Checkpoint("saved", model=model, optimizer=optimizer)
step = checkpoint.restore().step
wrapped = hvd.DistributedDataParallel(torch.nn.Linear(4, 1), init_sync=False)
sgd = torch.optim.SGD(wrapped.parameters(), lr=0.1)
sampler = hvd.elastic.ElasticSampler(range(60))

def update(net, its_optimizer):
    its_optimizer.zero_grad()
    net(torch.ones(3, 4)).sum().backward()
    its_optimizer.step()

@hvd.elastic.run
def train(state, run):
    parts = hvd.allgather_object(list(sampler), name="parts")
    assert len(parts) == hvd.size() and len(set().union(*parts)) == 60 - sampler.processed_num, parts
    joined = pathlib.Path("joined")
    if JOINS and hvd.size() == 2:
        joined.touch()
    while state.step < 8:
        if state.step == 4 and hvd.size() == 2 and hvd.rank() == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        while state.step == 4 and hvd.size() == 1 and JOINS and not joined.exists():
            pathlib.Path("more").touch()
            time.sleep(0.1)
            state.commit()
        while state.step == 6 and hvd.size() == 2 and JOINS:
            pathlib.Path("more").unlink(missing_ok=True)
            time.sleep(0.1)
            state.commit()
        if KILLED == 1:  # the backward pass of this one is the first to fail on rank 0
            update(wrapped, sgd)
        hvd.assert_equal(model) if state.step == 4 else None  # here, or in BatchNorm, rank 1 hears of it
        update(model, optimizer)
        if KILLED != 1:
            update(wrapped, sgd)
        state.step += 1
        sampler.record_batch(state.step, 1)
        run.log(state.step, loss=1.0)
        print("step", state.step, "by", hvd.size(), flush=True)
        state.commit()
        checkpoint.save(state.step)
    checkpoint.wait()
    print("trained", state.step, "steps by", hvd.size(), flush=True)

kept = {"wrapped": wrapped, "sgd": sgd, "sampler": sampler, "step": step}
with hvd.run("run") as run:
    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, **kept), run)
"""


@pytest.mark.parametrize(
    ("change", "last_by_two"),
    [
        ("rank 0 is killed", 4),
        ("rank 1 is killed", 4),
        ("another one joins and leaves", 6),
        ("rank 0 is killed when another one joins", None),
    ],
)
def test_an_elastic_loop_goes_on_with_fewer_and_more_workers(
    change: str, last_by_two: int | None, tmp_path: Path
) -> None:
    """Whoever is rank 0 then writes checkpoints and metrics, also one that has never saved, and has nothing to restore
    when it comes. The ranks divide what is left of the epoch."""
    killed, joins = {"rank 0": 0, "rank 1": 1}.get(change[:6], -1), "joins" in change
    (tmp_path / "mine.py").write_text(ELASTIC.replace("KILLED", str(killed)).replace("JOINS", str(joins)))
    finished = run_elastic([sys.executable, "mine.py"], tmp_path, 120, ENVIRONMENT, first=1 if joins else 2)
    assert finished.returncode == 0, finished.tail()
    steps_by_two = [int(step) for step in re.findall(r"step (\d) by 2", finished.stdout)]
    assert max(steps_by_two, default=None) == last_by_two, finished.tail()
    assert "trained 8 steps by 1" in finished.stdout, finished.tail()
    assert (tmp_path / "saved" / "step_00000008").is_dir()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {line["step"] for line in lines if line.get("split") == "train"} == {*range(1, 9)}
    assert lines[-1]["event"] == "ended"
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {name: result[name] for name in ("status", "world_size", "steps")} == {
        "status": "finished",
        "world_size": 1,
        "steps": 8,
    }


def test_a_script_is_launched_again_until_it_has_ended(tmp_path: Path) -> None:
    """A loop of a user's fails, is started again, and goes on from its checkpoint."""
    script = tmp_path / "mine.py"
    script.write_text(
        "import sys, torch, hvdtrain.torch as hvd\n"
        "hvd.init()\n"
        "model = torch.nn.Linear(2, 2)\n"
        "checkpoint = hvd.Checkpoint('saved', model=model)\n"
        "step = checkpoint.restore().step\n"
        "checkpoint.save(step + 1, wait=True)\n"
        "print('rank', hvd.rank(), 'step', step, sys.argv[1:], flush=True)\n"
        "sys.exit(0 if step == 1 else 3)\n"
    )
    launch = [
        "hvdtrain",
        "launch",
        "local",
        "-np",
        "2",
        "--max-restarts",
        "1",
        "--backoff",
        "0",
        "--",
        "mine.py",
        "--x",
    ]
    finished = run_command(launch, 120, ENVIRONMENT, tmp_path, interpreter="warm workers")
    assert finished.returncode == 0, finished.tail()
    for rank in (0, 1):
        for step in (0, 1):
            assert f"rank {rank} step {step} ['--x']" in finished.stdout, finished.tail()
